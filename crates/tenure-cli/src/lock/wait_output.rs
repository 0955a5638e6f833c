//! The status of a wait: the holder, since when it holds, and how many waiters are ahead.

use tenure::lock::LockSnapshot;
use tenure::store::LeaseId;
use tenure_core::record::HolderRecord;

use crate::hold::ago;

/// How many waiters are ahead of the key under this lease; `None` if it is not in the queue.
pub(super) fn ahead(view: &LockSnapshot, lease: LeaseId) -> Option<usize> {
    let waits = view.waiters.iter().position(|waiter| waiter.place.lease == lease);
    waits.or_else(|| view.holders.iter().any(|holder| holder.place.lease == lease).then_some(0))
}

/// The status to print; `None` without a holder.
pub(super) fn status(view: &LockSnapshot, ahead: Option<usize>) -> Option<String> {
    Some(format!("waiting for '{}': {}{}", view.name, held_by(view)?, ahead_of_you(ahead)))
}

/// `, you are next` or `, 2 ahead of you`.
pub(crate) fn ahead_of_you(ahead: Option<usize>) -> String {
    match ahead {
        Some(0) => ", you are next".to_owned(),
        Some(count) => format!(", {count} ahead of you"),
        None => String::new(),
    }
}

/// `held by web-2 pid 4121 (./deploy.sh) for 3m12s`; `None` without a holder.
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

/// How long a holder has held. `None` if its record does not contain that yet: the record is updated shortly after the acquisition,
/// and until then the time since it queued would be wrong.
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

    fn holder(lease: i64, node: &str, command: &str) -> Holder {
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
    fn status_names_holder_and_waiters_ahead() {
        let view = LockSnapshot {
            name: LockName::parse("deploy").unwrap(),
            holders: vec![holder(1, "web-2", "./deploy.sh")],
            waiters: vec![holder(2, "a", ""), holder(3, "b", ""), holder(4, "c", "")],
            revision: Revision(9),
        };
        let status = |lease| status(&view, ahead(&view, LeaseId::new(lease).unwrap())).unwrap();
        let held = "waiting for 'deploy': held by web-2 pid 4121 (./deploy.sh) for 3m12s";
        assert_eq!(status(4), format!("{held}, 2 ahead of you"));
        assert_eq!(status(2), format!("{held}, you are next"));
        assert_eq!(status(9), held);
    }

    /// B waited for 8 s and has just acquired the lock: its waiting time is not its holding time.
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
    fn free_lock_has_no_status() {
        let view = LockSnapshot {
            name: LockName::parse("a").unwrap(),
            holders: Vec::new(),
            waiters: Vec::new(),
            revision: Revision(9),
        };
        assert_eq!(status(&view, None), None);
    }
}
