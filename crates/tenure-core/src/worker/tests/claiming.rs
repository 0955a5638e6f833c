//! Which worker claims which task, and when.

use super::events::{ms, seconds, task};
use super::process::WorkerProcess;
use super::wire::WireFault;
use super::world::WorkerWorld;
use crate::balance::{Class, Demand, Load};
use crate::id::NodeId;
use crate::layout::Key;
use crate::loss::LossReason;
use crate::record::MemberState;
use crate::revision::{Revision, Token};
use crate::snapshot::FeedItem;
use crate::time::Moment;
use crate::txn::{Op, Txn};
use crate::worker::peers::{Peers, UnownedBacklog};
use crate::worker::request::{ClaimBatch, ClaimReadMode};
use crate::worker::{ClaimReply, FeedId, WorkerEvent, WorkerInput, WorkerOutput};

#[test]
fn unowned_task_is_claimed_and_run() {
    let mut world = WorkerWorld::calm(1);
    world.submit("a");
    world.pass(ms(10));
    assert_eq!(world.runs_on("a"), Some(0));
    assert_eq!(world.owner("a").as_deref(), Some("n0"));
}

#[test]
fn claim_won_after_session_loss_is_released() {
    let mut world = WorkerWorld::calm(1);
    world.holds_replies = true;
    world.submit("a");
    world.pass(ms(10));
    assert_eq!(world.owner("a").as_deref(), Some("n0"), "the store has it");
    world.lose_session(0);
    world.release_replies();
    world.pass(ms(10));
    assert_eq!((world.owner("a"), world.starts_of("a")), (None, 0));
    assert!(world.has_noticed(0, |notice| matches!(notice, WorkerEvent::LateClaimReleased { .. })));
    world.pass(seconds(30));
    assert_eq!(
        (world.runs_on("a"), world.starts_of("a")),
        (Some(0), 1),
        "in the next session it is claimed anew"
    );
}

/// Found by the simulator: a node believed for a moment that its former place was its place again, and claimed. Then it heard that the place
/// was another, the answer was lost, and its record showed a life of the node that was over; on the lease that was renewed for the new one.
#[test]
fn ambiguous_claim_before_rejoin_is_released() {
    let mut world = WorkerWorld::calm(1);
    world.fate = WireFault::LosesReply;
    world.submit("a");
    world.pass(ms(2));
    world.fate = WireFault::Works;
    world.lose_member_key(0);
    assert_eq!(world.owner("a").as_deref(), Some("n0"), "the store has it");
    world.deliver(0, WorkerInput::Joined { incarnation: Token(Revision(1_000)) });
    world.pass(seconds(8));
    assert_eq!((world.runs_on("a"), world.starts_of("a")), (Some(0), 1), "released, and then claimed");
}

/// Found by the simulator: a worker's key was under a lease that had ended, its claims already
/// under the next one. When the key was deleted, the worker stopped its tasks and forgot them. The
/// lease of the claims lived on, so no worker could ever run them again.
#[test]
fn claims_that_outlive_member_key_are_released() {
    let mut world = WorkerWorld::calm(1);
    world.submit("a");
    world.pass(ms(10));
    assert_eq!(world.runs_on("a"), Some(0));
    world.lose_member_key(0);
    world.pass(ms(10));
    assert_eq!((world.runs_on("a"), world.owner("a")), (None, None), "stopped first, then released");
    world.deliver(0, WorkerInput::Joined { incarnation: Token(Revision(1_000)) });
    world.pass(seconds(5));
    assert_eq!((world.runs_on("a"), world.starts_of("a")), (Some(0), 2));
}

#[test]
fn claim_won_after_task_deletion_is_not_run() {
    let mut world = WorkerWorld::calm(1);
    world.holds_replies = true;
    world.submit("a");
    world.pass(ms(10));
    world.delete("a");
    world.pass(ms(10));
    world.release_replies();
    world.settle();
    assert_eq!((world.starts_of("a"), world.processes[0].machine.owned()), (0, 0));
}

