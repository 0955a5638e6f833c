//! The arithmetic of validity, in virtual milliseconds. The TTL is 6 s: renewed every 2 s, patience
//! 1.5 s, margin 0.5 s.

use proptest::prelude::*;

use super::*;

const TTL: Duration = Duration::from_secs(6);

fn at(ms: u64) -> Moment {
    Moment::from_ms(ms)
}

fn granted() -> KeepAlive {
    KeepAlive::begin(Timing::new(TTL).unwrap(), at(0), TTL, at(10))
}

#[test]
fn validity_counts_from_the_send_time() {
    let mut lease = granted();
    assert_eq!(lease.valid_until(), at(5_500));
    assert_eq!(lease.poll_output(at(2_000)), Some(KeepAliveOutput::Renew));
    lease.handle_renewed(at(2_000), TTL, at(3_400));
    assert_eq!(lease.valid_until(), at(7_500));
    assert_eq!(lease.next_wake(), at(4_000));
}

#[test]
fn hanging_renewal_ends_validity_on_time() {
    let mut lease = granted();
    assert_eq!(lease.poll_output(at(2_000)), Some(KeepAliveOutput::Renew));
    assert_eq!((lease.poll_output(at(5_499)), lease.next_wake()), (None, at(5_500)));
    assert!(!lease.is_valid(at(5_500)));
    assert_eq!(lease.poll_output(at(5_500)), Some(KeepAliveOutput::Stop(LossReason::Lapsed)));
}

/// No timer was set for the end of patience, so a holder with a hanging renewal became suspect only
/// at the next event.
#[test]
fn hanging_renewal_wakes_when_patience_ends() {
    let mut lease = granted();
    assert_eq!(lease.poll_output(at(2_000)), Some(KeepAliveOutput::Renew));
    assert_eq!(lease.next_wake(), at(3_500));
    assert_eq!((lease.poll_output(at(3_500)), lease.next_wake()), (None, at(5_500)));
    assert_eq!(lease.state(at(3_500)), KeepAliveState::Suspect { since: at(2_000) });
}

#[test]
fn reply_after_the_deadline_revives_nothing() {
    let mut lease = granted();
    lease.poll_output(at(2_000));
    lease.handle_renewed(at(2_000), TTL, at(5_500));
    assert_eq!(lease.state(at(5_500)), KeepAliveState::Ended(LossReason::Lapsed));
    assert_eq!(lease.remaining(at(5_500)), Duration::ZERO);
}

#[test]
fn stopped_process_first_sees_its_loss() {
    let mut lease = granted();
    assert_eq!(lease.poll_output(at(60_000)), Some(KeepAliveOutput::Stop(LossReason::Lapsed)));
}

#[test]
fn failed_renewal_is_repeated_and_suspect() {
    let mut lease = granted();
    lease.poll_output(at(2_000));
    lease.handle_failed(Duration::from_millis(100), at(2_300));
    assert_eq!(lease.state(at(2_300)), KeepAliveState::Suspect { since: at(2_000) });
    assert_eq!(lease.poll_output(at(2_399)), None);
    assert_eq!(lease.poll_output(at(2_400)), Some(KeepAliveOutput::Renew));
    lease.handle_renewed(at(2_400), TTL, at(2_500));
    assert_eq!(lease.state(at(2_500)), KeepAliveState::Healthy);
}

#[test]
fn renewal_without_reply_is_suspect_after_patience() {
    let mut lease = granted();
    lease.poll_output(at(2_000));
    assert_eq!(lease.state(at(3_499)), KeepAliveState::Healthy);
    assert_eq!(lease.state(at(3_500)), KeepAliveState::Suspect { since: at(2_000) });
}

#[test]
fn revoked_lease_ends_immediately() {
    let mut lease = granted();
    lease.handle_gone();
    assert!(!lease.is_valid(at(100)));
    assert_eq!(lease.poll_output(at(100)), Some(KeepAliveOutput::Stop(LossReason::Revoked)));
    lease.handle_renewed(at(100), TTL, at(110));
    assert_eq!(lease.state(at(110)), KeepAliveState::Ended(LossReason::Revoked));
}

#[test]
fn late_grant_never_becomes_valid() {
    let lease = KeepAlive::begin(Timing::new(TTL).unwrap(), at(0), TTL, at(5_500));
    assert_eq!(lease.state(at(5_500)), KeepAliveState::Ended(LossReason::Lapsed));
}

