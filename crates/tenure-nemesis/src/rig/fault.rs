//! The faults, by name, and how often each happens.

use std::str::FromStr;

use tenure_core::sabotage::SabotageRule;

use super::capabilities::Capabilities;
use super::network::LinkImpairment;
use crate::options::{EngineKind, LockUnderTest, Options};

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// A client is killed with SIGKILL; its next incarnation begins a little later.
    KillClient,
    /// A client is stopped, and resumes.
    StopClient,
    /// A client is stopped and resumed many times within a second, so that it halts in the middle
    /// of everything.
    Stutter,
    /// A client's bytes are dropped both ways; its sockets stay.
    Cut,
    /// Its bytes to and from one member are dropped.
    CutOne,
    /// Its requests arrive, the replies are lost: the commit happens, and the client does not learn
    /// of it.
    LoseAnswers,
    /// Its requests arrive, the answers come much later.
    HoldAnswers,
    /// Everything takes this much longer.
    Delay,
    /// Its requests arrive immediately, replies as late as a client waits for them. Then it is cut
    /// off: the last reply that it received was old.
    LateAnswer,
    /// Its connections are reset once.
    Reset,
    /// Its connections end politely, and so does every new one.
    Fin,
    /// Its connections go on, and new ones are refused.
    Refuse,
    /// Its packets are dropped both ways, in the kernel; connections stay, and what was sent
    /// arrives later.
    Silence,
    /// Its packets to one member are dropped.
    SilenceOne,
    /// What it sends is dropped, what is sent to it arrives.
    Mute,
    /// What is sent to it is dropped, what it sends arrives.
    Deaf,
    /// Its link is down: its system reports immediately that there is no route.
    Unplug,
    /// A third of the packets on a link are dropped.
    Loss,
    /// A link carries very little.
    Narrow,
    /// A link takes its time, and never the same.
    Lag,
    /// Packets on a link overtake each other.
    Reorder,
    /// Packets on a link arrive twice.
    Duplicate,
    /// A client's wall clock is set an hour forward or back, and corrected later.
    ClockStep,
    /// A member is killed and restarted.
    KillMember,
    /// The leader is.
    KillLeader,
    /// All members are.
    KillAll,
    /// A member is stopped, and resumes.
    StopMember,
    /// The leader is.
    StopLeader,
    /// No member receives from the leader, and it receives from none.
    IsolateLeader,
    /// The same of any member.
    IsolateMember,
    /// No member receives from the leader, and it receives from all.
    MuteLeader,
    /// The leader receives from no member, and all receive from it.
    DeafLeader,
    /// Two members do not hear each other, and the third hears both.
    Bridge,
    /// Leadership moves to another member.
    MoveLeader,
    /// A member's disk takes no more, and it dies of it.
    DiskFull,
    /// The cluster reports that it has no space, until the alarm is cleared.
    NoSpace,
    /// History is forgotten while a client is cut off.
    Compact,
    /// An operator revokes a lease.
    Revoke,
    /// An operator deletes a queue key.
    Delete,
    /// A client writes a lot at once, and deletes it.
    Flood,
}

/// What a fault is done to, roughly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TargetKind {
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
enum FaultNeeds {
    Nothing,
    Etcd,
    /// The rig speaks to etcd's gateway, and has no name there.
    NoPasswords,
    /// Neither a plain lock nor etcdctl promises anything about it, and it would be unfair to count it.
    OurPromises,
    Network,
    Shaping(LinkImpairment),
    Clock,
}