#[test]
fn claim_under_ended_lease_is_released() {
    let mut world = WorkerWorld::calm(1);
    world.holds_replies = true;
    world.submit("a");
    world.pass(ms(10));
    let over = world.processes[0].lease.unwrap();
    world.change_lease(0);
    world.deliver(0, WorkerInput::LeaseLost { lease: over, why: LossReason::Lapsed });
    world.release_replies();
    world.settle();
    assert!(world.has_noticed(0, |notice| matches!(notice, WorkerEvent::LateClaimReleased { .. })));
    assert_eq!(world.starts_of("a"), 1);
    assert_ne!(world.processes[0].handlers[&task("a")].start.lease, over, "it is claimed anew");
}

#[test]
fn claim_with_lost_reply_is_found_by_nonce() {
    let mut world = WorkerWorld::calm(1);
    world.fate = WireFault::LosesReply;
    world.submit("a");
    world.pass(ms(2));
    world.fate = WireFault::Works;
    world.settle();
    assert_eq!((world.runs_on("a"), world.starts_of("a")), (Some(0), 1));
    assert_eq!(world.processes[0].machine.stats().won, 1);
}

/// The first request was applied and its reply lost; the second was certainly not done. The claim is in the store, so it is asked for again.
#[test]
fn ambiguous_claim_is_repeated_after_failed_retry() {
    let mut world = WorkerWorld::calm(1);
    world.fate = WireFault::LosesReply;
    world.submit("a");
    world.pass(ms(2));
    let claim = world.get(&Key::TaskOwner(task("a"))).map(|pair| pair.created);
    world.fate = WireFault::NotDone;
    world.pass(ms(500));
    world.fate = WireFault::Works;
    world.pass(seconds(20));
    assert_eq!((world.runs_on("a"), world.starts_of("a")), (Some(0), 1));
    assert_eq!(
        world.get(&Key::TaskOwner(task("a"))).map(|pair| pair.created),
        claim,
        "the first claim is the one that runs"
    );
}

#[test]
fn late_claim_with_lost_reply_is_one_claim() {
    let mut world = WorkerWorld::calm(1);
    world.fate = WireFault::Late;
    world.submit("a");
    world.pass(ms(2));
    world.fate = WireFault::Works;
    world.pass(seconds(20));
    assert_eq!((world.runs_on("a"), world.starts_of("a")), (Some(0), 1));
}

