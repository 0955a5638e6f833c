//! The pairing of replies with sends, with the time as an argument.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use super::{AnsweredRenewal, PendingRenewals, RenewalCaller};

#[derive(Debug, Clone)]
struct TestCaller {
    name: &'static str,
    is_gone: Rc<Cell<bool>>,
}

impl RenewalCaller for TestCaller {
    fn is_gone(&self) -> bool {
        self.is_gone.get()
    }
}

fn someone(name: &'static str) -> TestCaller {
    TestCaller { name, is_gone: Rc::default() }
}

fn at(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

const PATIENCE: Duration = Duration::from_millis(500);

fn seen(answered: Option<AnsweredRenewal<TestCaller>>) -> Option<(u128, Vec<&'static str>)> {
    answered.map(|answered| {
        (answered.sent_at.as_millis(), answered.callers.iter().map(|caller| caller.name).collect())
    })
}

#[test]
fn reply_belongs_to_oldest_send() {
    let mut pending = PendingRenewals::new();
    pending.request(7, PATIENCE, someone("a"));
    assert_eq!(pending.poll_send(at(10)), Some(7));
    pending.request(7, PATIENCE, someone("b"));
    pending.request(8, PATIENCE, someone("c"));
    assert_eq!(pending.poll_send(at(20)), Some(7));
    assert_eq!(pending.poll_send(at(30)), Some(8));
    assert_eq!(pending.poll_send(at(30)), None);

    assert_eq!(seen(pending.answered(8)), Some((30, vec!["c"])));
    assert_eq!(seen(pending.answered(7)), Some((10, vec!["a"])));
    assert_eq!(seen(pending.answered(7)), Some((20, vec!["b"])));
    assert_eq!(seen(pending.answered(7)), None);
}

#[test]
fn cancelled_caller_keeps_its_send() {
    let mut pending = PendingRenewals::new();
    let left = someone("left");
    pending.request(7, PATIENCE, left.clone());
    pending.poll_send(at(10));
    left.is_gone.set(true);
    pending.request(7, PATIENCE, someone("stays"));
    pending.poll_send(at(20));
    assert_eq!(seen(pending.answered(7)), Some((10, vec!["left"])));
    assert_eq!(seen(pending.answered(7)), Some((20, vec!["stays"])));
}

#[test]
fn reply_of_old_stream_is_ignored() {
    let mut pending = PendingRenewals::new();
    pending.request(7, PATIENCE, someone("a"));
    pending.poll_send(at(10));
    pending.lost();
    assert_eq!(seen(pending.answered(7)), None);
    assert_eq!(pending.poll_send(at(900)), Some(7));
    assert_eq!(seen(pending.answered(7)), Some((900, vec!["a"])));
}

#[test]
fn lost_stream_repeats_live_requests_in_order() {
    let mut pending = PendingRenewals::new();
    let left = someone("left");
    for (lease, caller) in [(3, someone("a")), (1, left.clone()), (2, someone("b"))] {
        pending.request(lease, PATIENCE, caller);
        pending.poll_send(at(1));
    }
    pending.request(9, PATIENCE, someone("c"));
    left.is_gone.set(true);
    pending.lost();
    assert_eq!(pending.patience_end(), None);
    let order: Vec<i64> = std::iter::from_fn(|| pending.poll_send(at(2))).collect();
    assert_eq!(order, [9, 3, 2]);
}

#[test]
fn timeout_counts_from_first_unanswered_send() {
    let mut pending = PendingRenewals::new();
    pending.request(1, at(300), someone("a"));
    pending.request(2, at(100), someone("b"));
    pending.poll_send(at(10));
    pending.poll_send(at(20));
    assert_eq!(pending.patience_end(), Some(at(120)));
    pending.answered(2);
    assert_eq!(pending.patience_end(), Some(at(310)));
    pending.answered(1);
    assert_eq!(pending.patience_end(), None);
}

#[test]
fn cancelled_callers_leave_no_entries() {
    let mut pending = PendingRenewals::new();
    for _ in 0..10_000 {
        let caller = someone("short");
        pending.request(7, PATIENCE, caller.clone());
        pending.poll_send(at(1));
        caller.is_gone.set(true);
    }
    let kept: usize = pending.sent.values().flatten().map(|send| send.callers.len()).sum();
    assert!(kept <= 2, "{kept} callers kept");
    assert!(pending.order.len() <= 1 && pending.wanted.len() <= 1);
}

#[test]
fn callers_of_one_lease_share_two_sends() {
    let mut pending = PendingRenewals::new();
    for name in ["a", "b", "c", "d"] {
        pending.request(7, PATIENCE, someone(name));
        while pending.poll_send(at(1)).is_some() {}
    }
    assert_eq!(seen(pending.answered(7)), Some((1, vec!["a"])));
    assert_eq!(seen(pending.answered(7)), Some((1, vec!["b", "c", "d"])));
}

#[test]
fn refusal_ends_only_oldest_send() {
    let mut pending = PendingRenewals::new();
    for (lease, name) in [(5, "answered"), (9, "refused"), (1, "next"), (9, "later")] {
        pending.request(lease, PATIENCE, someone(name));
        pending.poll_send(at(1));
    }
    pending.answered(5);
    let refused: Vec<&str> = pending.refused().iter().map(|caller| caller.name).collect();
    assert_eq!(refused, ["refused"]);
    pending.lost();
    let rest: Vec<i64> = std::iter::from_fn(|| pending.poll_send(at(2))).collect();
    assert_eq!(rest, [1, 9]);
    assert!(PendingRenewals::<TestCaller>::new().refused().is_empty());
}
