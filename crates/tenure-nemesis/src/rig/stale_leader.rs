//! What etcd does to leases when its leader was stopped and resumes: at times it revokes them
//! although they were renewed.
//!
//! A stopped leader is replaced, and leases are renewed at its successor. When it resumes, they are
//! expired by its own clock. Now and then it seems to revoke them before it learns that it does not
//! lead any more. This looks like etcd issue 15247; it was seen with 3.7.2 in one of twelve stops, with
//! only etcd's own gateway as a client. To a client it is a lease that an operator revoked: its holder
//! cannot foresee it, and only the token protects.
//!
//! etcd gets this excuse only where its own metrics prove it: the stopped member must have counted
//! leases that it ended, while another member led.

use std::collections::BTreeSet;
use std::time::Duration;

use tenure_fixture::Etcd;

use super::Rig;

/// How many leases a member found to be over, and ended.
const ENDED: &str = "etcd_debugging_server_lease_expired_total";

/// How long a resumed member acts on its old state: it was seen to take 31 ms.
const OLD_BUSINESS: Duration = Duration::from_millis(300);

/// A member that is stopped.
pub(super) struct StoppedMember {
    member: usize,
    was_leader: bool,
    ended: f64,
}

impl StoppedMember {
    /// Reads the member's metrics before it is stopped.
    pub(super) fn note(etcd: &Etcd, member: usize) -> StoppedMember {
        let one = etcd.member(member);
        StoppedMember { member, was_leader: one.is_leader(), ended: one.metric(ENDED) }
    }

    /// The member resumes; leases that it revoked then, although it did not lead any more, are
    /// recorded.
    pub(super) fn resume(&self, rig: &mut Rig) {
        let before = if self.was_leader { leases(rig) } else { BTreeSet::new() };
        let Some(etcd) = &rig.place.etcd else { return };
        let one = etcd.member(self.member);
        one.resume();
        one.wait_until_healthy();
        if !self.was_leader {
            return;
        }
        std::thread::sleep(OLD_BUSINESS);
        if one.is_leader() || one.metric(ENDED) <= self.ended {
            return;
        }
        let name = one.name().to_owned();
        let gone: Vec<i64> = before.difference(&leases(rig)).copied().collect();
        rig.notes.push(format!(
            "{name} was stopped as the leader, went on, and ended {} leases of others",
            gone.len()
        ));
        rig.evidence.leases_ended_early.extend(gone);
    }
}

fn leases(rig: &Rig) -> BTreeSet<i64> {
    let listed = rig.place.insist("listing leases", |store| async move { store.leases().await });
    listed.unwrap_or_default().into_iter().map(|lease| lease.0.get()).collect()
}