/// A record of a claim that the first node must have asked for, and knows nothing of.
fn unknown_claim(world: &WorkerWorld) -> String {
    let WorkerProcess { incarnation, config, .. } = &world.processes[0];
    let (incarnation, seed) = (incarnation.unwrap(), config.seed);
    format!(r#"{{"node":"n0","incarnation":{incarnation},"nonce":"{seed:016x}-lost"}}"#)
}

#[test]
fn unknown_own_claim_is_released() {
    let mut world = WorkerWorld::calm(1);
    let owner = unknown_claim(&world);
    world.submit_as("a", r#"{"ended":true}"#, None);
    world.put_raw(&Key::TaskOwner(task("a")), &owner);
    world.pass(seconds(4));
    assert_eq!(world.owner("a"), None);
}

/// The first request of a claim was delayed, and another worker owned the task meanwhile. When that
/// worker released it, the delayed request was applied, just before the next claim of this worker.
/// The board shows this worker's id, and the reply shows that it is not this claim.
#[test]
fn late_claim_is_released_during_next_claim() {
    let mut world = WorkerWorld::calm(1);
    let owner = unknown_claim(&world);
    world.holds_replies = true;
    world.submit("a");
    world.put_raw(&Key::TaskOwner(task("a")), &owner);
    world.pass(seconds(3));
    assert_eq!(world.withheld.len(), 1, "the next claim is still asked for");
    world.release_replies();
    world.pass(seconds(4));
    assert_eq!((world.runs_on("a"), world.starts_of("a")), (Some(0), 1), "released, and then claimed");
}

/// A claim was asked twice because the first answer was lost. The task was run and released, and then the first request arrived after all.
#[test]
fn late_claim_is_released_after_task_release() {
    let mut world = WorkerWorld::calm(1);
    world.submit("a");
    world.settle();
    world.holds_replies = true;
    world.finish("a", crate::worker::HandlerEnd::Release);
    world.pass(ms(5));
    assert_eq!(world.owner("a"), None);
    let owner = unknown_claim(&world);
    world.put_raw(&Key::TaskOwner(task("a")), &owner);
    world.pass(ms(5));
    world.release_replies();
    world.pass(seconds(4));
    assert_eq!((world.owner("a"), world.starts_of("a")), (None, 1));
}

#[test]
fn claim_of_earlier_incarnation_is_left_to_lapse() {
    let mut world = WorkerWorld::calm(1);
    world.submit("a");
    world.settle();
    world.crash(0);
    world.pass(seconds(8));
    assert_eq!(world.owner("a").as_deref(), Some("n0"), "its process may only be paused");
    world.pass(seconds(8));
    assert_eq!(
        (world.runs_on("a"), world.starts_of("a")),
        (Some(0), 1),
        "then it lapses, and is claimed anew"
    );
}

#[test]
fn first_rank_claims_without_race() {
    let mut world = WorkerWorld::calm(3);
    for n in 0..30 {
        world.submit(&format!("t{n}"));
    }
    world.pass(ms(50));
    assert!(world.shares().iter().sum::<usize>() >= 25, "all but those above a share");
    world.settle();
    assert_eq!(world.shares(), [10, 10, 10]);
    let claims_sent: u64 = world.processes.iter().map(|process| process.machine.stats().claims_sent).sum();
    assert_eq!(claims_sent, 30, "no claim was in vain");
}

#[test]
fn silent_first_rank_delays_claim_of_second() {
    let mut world = WorkerWorld::calm(2);
    world.processes[0].is_cut = true;
    for n in 0..8 {
        world.submit(&format!("t{n}"));
    }
    world.pass(ms(100));
    let at_once = world.shares()[1];
    assert!((1..8).contains(&at_once), "only what ranks first there: {at_once}");
    world.pass(seconds(3));
    assert_eq!(
        world.shares()[1],
        8,
        "the silent worker is still a member, and no peer waits for its lease to end"
    );
}

#[test]
fn incomplete_snapshot_prevents_claims() {
    let mut world = WorkerWorld::calm(1);
    world.fate = WireFault::NotDone;
    world.submit("a");
    world.pass(ms(4));
    let claims_sent = world.processes[0].machine.stats().claims_sent;
    assert_eq!((claims_sent, world.owner("a")), (1, None), "it failed, and would be tried again");
    world.fate = WireFault::Works;
    world.deliver(0, WorkerInput::FeedItem(FeedId::Tasks, FeedItem::SnapshotBegin));
    world.pass(seconds(5));
    assert_eq!(world.processes[0].machine.stats().claims_sent, claims_sent);
    let revision = world.store.revision();
    world.deliver(0, WorkerInput::FeedItem(FeedId::Tasks, FeedItem::Synced(revision)));
    world.pass(ms(10));
    assert_eq!(world.runs_on("a"), Some(0));
}

#[test]
fn unknown_freeze_marks_prevent_claims() {
    let mut world = WorkerWorld::calm(1);
    world.submit("a");
    let pair = world.get(&Key::Task(task("a"))).unwrap();
    let config = world.processes[0].config.clone();
    let mut node = WorkerProcess::new(config, world.layout.clone()).machine;
    let (now, incarnation) = (world.clock(0), Token(Revision(2)));
    let whole = || FeedItem::Synced(Revision(9));
    for event in [
        WorkerInput::Joined { incarnation },
        WorkerInput::FeedItem(FeedId::Tasks, FeedItem::Put(pair)),
        WorkerInput::FeedItem(FeedId::Tasks, whole()),
        WorkerInput::FeedItem(FeedId::Nodes, whole()),
    ] {
        node.handle(event, now);
    }
    let claims = |node: &mut crate::worker::WorkerMachine| {
        std::iter::from_fn(|| node.poll_output())
            .filter(|action| matches!(action, WorkerOutput::Claim { .. }))
            .count()
    };
    assert_eq!(claims(&mut node), 0);
    node.handle(WorkerInput::FeedItem(FeedId::Frozen, whole()), now);
    assert_eq!(claims(&mut node), 1);
}

#[test]
fn lost_session_stops_tasks_without_writes() {
    let mut world = WorkerWorld::calm(1);
    for name in ["a", "b", "c"] {
        world.submit(name);
    }
    world.settle();
    let before = world.store.revision();
    world.processes[0].is_cut = true;
    world.pass(ms(8_800));
    assert_eq!(world.processes[0].handlers.len(), 0, "all have stopped before the lease is over");
    assert_eq!(world.store.revision(), before, "and nothing was written");
    let lost = |notice: &WorkerEvent| matches!(notice, WorkerEvent::Lost { why: LossReason::Lapsed, .. });
    assert_eq!(world.processes[0].events.iter().filter(|notice| lost(notice)).count(), 3);
    world.processes[0].is_cut = false;
    world.pass(seconds(10));
    assert_eq!(world.processes[0].handlers.len(), 3, "after the rejoin they are claimed again");
}

#[test]
fn ended_lease_stops_only_its_tasks() {
    let mut world = WorkerWorld::calm(1);
    world.submit("a");
    world.settle();
    let old = world.processes[0].lease.unwrap();
    world.change_lease(0);
    world.submit("b");
    world.pass(ms(20));
    world.deliver(0, WorkerInput::LeaseLost { lease: old, why: LossReason::Lapsed });
    world.pass(ms(5));
    world.settle();
    assert_eq!((world.starts_of("a"), world.starts_of("b")), (2, 1), "only one of them began again");
}

#[test]
fn deleted_claim_is_lost_and_handler_stops() {
    let mut world = WorkerWorld::calm(1);
    world.submit("a");
    world.settle();
    let key = world.layout.encode(&Key::TaskOwner(task("a")));
    world.interfered.insert(task("a"), world.now);
    world.apply(&Txn::new().then(Op::delete(key)));
    world.pass(ms(3));
    assert_eq!(world.runs_on("a"), None);
    world.settle();
    assert_eq!(
        (world.runs_on("a"), world.starts_of("a")),
        (Some(0), 2),
        "and then the task is claimed again"
    );
}

#[test]
fn late_claim_does_not_resurrect_completed_task() {
    let mut world = WorkerWorld::calm(2);
    world.submit("a");
    world.pass(ms(10));
    let n = world.runs_on("a").unwrap();
    let other = 1 - n;
    world.processes[other].is_cut = true;
    world.finish("a", crate::worker::HandlerEnd::Completed);
    world.pass(ms(10));
    assert!(!world.exists("a"));
    // The other one still sees the task as it was, without an owner.
    let ask = crate::worker::ClaimRequest {
        task: task("a"),
        created: Revision(3),
        nonce: "late".to_owned(),
        owner: r#"{"node":"late"}"#.into(),
        attempt: r#"{"node":"late"}"#.into(),
        has_props: false,
        is_again: false,
    };
    let lease = world.processes[n].lease.unwrap();
    let mut request = ClaimBatch::new(vec![(ask, lease)], ClaimReadMode::Each);
    let txn = request.txns(&world.layout).remove(0);
    request.handle(vec![world.store.apply(&txn, world.now)]);
    assert_eq!(request.into_replies(), [ClaimReply::TaskGone]);
    assert_eq!(world.owner("a"), None);
}

#[test]
fn ended_task_is_not_run_until_forgotten() {
    let mut world = WorkerWorld::calm(2);
    world.submit_as("a", r#"{"ended":true}"#, None);
    world.pass(seconds(10));
    assert_eq!(world.starts_of("a"), 0);
    world.put_raw(&Key::Task(task("a")), "{}");
    world.settle();
    assert_eq!(world.starts_of("a"), 1);
}

#[test]
fn stored_terminal_state_prevents_run() {
    let mut world = WorkerWorld::calm(1);
    world.put_raw(&Key::TaskState(task("a")), r#"{"state":"failed"}"#);
    world.submit_as("a", "{}", None);
    world.pass(seconds(300));
    assert_eq!((world.starts_of("a"), world.exists("a"), world.owner("a")), (0, true, None));
    assert_eq!(world.processes[0].machine.stats().won, 1, "one look is enough");
}

#[test]
fn a_node_runs_only_what_it_can() {
    let mut world = WorkerWorld::new(1, 1);
    world.processes[0].config.selector.kinds.insert("mail".to_owned());
    world.crash(0);
    world.settle();
    world.submit_as("m", r#"{"kind":"mail"}"#, None);
    world.submit_as("x", r#"{"kind":"video"}"#, None);
    world.settle();
    assert_eq!((world.runs_on("m"), world.runs_on("x")), (Some(0), None));
}

#[test]
fn worker_claims_up_to_its_capacity() {
    let mut world = WorkerWorld::new(1, 1);
    world.processes[0].config.capacity = Some(2);
    world.crash(0);
    world.settle();
    for name in ["a", "b", "c"] {
        world.submit(name);
    }
    world.pass(seconds(9));
    assert_eq!(world.shares(), [2]);
    world.finish("a", crate::worker::HandlerEnd::Completed);
    world.settle();
    assert_eq!(world.runs_on("c"), Some(0));
}

#[test]
fn claim_requests_are_bounded() {
    let mut world = WorkerWorld::calm(1);
    world.holds_replies = true;
    world.submit("first");
    world.pass(ms(5));
    for n in 0..290 {
        world.submit(&format!("t{n}"));
    }
    world.pass(seconds(2));
    assert_eq!(world.processes[0].requests, [1, 1], "one that is alone does not wait for company");
    world.release_replies();
    world.pass(ms(20));
    assert_eq!(world.processes[0].requests, [1, 1, 120, 120, 49], "what waited goes out together");
    assert_eq!(world.shares(), [291]);
}

#[test]
fn busy_higher_rank_keeps_its_head_start() {
    let world = WorkerWorld::calm(1);
    let (me, other) = (NodeId::parse("me").unwrap(), NodeId::parse("other").unwrap());
    let mut peers = Peers::new(me, world.layout.clone());
    let record = super::world::node_record(MemberState::Ready);
    let key = world.layout.encode(&Key::Node(other.clone()));
    let (created, modified, version, lease) = (Revision(2), Revision(2), 1, None);
    let pair = crate::kv::KeyValue { key, value: record, created, modified, version, lease };
    let at = Moment::from_ms;
    peers.handle_node(FeedItem::Put(pair), at(0));
    assert!(peers.handle_node(FeedItem::Synced(Revision(2)), at(0)));
    let unowned = Demand::of(Class::ANY, Load { tasks: 100, weight: 100 });
    let claiming = Demand::default();
    let backlog =
        UnownedBacklog { unowned: &unowned, claiming: &claiming, step: ms(250), patience: seconds(3) };
    let tasks = (0..100).map(|n| task(&format!("t{n}")));
    let (mine, theirs): (Vec<_>, Vec<_>) =
        tasks.partition(|task| peers.turn(task, Class::ANY, at(0), backlog).rank == 0);
    assert!(mine.len() > 30 && theirs.len() > 30);
    assert_eq!(peers.turn(&mine[0], Class::ANY, at(5), backlog).at, at(5), "at once");
    assert_eq!(peers.turn(&theirs[0], Class::ANY, at(5), backlog).at, at(255), "a little later");
    peers.note_claim(&other, at(900));
    assert_eq!(peers.turn(&mine[0], Class::ANY, at(5), backlog).at, at(5));
    assert_eq!(
        peers.turn(&theirs[0], Class::ANY, at(5), backlog).at,
        at(1_150),
        "it is working through its share"
    );
    peers.note_claim(&other, at(2_990));
    assert_eq!(
        peers.turn(&theirs[0], Class::ANY, at(5), backlog).at,
        at(3_005),
        "but no peer is waited for longer than three seconds"
    );
}
