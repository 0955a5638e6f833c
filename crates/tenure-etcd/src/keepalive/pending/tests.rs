//! The pairing, told the time.

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
fn an_answer_belongs_to_the_oldest_unanswered_send_of_its_lease() {
    let mut pending = PendingRenewals::new();
    pending.ask(7, PATIENCE, someone("a"));
    assert_eq!(pending.poll_send(at(10)), Some(7));
    pending.ask(7, PATIENCE, someone("b"));
    pending.ask(8, PATIENCE, someone("c"));
    assert_eq!(pending.poll_send(at(20)), Some(7));
    assert_eq!(pending.poll_send(at(30)), Some(8));
    assert_eq!(pending.poll_send(at(30)), None);

    assert_eq!(seen(pending.answered(8)), Some((30, vec!["c"])));
    assert_eq!(seen(pending.answered(7)), Some((10, vec!["a"])));
    assert_eq!(seen(pending.answered(7)), Some((20, vec!["b"])));
    assert_eq!(seen(pending.answered(7)), None);
}

#[test]
fn the_send_of_a_caller_that_left_still_takes_its_answer() {
    let mut pending = PendingRenewals::new();
    let left = someone("left");
    pending.ask(7, PATIENCE, left.clone());
    pending.poll_send(at(10));
    left.is_gone.set(true);
    pending.ask(7, PATIENCE, someone("stays"));
    pending.poll_send(at(20));
    assert_eq!(seen(pending.answered(7)), Some((10, vec!["left"])));
    assert_eq!(seen(pending.answered(7)), Some((20, vec!["stays"])));
}

#[test]
fn a_late_answer_of_an_old_stream_is_paired_with_nothing() {
    let mut pending = PendingRenewals::new();
    pending.ask(7, PATIENCE, someone("a"));
    pending.poll_send(at(10));
    pending.lost();
    assert_eq!(seen(pending.answered(7)), None);
    assert_eq!(pending.poll_send(at(900)), Some(7));
    assert_eq!(seen(pending.answered(7)), Some((900, vec!["a"])));
}

#[test]
fn a_lost_stream_is_repeated_in_order_and_without_those_who_left() {
    let mut pending = PendingRenewals::new();
    let left = someone("left");
    for (lease, caller) in [(3, someone("a")), (1, left.clone()), (2, someone("b"))] {
        pending.ask(lease, PATIENCE, caller);
        pending.poll_send(at(1));
    }
    pending.ask(9, PATIENCE, someone("c"));
    left.is_gone.set(true);
    pending.lost();
    assert_eq!(pending.patience_end(), None);
    let order: Vec<i64> = std::iter::from_fn(|| pending.poll_send(at(2))).collect();
    assert_eq!(order, [9, 3, 2]);
}

#[test]
fn patience_ends_with_the_first_unanswered_send() {
    let mut pending = PendingRenewals::new();
    pending.ask(1, at(300), someone("a"));
    pending.ask(2, at(100), someone("b"));
    pending.poll_send(at(10));
    pending.poll_send(at(20));
    assert_eq!(pending.patience_end(), Some(at(120)));
    pending.answered(2);
    assert_eq!(pending.patience_end(), Some(at(310)));
    pending.answered(1);
    assert_eq!(pending.patience_end(), None);
}

#[test]
fn callers_that_come_and_go_leave_nothing_behind() {
    let mut pending = PendingRenewals::new();
    for _ in 0..10_000 {
        let caller = someone("short");
        pending.ask(7, PATIENCE, caller.clone());
        pending.poll_send(at(1));
        caller.is_gone.set(true);
    }
    let kept: usize = pending.sent.values().flatten().map(|send| send.callers.len()).sum();
    assert!(kept <= 2, "{kept} callers kept");
    assert!(pending.order.len() <= 1 && pending.wanted.len() <= 1);
}

#[test]
fn a_crowd_on_one_lease_shares_two_sends() {
    let mut pending = PendingRenewals::new();
    for name in ["a", "b", "c", "d"] {
        pending.ask(7, PATIENCE, someone(name));
        while pending.poll_send(at(1)).is_some() {}
    }
    assert_eq!(seen(pending.answered(7)), Some((1, vec!["a"])));
    assert_eq!(seen(pending.answered(7)), Some((1, vec!["b", "c", "d"])));
}

#[test]
fn a_refusal_concerns_the_oldest_send_of_all_and_nobody_else() {
    let mut pending = PendingRenewals::new();
    for (lease, name) in [(5, "answered"), (9, "refused"), (1, "next"), (9, "later")] {
        pending.ask(lease, PATIENCE, someone(name));
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
