//! Slots, names and wakes.

use std::time::Duration;

use tenure_core::queue::{EnterReply, LockMode, QueueOutput};

use super::*;
use crate::store::LeaseId;

const NOW: Moment = Moment::from_ms(1_000);

fn enter(queues: &mut LocalQueues, name: &'static str) -> (QueueSlot, WaiterId) {
    let slot = queues.enter(&Bytes::from_static(name.as_bytes()));
    let enter = |local: &mut LocalQueue| local.machine.enter(LeaseId::new(7).unwrap(), LockMode::Exclusive);
    (slot, queues.feed(slot, enter).unwrap())
}

/// Replies to the enter of a queue, and lets it settle.
fn reply(queues: &mut LocalQueues, slot: QueueSlot, reply: EnterReply) {
    let local = queues.get_mut(slot).unwrap();
    let Some(QueueOutput::Enter { id, epoch, .. }) = local.machine.poll_output() else { panic!("an enter") };
    local.machine.handle_entered(id, epoch, reply, 0.0, NOW);
    while local.machine.poll_event().is_some() {}
    queues.settle(slot);
}

#[test]
fn reused_slot_has_no_former_waiter() {
    let mut queues = LocalQueues::new(0);
    let (slot, former) = enter(&mut queues, "a/");
    reply(&mut queues, slot, EnterReply::LeaseGone);
    assert!(queues.get(slot).is_none() && queues.is_empty());
    assert_eq!(queues.feed(slot, |_| ()), None);
    let (again, id) = enter(&mut queues, "b/");
    assert_eq!(again, slot);
    assert_ne!(id, former);
    assert_eq!(queues.get(slot).unwrap().machine.queue_key(former), None);
}

#[test]
fn entered_queue_is_ready_once() {
    let mut queues = LocalQueues::new(0);
    let (slot, _) = enter(&mut queues, "a/");
    assert_eq!(enter(&mut queues, "a/").0, slot);
    assert_eq!((queues.next_ready(), queues.next_ready()), (Some(slot), None));
    assert_eq!(queues.slot(&"a/".into()), Some(slot));
    assert_eq!(queues.slot(&"b/".into()), None);
    assert_eq!(queues.all(), [slot]);
}

#[test]
fn early_wake_is_followed_by_the_next() {
    let mut queues = LocalQueues::new(0);
    let (slot, _) = enter(&mut queues, "a/");
    reply(&mut queues, slot, EnterReply::NotDone);
    let first = queues.next_wake().expect("it retries");
    queues.handle_time(first);
    assert_eq!(queues.next_wake(), None);
    reply(&mut queues, slot, EnterReply::NotDone);
    assert!(queues.next_wake().is_some());
    // The queue is left, and the next in its slot has nothing to wait for.
    queues.handle_time(NOW + Duration::from_secs(9));
    reply(&mut queues, slot, EnterReply::LeaseGone);
    enter(&mut queues, "b/");
    queues.handle_time(NOW + Duration::from_secs(99));
    assert_eq!(queues.next_wake(), None);
}

#[test]
fn thousand_left_queues_keep_bounded_memory() {
    let mut queues = LocalQueues::new(0);
    let names: Vec<Bytes> = (0..1_000).map(|n| format!("{n}/").into()).collect();
    for name in &names {
        let slot = queues.enter(name);
        queues.settle(slot);
    }
    assert_eq!(queues.slots.len(), 1, "each was left before the next was entered");
    let slots: Vec<QueueSlot> = names.iter().map(|name| queues.enter(name)).collect();
    for slot in slots {
        queues.settle(slot);
    }
    assert!(queues.is_empty());
    assert_eq!(queues.slots.iter().flatten().count(), SPARE_MAX);
    assert_eq!(queues.free.len(), 1_000);
}
