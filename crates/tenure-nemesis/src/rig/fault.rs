//! What goes wrong, by name, and how often.

use std::str::FromStr;

use tenure_core::sabotage::SabotageRule;

use super::means::Means;
use super::network::Shape;
use crate::options::{Against, Kind, Options};

/// Something that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// A client is killed with -9; its next life begins a little later.
    KillClient,
    /// A client is stopped, and goes on.
    StopClient,
    /// A client is stopped and goes on many times within a second, so that it stands still in the middle of everything.
    Stutter,
    /// A client's bytes vanish both ways; its sockets stay.
    Cut,
    /// Its connections to one member vanish.
    CutOne,
    /// Its requests arrive, the answers vanish: the commit happens, and nobody is told.
    LoseAnswers,
    /// Its requests arrive, the answers come much later.
    HoldAnswers,
    /// Everything takes this much longer.
    Delay,
    /// Its requests arrive at once, answers as late as anybody waits for them, and then it is cut off: the last that it heard was old.
    LateAnswer,
    /// Its connections are reset once.
    Reset,
    /// Its connections end politely, and so does every new one.
    Fin,
    /// Its connections go on, and new ones are refused.
    Refuse,
    /// Its packets vanish both ways, in the kernel; connections stay, and what was sent comes later.
    Silence,
    /// Its packets to one member vanish.
    SilenceOne,
    /// What it sends vanishes, what it is sent arrives.
    Mute,
    /// What it is sent vanishes, what it sends arrives.
    Deaf,
    /// Its link is down: its system says at once that there is no way.
    Unplug,
    /// A third of the packets on a link vanish.
    Loss,
    /// A link carries very little.
    Narrow,
    /// A link takes its time, and never the same.
    Lag,
    /// Packets on a link overtake each other.
    Reorder,
    /// Packets on a link arrive twice.
    Duplicate,
    /// Somebody sets a client's clock on the wall an hour forward or back, and corrects it later.
    ClockStep,
    /// A member is killed and restarted.
    KillMember,
    /// The leader is.
    KillLeader,
    /// All members are.
    KillAll,
    /// A member is stopped, and goes on.
    StopMember,
    /// The leader is.
    StopLeader,
    /// Nobody hears the leader, and it hears nobody.
    IsolateLeader,
    /// The same of any member.
    IsolateMember,
    /// Nobody hears the leader, and it hears everybody.
    MuteLeader,
    /// The leader hears nobody, and everybody hears it.
    DeafLeader,
    /// Two members do not hear each other, and the third hears both.
    Bridge,
    /// Leadership moves to another member.
    MoveLeader,
    /// A member's disk takes no more, and it dies of it.
    DiskFull,
    /// The cluster says that it has no space, until somebody says otherwise.
    NoSpace,
    /// History is forgotten while a client is cut off.
    Compact,
    /// Somebody revokes a lease by hand.
    Revoke,
    /// Somebody deletes a place in a line by hand.
    Delete,
    /// Somebody writes a lot at once, and deletes it.
    Flood,
}

/// What a fault is done to, roughly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hits {
    Process,
    Clock,
    Link,
    /// A client's link or a member's.
    AnyLink,
    Members,
    Data,
}

/// What must be there for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Needs {
    Nothing,
    Etcd,
    /// The rig speaks to etcd's gateway, and has no name there.
    NoPasswords,
    /// Neither a plain lock nor etcdctl promises anything about it, and it would be unfair to count it.
    OurPromises,
    Network,
    Shaping(Shape),
    Clock,
}

/// Every fault once: how often it happens, in shares; what it is done to; what it needs. A member is away less often than a link, because it hits
/// everybody.
const TABLE: [(Fault, u64, Hits, Needs); 40] = {
    use Fault::*;
    use Needs::*;
    [
        (KillClient, 8, Hits::Process, Nothing),
        (StopClient, 12, Hits::Process, Nothing),
        (Stutter, 4, Hits::Process, Nothing),
        (ClockStep, 4, Hits::Clock, Clock),
        (Cut, 8, Hits::Link, Etcd),
        (CutOne, 6, Hits::Link, Etcd),
        (LoseAnswers, 8, Hits::Link, Etcd),
        (HoldAnswers, 5, Hits::Link, Etcd),
        (Delay, 6, Hits::Link, Etcd),
        (LateAnswer, 4, Hits::Link, Etcd),
        (Reset, 7, Hits::Link, Etcd),
        (Fin, 3, Hits::Link, Etcd),
        (Refuse, 3, Hits::Link, Etcd),
        (Silence, 6, Hits::Link, Network),
        (SilenceOne, 3, Hits::Link, Network),
        (Mute, 4, Hits::Link, Network),
        (Deaf, 4, Hits::Link, Network),
        (Unplug, 3, Hits::Link, Network),
        (Loss, 3, Hits::AnyLink, Shaping(Shape::Loss)),
        (Narrow, 2, Hits::AnyLink, Shaping(Shape::Narrow)),
        (Lag, 3, Hits::AnyLink, Shaping(Shape::Lag)),
        (Reorder, 2, Hits::AnyLink, Shaping(Shape::Reorder)),
        (Duplicate, 2, Hits::AnyLink, Shaping(Shape::Duplicate)),
        (KillMember, 4, Hits::Members, Etcd),
        (KillLeader, 4, Hits::Members, Etcd),
        (KillAll, 2, Hits::Members, Etcd),
        (StopMember, 3, Hits::Members, Etcd),
        (StopLeader, 4, Hits::Members, Etcd),
        (IsolateLeader, 4, Hits::Members, Etcd),
        (IsolateMember, 2, Hits::Members, Etcd),
        (MuteLeader, 2, Hits::Members, Etcd),
        (DeafLeader, 2, Hits::Members, Etcd),
        (Bridge, 2, Hits::Members, Etcd),
        (MoveLeader, 4, Hits::Members, NoPasswords),
        (DiskFull, 2, Hits::Members, Etcd),
        (NoSpace, 3, Hits::Data, NoPasswords),
        (Compact, 5, Hits::Data, Nothing),
        (Revoke, 4, Hits::Data, OurPromises),
        (Delete, 3, Hits::Data, OurPromises),
        (Flood, 2, Hits::Data, Nothing),
    ]
};

