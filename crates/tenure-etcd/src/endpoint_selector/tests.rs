//! The table of decisions: which member is picked, which is avoided, and how often it is probed.

use std::time::Duration;

use super::{EndpointId, EndpointSelector, ProbeAction, QUARANTINE};

const A: EndpointId = EndpointId(0);
const B: EndpointId = EndpointId(1);
const C: EndpointId = EndpointId(2);

fn ms(value: u64) -> Duration {
    Duration::from_millis(value)
}

#[test]
fn selection_sticks_while_member_serves() {
    let mut selector = EndpointSelector::new(3, 1);
    for second in 0..100 {
        assert_eq!(selector.pick(ms(second * 1_000), &[]), Some(B));
        selector.healthy(B, ms(second * 1_000));
    }
}

#[test]
fn recovered_member_is_not_returned_to() {
    let mut selector = EndpointSelector::new(3, 0);
    selector.failed(A, ms(0), 0.5);
    assert_eq!(selector.pick(ms(0), &[]), Some(B));
    selector.healthy(A, ms(10_000));
    assert_eq!(selector.pick(ms(10_000), &[]), Some(B));
}

#[test]
fn quarantined_member_needs_answered_probe() {
    let mut selector = EndpointSelector::new(1, 0);
    selector.failed(A, ms(0), 0.0);
    assert_eq!(selector.pick(ms(60_000), &[]), None);
    selector.healthy(A, ms(300));
    assert_eq!(selector.pick(ms(300), &[]), Some(A), "the only one there is");
}

#[test]
fn answered_probe_keeps_quarantine_while_others_serve() {
    let mut selector = EndpointSelector::new(2, 0);
    selector.failed(A, ms(0), 0.0);
    assert_eq!(selector.pick(ms(1), &[]), Some(B));
    selector.healthy(A, ms(300));
    selector.failed(B, ms(400), 0.0);
    assert_eq!(selector.pick(ms(400), &[]), Some(A), "no other member is left");
    assert_eq!(selector.probe_action(A), ProbeAction::Release { at: QUARANTINE.mul_f64(0.8) });
}

#[test]
fn hedging_avoids_slow_member_and_keeps_selection() {
    let mut selector = EndpointSelector::new(3, 0);
    assert_eq!(selector.pick(ms(0), &[A]), Some(B));
    assert_eq!(selector.pick(ms(0), &[A, B]), Some(C));
    assert_eq!(selector.pick(ms(0), &[A, B, C]), Some(A), "all avoided is none avoided");
    assert_eq!(selector.pick(ms(0), &[]), Some(A));
    selector.prefer(C);
    assert_eq!(selector.pick(ms(0), &[]), Some(C));
}

#[test]
fn probe_pause_grows_to_one_second() {
    let mut selector = EndpointSelector::new(1, 0);
    let mut now = Duration::ZERO;
    let mut pauses = Vec::new();
    for _ in 0..8 {
        selector.failed(A, now, 0.999);
        let ProbeAction::Probe { at } = selector.probe_action(A) else {
            panic!("a failed member is knocked at")
        };
        pauses.push(at - now);
        now = at;
    }
    assert!(pauses[0] <= ms(250));
    assert!(pauses.windows(2).all(|pair| pair[0] <= pair[1]));
    assert!(pauses.iter().all(|pause| *pause <= ms(2_000)));
}

#[test]
fn answered_probe_resets_probe_pause() {
    let mut selector = EndpointSelector::new(1, 0);
    for _ in 0..8 {
        selector.failed(A, ms(0), 0.999);
    }
    selector.healthy(A, ms(100));
    selector.failed(A, ms(200), 0.999);
    let ProbeAction::Probe { at } = selector.probe_action(A) else { panic!("a failed member is knocked at") };
    assert!(at <= ms(450), "{at:?}");
}

#[test]
fn suspect_member_is_usable_and_probed() {
    let mut selector = EndpointSelector::new(2, 0);
    assert!(selector.suspect(A));
    assert!(!selector.suspect(A), "the watchman knows already");
    assert_eq!(selector.pick(ms(0), &[]), Some(A));
    assert_eq!(selector.probe_action(A), ProbeAction::Probe { at: Duration::ZERO });
    selector.healthy(A, ms(1));
    assert_eq!(selector.probe_action(A), ProbeAction::Idle);
}

#[test]
fn at_most_four_connects_per_window() {
    let mut selector = EndpointSelector::new(3, 0);
    let mut granted: Vec<Duration> = Vec::new();
    // A caller reserves a connect every 10 ms for a minute, and waits until it may be made.
    let mut now = Duration::ZERO;
    while now < Duration::from_secs(60) {
        let at = selector.reserve_connect(now);
        assert!(at >= now);
        granted.push(at);
        now = at + ms(10);
    }
    for (index, start) in granted.iter().enumerate() {
        let in_window =
            granted[index..].iter().take_while(|at| **at - *start < Duration::from_secs(1)).count();
        assert!(in_window <= 4, "{in_window} connects in the second after {start:?}");
    }
    assert!(granted.len() > 200, "the limit must not starve us either: {}", granted.len());
}
