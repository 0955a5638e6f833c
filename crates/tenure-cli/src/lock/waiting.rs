//! What is said to one who waits: who holds, since when, and how many come first.

use tenure::lock::LockSnapshot;
use tenure::store::LeaseId;
use tenure_core::record::HolderRecord;

use crate::hold::ago;

/// How many wait before the place that hangs on this lease; none if it is not in the line.
pub(super) fn place(view: &LockSnapshot, lease: LeaseId) -> Option<usize> {
    let waits = view.waiters.iter().position(|waiter| waiter.place.lease == lease);
    waits.or_else(|| view.holders.iter().any(|holder| holder.place.lease == lease).then_some(0))
}

/// The status line; none if nobody holds.
pub(super) fn line(view: &LockSnapshot, place: Option<usize>) -> Option<String> {
    let ahead = match place {
        Some(0) => ", you are next".to_owned(),
        Some(count) => format!(", {count} ahead of you"),
        None => String::new(),
    };
    Some(format!("waiting for '{}': {}{ahead}", view.name, held_by(view)?))
}

/// `held by web-2 pid 4121 (./deploy.sh) for 3m12s`; none if nobody holds.
pub(crate) fn held_by(view: &LockSnapshot) -> Option<String> {
    let first = view.holders.first()?;
    let others = match view.holders.len() {
        1 => String::new(),
        2 => " and one other".to_owned(),
        count => format!(" and {} others", count - 1),
    };
    let held_for = held_for(&first.record).map_or(String::new(), |span| format!(" for {span}"));
    Some(format!("held by {}{others}{held_for}", first.record.identity()))
}

/// How long a holder has held. None if its record does not contain that: a hold is recorded after a moment, so one that waited long and
/// has just acquired shows nothing rather than the time that it waited.
pub(crate) fn held_for(record: &HolderRecord) -> Option<String> {
    record.acquired.map(ago)
}

#[cfg(test)]
mod tests {
    use tenure::clock::wall_time;
    use tenure::lock::Holder;
    use tenure_core::id::LockName;
    use tenure_core::layout::QueueKey;
    use tenure_core::record::Timestamp;
    use tenure_core::revision::{Revision, Token};

    use super::*;

    fn someone(lease: i64, node: &str, command: &str) -> Holder {
        Holder {
            place: QueueKey { lease: LeaseId::new(lease).unwrap(), nonce: 1 },
            token: Token(Revision(lease)),
            record: HolderRecord {
                node: node.to_owned(),
                pid: 4121,
                command: command.to_owned(),
                queued: Timestamp(wall_time().0 - 500_000),
                acquired: Some(Timestamp(wall_time().0 - 192_000)),
                ..HolderRecord::default()
            },
        }
    }

    #[test]
    fn who_waits_is_told_who_holds_and_how_many_come_first() {
        let view = LockSnapshot {
            name: LockName::parse("deploy").unwrap(),
            holders: vec![someone(1, "web-2", "./deploy.sh")],
            waiters: vec![someone(2, "a", ""), someone(3, "b", ""), someone(4, "c", "")],
            revision: Revision(9),
        };
        let line = |lease| line(&view, place(&view, LeaseId::new(lease).unwrap())).unwrap();
        let held = "waiting for 'deploy': held by web-2 pid 4121 (./deploy.sh) for 3m12s";
        assert_eq!(line(4), format!("{held}, 2 ahead of you"));
        assert_eq!(line(2), format!("{held}, you are next"));
        assert_eq!(line(9), held);
    }

    /// B waited for 8 s and has just acquired: the time that it waited is not the time that it holds.
    #[test]
    fn waiting_time_is_not_shown_as_held_time() {
        let waited = |ms: u64, acquired: Option<u64>| {
            let now = wall_time().0;
            held_for(&HolderRecord {
                queued: Timestamp(now - ms),
                acquired: acquired.map(|ms| Timestamp(now - ms)),
                ..HolderRecord::default()
            })
        };
        assert_eq!(waited(8_000, None), None);
        assert_eq!(waited(9_300, Some(1_200)).as_deref(), Some("1s"));
    }

    #[test]
    fn nobody_is_said_to_hold_what_is_free() {
        let view = LockSnapshot {
            name: LockName::parse("a").unwrap(),
            holders: Vec::new(),
            waiters: Vec::new(),
            revision: Revision(9),
        };
        assert_eq!(line(&view, None), None);
    }
}