/// Every fault once: how often it happens, in shares; its target; what it needs. A member is away
/// less often than a link, because that affects all clients.
const TABLE: [(Fault, u64, TargetKind, FaultNeeds); 40] = {
    use Fault::*;
    use FaultNeeds::*;
    [
        (KillClient, 8, TargetKind::Process, Nothing),
        (StopClient, 12, TargetKind::Process, Nothing),
        (Stutter, 4, TargetKind::Process, Nothing),
        (ClockStep, 4, TargetKind::Clock, Clock),
        (Cut, 8, TargetKind::Link, Etcd),
        (CutOne, 6, TargetKind::Link, Etcd),
        (LoseAnswers, 8, TargetKind::Link, Etcd),
        (HoldAnswers, 5, TargetKind::Link, Etcd),
        (Delay, 6, TargetKind::Link, Etcd),
        (LateAnswer, 4, TargetKind::Link, Etcd),
        (Reset, 7, TargetKind::Link, Etcd),
        (Fin, 3, TargetKind::Link, Etcd),
        (Refuse, 3, TargetKind::Link, Etcd),
        (Silence, 6, TargetKind::Link, Network),
        (SilenceOne, 3, TargetKind::Link, Network),
        (Mute, 4, TargetKind::Link, Network),
        (Deaf, 4, TargetKind::Link, Network),
        (Unplug, 3, TargetKind::Link, Network),
        (Loss, 3, TargetKind::AnyLink, Shaping(LinkImpairment::Loss)),
        (Narrow, 2, TargetKind::AnyLink, Shaping(LinkImpairment::Narrow)),
        (Lag, 3, TargetKind::AnyLink, Shaping(LinkImpairment::Lag)),
        (Reorder, 2, TargetKind::AnyLink, Shaping(LinkImpairment::Reorder)),
        (Duplicate, 2, TargetKind::AnyLink, Shaping(LinkImpairment::Duplicate)),
        (KillMember, 4, TargetKind::Members, Etcd),
        (KillLeader, 4, TargetKind::Members, Etcd),
        (KillAll, 2, TargetKind::Members, Etcd),
        (StopMember, 3, TargetKind::Members, Etcd),
        (StopLeader, 4, TargetKind::Members, Etcd),
        (IsolateLeader, 4, TargetKind::Members, Etcd),
        (IsolateMember, 2, TargetKind::Members, Etcd),
        (MuteLeader, 2, TargetKind::Members, Etcd),
        (DeafLeader, 2, TargetKind::Members, Etcd),
        (Bridge, 2, TargetKind::Members, Etcd),
        (MoveLeader, 4, TargetKind::Members, NoPasswords),
        (DiskFull, 2, TargetKind::Members, Etcd),
        (NoSpace, 3, TargetKind::Data, NoPasswords),
        (Compact, 5, TargetKind::Data, Nothing),
        (Revoke, 4, TargetKind::Data, OurPromises),
        (Delete, 3, TargetKind::Data, OurPromises),
        (Flood, 2, TargetKind::Data, Nothing),
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
                "etcd ends no lease early and all processes here have one clock, so a missing margin has no effect",
            );
        }
        SabotageRule::UnknownMayBeThere => {
            return Err(
                "only a request that is cancelled at the moment its reply is lost leaves a queue key behind",
            );
        }
        SabotageRule::SettledEnter => {
            return Err("a member has to be paused with the enter of an acquire that is cancelled meanwhile");
        }
        SabotageRule::SlashAtTheEnd => {
            return Err("tasks with a common name prefix seldom exist at once here");
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
    pub(super) fn shares(options: &Options, capabilities: &Capabilities) -> Vec<(Fault, u64)> {
        let is_etcd = options.kind == EngineKind::Etcd;
        let is_possible = |needs: FaultNeeds| match needs {
            FaultNeeds::Nothing => true,
            FaultNeeds::Etcd => is_etcd,
            FaultNeeds::NoPasswords => is_etcd && !options.auth,
            FaultNeeds::OurPromises => options.against.does_all_work(),
            FaultNeeds::Network => capabilities.has_network(),
            FaultNeeds::Shaping(shape) => capabilities.can_shape(shape),
            FaultNeeds::Clock => capabilities.clock().is_some(),
        };
        let provoking = match (&options.faults, options.against) {
            (None, LockUnderTest::Broken(rule)) => provocation(rule).ok(),
            _ => None,
        };
        let only = options.faults.as_deref().or(provoking.as_ref().map(|provoking| provoking.faults));
        let is_wanted = |fault: Fault| only.is_none_or(|only| only.contains(&fault));
        let table = TABLE.into_iter();
        let chosen = table.filter(|(fault, _, _, needs)| is_possible(*needs) && is_wanted(*fault));
        chosen.map(|(fault, share, ..)| (fault, share)).collect()
    }

    /// What it is done to.
    pub(super) fn hits(self) -> TargetKind {
        let row = TABLE.into_iter().find(|(fault, ..)| *fault == self);
        row.expect("every fault is in the table").2
    }

    /// Whether it is done to packets, not to a proxy.
    pub(super) fn is_in_kernel(self) -> bool {
        TABLE.into_iter().any(|(fault, _, _, needs)| {
            fault == self && matches!(needs, FaultNeeds::Network | FaultNeeds::Shaping(_))
        })
    }

    /// How it makes a link worse, if it does.
    pub(super) fn shape(self) -> Option<LinkImpairment> {
        TABLE.into_iter().find_map(|(fault, _, _, needs)| match needs {
            FaultNeeds::Shaping(shape) if fault == self => Some(shape),
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
    fn fault_parses_from_its_name() {
        assert_eq!(Fault::LoseAnswers.name(), "lose-answers");
        for (fault, ..) in TABLE {
            assert_eq!(fault.name().parse(), Ok(fault));
        }
        assert!("flu".parse::<Fault>().is_err());
    }
}
