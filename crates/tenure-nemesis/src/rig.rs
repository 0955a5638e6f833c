//! The rig: starts a store and clients, hits them with faults, lets them recover, and collects
//! their histories.

mod capabilities;
mod fault;
mod fault_check;
mod inject;
mod network;
mod processes;
mod recovery;
mod report;
mod schedule;
mod stale_leader;
mod store;
mod wall_clock;

pub use fault::Fault;
pub use fault_check::check_faults;
pub use network::way_in;
pub use report::NemesisReport;

use std::time::{Duration, Instant};

use self::capabilities::Capabilities;
use self::processes::ClientProcesses;
use self::recovery::Recovery;
use self::report::ReportFindings;
use self::schedule::FaultSchedule;
use self::store::NemesisStore;
use crate::check::{self, Evidence, Violation};
use crate::history::{Stamp, now};
use crate::ledger::Ledger;
use crate::options::{LockUnderTest, Options};
use crate::rng::NemesisRng;

/// For every client to have done something before the first fault.
const WARM_UP: Duration = Duration::from_secs(30);

/// A fault that was injected.
#[derive(Clone, Debug)]
pub struct Injected {
    /// When.
    pub at: Stamp,
    /// What.
    pub fault: Fault,
    /// Which target, and for how long.
    pub detail: String,
}

/// A run in progress.
pub(crate) struct Rig {
    options: Options,
    place: NemesisStore,
    ledger: Ledger,
    processes: ClientProcesses,
    injected: Vec<Injected>,
    evidence: Evidence,
    /// Findings that violate no guarantee of Tenure.
    notes: Vec<String>,
}

/// Runs all of it.
///
/// # Errors
///
/// What cannot even begin, or is no run at all: a rig that did nothing has shown nothing.
pub fn run(options: &Options) -> Result<NemesisReport, String> {
    let begun = Instant::now();
    if let LockUnderTest::Broken(rule) = options.against {
        fault::provocation(rule)
            .map_err(|why| format!("{rule:?} is found by the simulation alone, for {why}"))?;
        if !cfg!(tenure_sabotage) {
            return Err(format!("{rule:?} can be broken only in a build with `--cfg tenure_sabotage`"));
        }
    }
    let mut rng = NemesisRng::new(options.seed);
    std::fs::create_dir_all(&options.folder)
        .map_err(|error| format!("{}: {error}", options.folder.display()))?;
    let place = NemesisStore::start(options)?;
    let capabilities = Capabilities::find(options, place.network.as_ref());
    let ledger = Ledger::start(place.books());
    let shares = Fault::shares(options, &capabilities);
    let clocks = capabilities.clock().filter(|_| shares.iter().any(|(fault, _)| *fault == Fault::ClockStep));
    let processes = ClientProcesses::start(options, &place, &ledger, clocks, &mut rng)?;
    let evidence = Evidence::default();
    let (injected, notes) = (Vec::new(), Vec::new());
    let mut rig = Rig { options: options.clone(), place, ledger, processes, injected, evidence, notes };
    rig.processes
        .await_progress(0, WARM_UP, options.against)
        .map_err(|who| format!("{} never began", who.join(", ")))?;
    FaultSchedule::new(options, shares, rng).run(&mut rig);
    rig.write_faults();
    let mut violations = rig.recover();
    violations.extend(rig.gather());
    violations.extend(check::all(&rig.evidence, options.against));
    if options.against == LockUnderTest::Tenure {
        // A run in which the clients did nothing proves nothing beyond its counts.
        violations.extend(too_quiet(&rig.evidence));
    }
    let said = ReportFindings { violations, notes: rig.notes, left_out: capabilities.left_out };
    Ok(NemesisReport::new(options, &rig.injected, &rig.evidence, begun.elapsed(), said))
}

impl Rig {
    /// All faults end; all clients go on, finish, and exit.
    fn recover(&mut self) -> Vec<Violation> {
        let healed = now();
        let is_whole = self.options.against.does_all_work();
        let mut aftermath = Recovery::new(self);
        // A client that has only just restarted must be ready before it gets a signal.
        let goes_on = aftermath.check_progress(healed);
        if is_whole {
            aftermath.must(goes_on);
        }
        aftermath.check_settled();
        if is_whole {
            aftermath.tasks_end();
            aftermath.registrations_are_there();
            aftermath.commands_are_answered();
        }
        aftermath.check_exit();
        if is_whole {
            aftermath.nothing_is_left();
        }
        aftermath.violations()
    }

    /// Which fault hit which target, for readers of the histories.
    fn write_faults(&self) {
        let line = |one: &Injected| format!("{} {} {}\n", one.at, one.fault.name(), one.detail);
        let text: String = self.injected.iter().map(line).collect();
        // Only people read it; what counts is in the report.
        let _ = std::fs::write(self.options.folder.join("faults"), text);
    }

    /// Reads all histories.
    fn gather(&mut self) -> Vec<Violation> {
        self.evidence.ledger = self.ledger.entries();
        match self.processes.lives() {
            Ok(lives) => {
                self.evidence.lives = lives;
                Vec::new()
            }
            Err(what) => vec![Violation { promise: "histories can be read", what }],
        }
    }
}

fn too_quiet(evidence: &Evidence) -> Option<Violation> {
    use crate::history::{OperationKind, OperationOutcome};
    let count_outcomes = check::count_outcomes(evidence);
    let done = |work| count_outcomes.get(&(work, OperationOutcome::Ok)).copied().unwrap_or(0);
    let all = [
        OperationKind::Lock,
        OperationKind::Count,
        OperationKind::Campaign,
        OperationKind::Write,
        OperationKind::Read,
        OperationKind::Register,
        OperationKind::Submit,
        OperationKind::Run,
    ];
    let quiet: Vec<String> =
        all.into_iter().filter(|work| done(*work) == 0).map(|work| format!("{work:?}")).collect();
    let what = format!("never done: {}", quiet.join(", "));
    (!quiet.is_empty()).then_some(Violation { promise: "every kind of work is done", what })
}
