//! What goes wrong, by name, and how often.

use std::str::FromStr;

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
    /// Its connections are reset once.
    Reset,
    /// Its connections end politely, and so does every new one.
    Fin,
    /// Its connections go on, and new ones are refused.
    Refuse,
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

impl Fault {
    /// How often each happens, in shares. A member is away less often than a link, because it hits everybody.
    pub(super) fn shares(options: &Options) -> Vec<(Fault, u64)> {
        use Fault::*;
        let mut shares = vec![(KillClient, 8), (StopClient, 12), (Stutter, 4), (Compact, 5), (Flood, 2)];
        if options.kind == Kind::Etcd {
            shares.extend([
                (Cut, 8),
                (CutOne, 6),
                (LoseAnswers, 8),
                (HoldAnswers, 5),
                (Delay, 6),
                (Reset, 7),
            ]);
            shares.extend([
                (Fin, 3),
                (Refuse, 3),
                (KillMember, 4),
                (KillLeader, 4),
                (KillAll, 2),
                (StopMember, 3),
            ]);
            shares.extend([(StopLeader, 4), (DiskFull, 2)]);
            shares.extend([
                (IsolateLeader, 4),
                (IsolateMember, 2),
                (MuteLeader, 2),
                (DeafLeader, 2),
                (Bridge, 2),
            ]);
            if !options.auth {
                // The rig speaks to etcd's gateway without a name.
                shares.extend([(MoveLeader, 4), (NoSpace, 3)]);
            }
        }
        if options.against == Against::Tenure {
            // Neither a plain lock nor etcdctl promises anything about them, and it would be unfair to count it.
            shares.extend([(Revoke, 4), (Delete, 3)]);
        }
        if let Some(only) = &options.faults {
            shares.retain(|(fault, _)| only.contains(fault));
        }
        shares
    }

    /// All of them.
    const ALL: [Fault; 28] = {
        use Fault::*;
        [
            KillClient,
            StopClient,
            Stutter,
            Cut,
            CutOne,
            LoseAnswers,
            HoldAnswers,
            Delay,
            Reset,
            Fin,
            Refuse,
            KillMember,
            KillLeader,
            KillAll,
            StopMember,
            StopLeader,
            IsolateLeader,
            IsolateMember,
            MuteLeader,
            DeafLeader,
            Bridge,
            MoveLeader,
            DiskFull,
            NoSpace,
            Compact,
            Revoke,
            Delete,
            Flood,
        ]
    };

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
        Fault::ALL
            .into_iter()
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
        for fault in Fault::ALL {
            assert_eq!(fault.name().parse(), Ok(fault));
        }
        assert!("flu".parse::<Fault>().is_err());
    }
}