#[test]
fn grant_counts_the_granted_ttl() {
    let timing = Timing::new(TTL).unwrap();
    let longer = KeepAlive::begin(timing, at(0), Duration::from_secs(8), at(10));
    assert_eq!(longer.valid_until(), at(7_500));
    let shorter = KeepAlive::begin(timing, at(0), Duration::from_secs(4), at(10));
    assert_eq!(shorter.valid_until(), at(3_500));
}

/// Each reply is a lower bound for the end in the store, so the largest bound counts, in whichever
/// order the replies arrive.
#[test]
fn late_reply_of_earlier_renewal_shortens_nothing() {
    let mut lease = granted();
    lease.handle_renewed(at(3_000), TTL, at(3_100));
    assert_eq!(lease.valid_until(), at(8_500));
    lease.handle_renewed(at(2_000), TTL, at(3_200));
    assert_eq!(lease.valid_until(), at(8_500));
    assert!(lease.is_valid(at(8_499)));
}

#[test]
fn renewal_counts_the_granted_ttl() {
    let (requested, granted) = (TTL, Duration::from_secs(4));
    let mut lease = KeepAlive::begin(Timing::new(requested).unwrap(), at(0), granted, at(10));
    lease.handle_renewed(at(1_000), granted, at(1_100));
    assert_eq!(lease.valid_until(), at(4_500));
    assert!(!lease.is_valid(at(4_500)), "the store can end the lease at 5,000");
}

#[test]
fn too_short_ttl_is_refused_with_numbers() {
    let refused = Timing::new(Duration::from_secs(1)).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "a TTL of 1s is too short: renewing every 333.333333ms, one retry of 250ms and a margin of 500ms need 1.083333333s"
    );
    assert!(Timing::new(Duration::from_millis(1_500)).is_ok());
    assert!(Timing::new(TTL).unwrap().with_margin(Duration::from_secs(3)).is_err());
    assert!(Timing::new(TTL).unwrap().with_renew_every(Duration::ZERO).is_err());
}

#[test]
fn ttl_below_a_second_needs_explicit_margin() {
    let short = Duration::from_millis(400);
    assert!(Timing::quarterly(short, None).is_err());
    let timing = Timing::quarterly(short, Some(Duration::from_millis(50))).unwrap();
    assert_eq!(KeepAlive::begin(timing, at(0), short, at(1)).valid_until(), at(350));
    assert!(Timing::quarterly(Duration::from_secs(1), None).is_ok());
    assert!(Timing::quarterly(Duration::ZERO, Some(Duration::ZERO)).is_err());
}

/// Events of a lease, with the milliseconds that pass before each.
#[derive(Clone, Debug)]
enum LeaseStep {
    Nothing,
    Acknowledged { took_ms: u64 },
    Failed,
    Gone,
}

fn events() -> impl Strategy<Value = (u64, LeaseStep)> {
    let event = prop_oneof![
        Just(LeaseStep::Nothing),
        (0..4_000u64).prop_map(|took_ms| LeaseStep::Acknowledged { took_ms }),
        Just(LeaseStep::Failed),
        Just(LeaseStep::Gone),
    ];
    (0..3_000u64, event)
}

proptest! {
    /// The store counts the TTL of each renewal from its arrival, at or after the send time.
    #[test]
    fn validity_ends_before_the_store_can(story in prop::collection::vec(events(), 0..40)) {
        let mut lease = granted();
        let mut now = 10;
        let mut store_keeps_until = at(0) + TTL;
        let mut sent = None;
        for (passes, event) in story {
            now += passes;
            if lease.poll_output(at(now)) == Some(KeepAliveOutput::Renew) {
                sent = Some(now);
            }
            match (event, sent) {
                (LeaseStep::Acknowledged { took_ms }, Some(sent_ms)) => {
                    store_keeps_until = store_keeps_until.max(at(sent_ms) + TTL);
                    now += took_ms;
                    lease.handle_renewed(at(sent_ms), TTL, at(now));
                    sent = None;
                }
                (LeaseStep::Failed, Some(_)) => {
                    lease.handle_failed(Duration::from_millis(50), at(now));
                    sent = None;
                }
                (LeaseStep::Gone, _) => lease.handle_gone(),
                (LeaseStep::Nothing | LeaseStep::Acknowledged { .. } | LeaseStep::Failed, _) => {}
            }
            prop_assert!(lease.valid_until() + MARGIN_MIN <= store_keeps_until);
            prop_assert!(!lease.is_valid(at(now)) || at(now) + MARGIN_MIN < store_keeps_until);
        }
    }
}
