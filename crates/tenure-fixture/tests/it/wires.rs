//! Members that do not hear each other, in both directions or in one.

use std::time::{Duration, Instant};

use tenure_fixture::Etcd;

/// For the others to elect a leader: their timeout is 0.2 s, on a machine that may be busy.
const ELECTION_WAIT: Duration = Duration::from_secs(20);

fn cluster() -> Etcd {
    Etcd::builder().members(3).peer_wires().start()
}

/// Waits until one of the others leads, and returns its index.
fn await_other_leader(etcd: &Etcd, than: usize) -> usize {
    let deadline = Instant::now() + ELECTION_WAIT;
    let others = || (0..3).filter(|index| *index != than);
    loop {
        if let Some(leader) = others().find(|index| etcd.member(*index).is_leader()) {
            return leader;
        }
        assert!(Instant::now() < deadline, "no other member leads:\n{}", etcd.member((than + 1) % 3).log());
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn mended(etcd: &Etcd) {
    etcd.mend_wires();
    etcd.members().iter().for_each(tenure_fixture::EtcdMember::wait_until_healthy);
}

#[test]
fn isolated_leader_is_succeeded_and_rejoins() {
    let etcd = cluster();
    let leader = etcd.leader();
    for other in (0..3).filter(|other| *other != leader) {
        etcd.cut_wire(leader, other);
        etcd.cut_wire(other, leader);
    }
    await_other_leader(&etcd, leader);
    assert!(!etcd.member(leader).is_healthy(), "alone it cannot commit");
    mended(&etcd);
}

#[test]
fn mute_leader_is_succeeded() {
    let etcd = cluster();
    let leader = etcd.leader();
    for other in (0..3).filter(|other| *other != leader) {
        etcd.cut_wire(leader, other);
    }
    await_other_leader(&etcd, leader);
    mended(&etcd);
}

#[test]
fn cut_between_followers_changes_nothing() {
    let etcd = cluster();
    let leader = etcd.leader();
    let (one, other) = ((leader + 1) % 3, (leader + 2) % 3);
    etcd.cut_wire(one, other);
    etcd.cut_wire(other, one);
    etcd.members().iter().for_each(|member| assert!(member.is_healthy(), "{}", member.name()));
    assert!(etcd.member(leader).is_leader());
    mended(&etcd);
}
