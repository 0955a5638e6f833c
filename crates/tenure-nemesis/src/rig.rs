//! The rig: starts a store and clients, hits them with faults, lets them recover, and gathers everything that they told.

mod aftermath;
mod crew;
mod fault;
mod means;
mod network;
mod place;
mod report;
mod script;
mod show;
mod stale_leader;
mod strike;
mod wall_clock;

pub use fault::Fault;
pub use network::way_in;
pub use report::Report;
pub use show::show;

use std::time::{Duration, Instant};

use self::aftermath::Aftermath;
use self::crew::Crew;
use self::means::Means;
use self::place::Place;
use self::report::Said;
use self::script::Script;
use crate::check::{self, Evidence, Violation};
use crate::dice::Dice;
use crate::history::{Stamp, now};
use crate::ledger::Ledger;
use crate::options::{Against, Options};

/// For every client to have done something before the first fault.
const WARM_UP: Duration = Duration::from_secs(30);

/// A fault that was injected.
#[derive(Clone, Debug)]
pub struct Injected {
    /// When.
    pub at: Stamp,
    /// What.
    pub fault: Fault,
    /// To whom, and for how long.
    pub detail: String,
}

/// A run that goes on.
pub(crate) struct Rig {
    options: Options,
    place: Place,
    ledger: Ledger,
    crew: Crew,
    injected: Vec<Injected>,
    evidence: Evidence,
    /// What was seen and breaks no promise of ours.
    notes: Vec<String>,
}

/// Runs all of it.
///
/// # Errors
///
/// What cannot even begin, or is no run at all: a rig that did nothing has shown nothing.
pub fn run(options: &Options) -> Result<Report, String> {
    let begun = Instant::now();
    if let Against::Broken(rule) = options.against {
        fault::provocation(rule)
            .map_err(|why| format!("{rule:?} is found by the simulation alone, for {why}"))?;
        if !cfg!(tenure_sabotage) {
            return Err(format!("{rule:?} can be broken only in a build with `--cfg tenure_sabotage`"));
        }
    }
    let mut dice = Dice::new(options.seed);
    std::fs::create_dir_all(&options.folder)
        .map_err(|error| format!("{}: {error}", options.folder.display()))?;
    let place = Place::start(options)?;
    let means = Means::find(options, place.network.as_ref());
    let ledger = Ledger::start(place.books());
    let shares = Fault::shares(options, &means);
    let clocks = means.clock().filter(|_| shares.iter().any(|(fault, _)| *fault == Fault::ClockStep));
    let crew = Crew::start(options, &place, &ledger, clocks, &mut dice)?;
    let evidence = Evidence::default();
    let (injected, notes) = (Vec::new(), Vec::new());
    let mut rig = Rig { options: options.clone(), place, ledger, crew, injected, evidence, notes };
    rig.crew
        .await_progress(0, WARM_UP, options.against)
        .map_err(|who| format!("{} never began", who.join(", ")))?;
    Script::new(options, shares, dice).play(&mut rig);
    rig.write_faults();
    let mut violations = rig.recover();
    violations.extend(rig.gather());
    violations.extend(check::all(&rig.evidence, options.against));
    if options.against == Against::Tenure {
        // Nothing else than what is counted can be said of a run in which nobody did anything.
        violations.extend(too_quiet(&rig.evidence));
    }
    let said = Said { violations, notes: rig.notes, left_out: means.left_out };
    Ok(Report::new(options, &rig.injected, &rig.evidence, begun.elapsed(), said))
}

impl Rig {
    /// All faults end; everybody goes on, finishes, and goes.
    fn recover(&mut self) -> Vec<Violation> {
        let healed = now();
        let is_whole = self.options.against.does_all_work();
        let mut aftermath = Aftermath::new(self);
        // Whoever has only just begun again must be there before it is told anything.
        let goes_on = aftermath.everybody_goes_on(healed);
        if is_whole {
            aftermath.must(goes_on);
        }
        aftermath.everybody_settles();
        if is_whole {
            aftermath.tasks_end();
            aftermath.registrations_are_there();
            aftermath.commands_are_answered();
        }
        aftermath.everybody_goes();
        if is_whole {
            aftermath.nothing_is_left();
        }
        aftermath.violations()
    }

    /// What was done to whom, for whoever reads the histories.
    fn write_faults(&self) {
        let line = |one: &Injected| format!("{} {} {}\n", one.at, one.fault.name(), one.detail);
        let text: String = self.injected.iter().map(line).collect();
        // Only people read it; what counts is in the report.
        let _ = std::fs::write(self.options.folder.join("faults"), text);
    }

    /// Reads all histories.
    fn gather(&mut self) -> Vec<Violation> {
        self.evidence.ledger = self.ledger.entries();
        match self.crew.lives() {
            Ok(lives) => {
                self.evidence.lives = lives;
                Vec::new()
            }
            Err(what) => vec![Violation { promise: "histories can be read", what }],
        }
    }
}

fn too_quiet(evidence: &Evidence) -> Option<Violation> {
    use crate::history::{Outcome, Work};
    let tally = check::tally(evidence);
    let done = |work| tally.get(&(work, Outcome::Ok)).copied().unwrap_or(0);
    let all = [
        Work::Lock,
        Work::Count,
        Work::Campaign,
        Work::Write,
        Work::Read,
        Work::Register,
        Work::Submit,
        Work::Run,
    ];
    let quiet: Vec<String> =
        all.into_iter().filter(|work| done(*work) == 0).map(|work| format!("{work:?}")).collect();
    let what = format!("never done: {}", quiet.join(", "));
    (!quiet.is_empty()).then_some(Violation { promise: "every kind of work is done", what })
}