/// How a broken rule is provoked: by which faults, and how long each lasts, in milliseconds.
pub(super) struct Provocation {
    pub(super) faults: &'static [Fault],
    pub(super) each_ms: (u64, u64),
}

/// For longer than the TTL of 3 or 4 s, but not much: the next comes the sooner.
const BEYOND_TTL_MS: (u64, u64) = (4_500, 7_000);

/// Too long for an answer, too short for a session to end.
const WITHIN_TTL_MS: (u64, u64) = (900, 2_000);

/// How this rule is provoked when it is broken on purpose; else why only the simulation finds it.
pub(super) fn provocation(rule: SabotageRule) -> Result<Provocation, &'static str> {
    use Fault::*;
    let (faults, each_ms): (&[Fault], _) = match rule {
        SabotageRule::ValidityFromSending => (&[LateAnswer], BEYOND_TTL_MS),
        SabotageRule::OwnPlace => (&[Delete], BEYOND_TTL_MS),
        SabotageRule::Fence => (&[StopClient], BEYOND_TTL_MS),
        SabotageRule::CommandsAreAnswered => (&[Reset], WITHIN_TTL_MS),
        SabotageRule::Margin => {
            return Err(
                "etcd ends no lease early and all processes here have one clock, so nobody misses the margin",
            );
        }
        SabotageRule::UnknownMayBeThere => {
            return Err(
                "only who gives up in the very moment in which its answer is lost leaves a place behind",
            );
        }
        SabotageRule::SettledEnter => {
            return Err("a member has to be paused with the enter of an acquire that is cancelled meanwhile");
        }
        SabotageRule::SlashAtTheEnd => {
            return Err("tasks whose names begin alike are seldom there at once here");
        }
        SabotageRule::LegalSteps => {
            return Err("a task that ends without having run looks here like one that ran");
        }
        SabotageRule::StopBeforeRelease
        | SabotageRule::GuardedRelease
        | SabotageRule::GuardedState
        | SabotageRule::WholePicture => {
            return Err("half a minute of real time under all faults did not show it");
        }
    };
    Ok(Provocation { faults, each_ms })
}

impl Fault {
    /// How often each happens that can, in shares.
    pub(super) fn shares(options: &Options, means: &Means) -> Vec<(Fault, u64)> {
        let is_etcd = options.kind == Kind::Etcd;
        let is_possible = |needs: Needs| match needs {
            Needs::Nothing => true,
            Needs::Etcd => is_etcd,
            Needs::NoPasswords => is_etcd && !options.auth,
            Needs::OurPromises => options.against.does_all_work(),
            Needs::Network => means.has_network(),
            Needs::Shaping(shape) => means.can_shape(shape),
            Needs::Clock => means.clock().is_some(),
        };
        let provoking = match (&options.faults, options.against) {
            (None, Against::Broken(rule)) => provocation(rule).ok(),
            _ => None,
        };
        let only = options.faults.as_deref().or(provoking.as_ref().map(|provoking| provoking.faults));
        let is_wanted = |fault: Fault| only.is_none_or(|only| only.contains(&fault));
        let table = TABLE.into_iter();
        let chosen = table.filter(|(fault, _, _, needs)| is_possible(*needs) && is_wanted(*fault));
        chosen.map(|(fault, share, ..)| (fault, share)).collect()
    }

    /// What it is done to.
    pub(super) fn hits(self) -> Hits {
        let row = TABLE.into_iter().find(|(fault, ..)| *fault == self);
        row.expect("every fault stands in the table").2
    }

    /// Whether it is done to packets, not to a proxy.
    pub(super) fn is_in_kernel(self) -> bool {
        TABLE
            .into_iter()
            .any(|(fault, _, _, needs)| fault == self && matches!(needs, Needs::Network | Needs::Shaping(_)))
    }

    /// How it makes a link worse, if it does.
    pub(super) fn shape(self) -> Option<Shape> {
        TABLE.into_iter().find_map(|(fault, _, _, needs)| match needs {
            Needs::Shaping(shape) if fault == self => Some(shape),
            _ => None,
        })
    }

    /// Its name in reports.
    pub fn name(self) -> String {
        let mut name = String::new();
        for letter in format!("{self:?}").chars() {
            if letter.is_uppercase() && !name.is_empty() {
                name.push('-');
            }
            name.extend(letter.to_lowercase());
        }
        name
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Fault, String> {
        TABLE
            .into_iter()
            .map(|(fault, ..)| fault)
            .find(|fault| fault.name() == text)
            .ok_or_else(|| format!("{text:?} is no fault"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_found_by_its_name() {
        assert_eq!(Fault::LoseAnswers.name(), "lose-answers");
        for (fault, ..) in TABLE {
            assert_eq!(fault.name().parse(), Ok(fault));
        }
        assert!("flu".parse::<Fault>().is_err());
    }
}
