//! The arithmetic of holding, in virtual milliseconds. The TTL is 6 s: renewed every 2 s, patience 1.5 s, margin 0.5 s.

use proptest::prelude::*;

use super::*;

const TTL: Duration = Duration::from_secs(6);

fn at(ms: u64) -> Moment {
    Moment::from_ms(ms)
}

fn hold() -> Hold {
    Hold::begin(Terms::new(TTL).unwrap(), at(0), TTL, at(10))
}

#[test]
fn validity_counts_from_sending_not_from_the_answer() {
    let mut hold = hold();
    assert_eq!(hold.valid_until(), at(5_500));
    assert_eq!(hold.poll_action(at(2_000)), Some(Action::Renew));
    hold.handle_renewed(at(2_000), TTL, at(3_400));
    assert_eq!(hold.valid_until(), at(7_500));
    assert_eq!(hold.next_wake(), at(4_000));
}

#[test]
fn belief_ends_even_while_a_renewal_hangs() {
    let mut hold = hold();
    assert_eq!(hold.poll_action(at(2_000)), Some(Action::Renew));
    assert_eq!((hold.poll_action(at(5_499)), hold.next_wake()), (None, at(5_500)));
    assert!(!hold.is_valid(at(5_500)));
    assert_eq!(hold.poll_action(at(5_500)), Some(Action::Stop(LossReason::Lapsed)));
}

/// Nobody was woken when patience ended, so a holder whose renewal hung was told of it only by the next event, if at all.
#[test]
fn a_hanging_renewal_wakes_the_holder_when_patience_ends() {
    let mut hold = hold();
    assert_eq!(hold.poll_action(at(2_000)), Some(Action::Renew));
    assert_eq!(hold.next_wake(), at(3_500));
    assert_eq!((hold.poll_action(at(3_500)), hold.next_wake()), (None, at(5_500)));
    assert_eq!(hold.standing(at(3_500)), Standing::Suspect { since: at(2_000) });
}

#[test]
fn an_answer_after_the_end_revives_nothing() {
    let mut hold = hold();
    hold.poll_action(at(2_000));
    hold.handle_renewed(at(2_000), TTL, at(5_500));
    assert_eq!(hold.standing(at(5_500)), Standing::Over(LossReason::Lapsed));
    assert_eq!(hold.remaining(at(5_500)), Duration::ZERO);
}

#[test]
fn a_process_that_was_stopped_past_its_end_learns_it_first_thing() {
    let mut hold = hold();
    assert_eq!(hold.poll_action(at(60_000)), Some(Action::Stop(LossReason::Lapsed)));
}

#[test]
fn a_failed_renewal_is_tried_again_and_makes_the_holder_suspect() {
    let mut hold = hold();
    hold.poll_action(at(2_000));
    hold.handle_failed(Duration::from_millis(100), at(2_300));
    assert_eq!(hold.standing(at(2_300)), Standing::Suspect { since: at(2_000) });
    assert_eq!(hold.poll_action(at(2_399)), None);
    assert_eq!(hold.poll_action(at(2_400)), Some(Action::Renew));
    hold.handle_renewed(at(2_400), TTL, at(2_500));
    assert_eq!(hold.standing(at(2_500)), Standing::Sound);
}

#[test]
fn an_unanswered_renewal_makes_the_holder_suspect_after_its_patience() {
    let mut hold = hold();
    hold.poll_action(at(2_000));
    assert_eq!(hold.standing(at(3_499)), Standing::Sound);
    assert_eq!(hold.standing(at(3_500)), Standing::Suspect { since: at(2_000) });
}

#[test]
fn what_the_store_says_is_over_is_over_at_once() {
    let mut hold = hold();
    hold.handle_gone();
    assert!(!hold.is_valid(at(100)));
    assert_eq!(hold.poll_action(at(100)), Some(Action::Stop(LossReason::Revoked)));
    hold.handle_renewed(at(100), TTL, at(110));
    assert_eq!(hold.standing(at(110)), Standing::Over(LossReason::Revoked));
}

#[test]
fn a_grant_that_took_too_long_is_over_before_it_began() {
    let hold = Hold::begin(Terms::new(TTL).unwrap(), at(0), TTL, at(5_500));
    assert_eq!(hold.standing(at(5_500)), Standing::Over(LossReason::Lapsed));
}

#[test]
fn the_granted_ttl_counts_and_not_the_one_asked_for() {
    let terms = Terms::new(TTL).unwrap();
    let longer = Hold::begin(terms, at(0), Duration::from_secs(8), at(10));
    assert_eq!(longer.valid_until(), at(7_500));
    let shorter = Hold::begin(terms, at(0), Duration::from_secs(4), at(10));
    assert_eq!(shorter.valid_until(), at(3_500));
}

/// Each reply is a lower bound for the end in the store, so the largest bound counts, in whichever order the replies arrive.
#[test]
fn late_reply_of_earlier_renewal_shortens_nothing() {
    let mut hold = hold();
    hold.handle_renewed(at(3_000), TTL, at(3_100));
    assert_eq!(hold.valid_until(), at(8_500));
    hold.handle_renewed(at(2_000), TTL, at(3_200));
    assert_eq!(hold.valid_until(), at(8_500));
    assert!(hold.is_valid(at(8_499)));
}

#[test]
fn renewal_counts_the_granted_ttl() {
    let (asked, granted) = (TTL, Duration::from_secs(4));
    let mut hold = Hold::begin(Terms::new(asked).unwrap(), at(0), granted, at(10));
    hold.handle_renewed(at(1_000), granted, at(1_100));
    assert_eq!(hold.valid_until(), at(4_500));
    assert!(!hold.is_valid(at(4_500)), "the store can end the lease at 5,000");
}

#[test]
fn a_ttl_that_one_lost_answer_would_end_is_refused_with_the_numbers() {
    let refused = Terms::new(Duration::from_secs(1)).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "a TTL of 1s is too short: renewing every 333.333333ms, one retry of 250ms and a margin of 500ms need 1.083333333s"
    );
    assert!(Terms::new(Duration::from_millis(1_500)).is_ok());
    assert!(Terms::new(TTL).unwrap().with_margin(Duration::from_secs(3)).is_err());
    assert!(Terms::new(TTL).unwrap().with_renew_every(Duration::ZERO).is_err());
}

#[test]
fn a_ttl_below_a_second_needs_a_margin_of_its_own() {
    let short = Duration::from_millis(400);
    assert!(Terms::quarterly(short, None).is_err());
    let terms = Terms::quarterly(short, Some(Duration::from_millis(50))).unwrap();
    assert_eq!(Hold::begin(terms, at(0), short, at(1)).valid_until(), at(350));
    assert!(Terms::quarterly(Duration::from_secs(1), None).is_ok());
    assert!(Terms::quarterly(Duration::ZERO, Some(Duration::ZERO)).is_err());
}

/// What can happen to a holder, with the milliseconds that pass before it.
#[derive(Clone, Debug)]
enum Happens {
    Nothing,
    Answered { took_ms: u64 },
    Failed,
    Gone,
}

fn happens() -> impl Strategy<Value = (u64, Happens)> {
    let event = prop_oneof![
        Just(Happens::Nothing),
        (0..4_000u64).prop_map(|took_ms| Happens::Answered { took_ms }),
        Just(Happens::Failed),
        Just(Happens::Gone),
    ];
    (0..3_000u64, event)
}

proptest! {
    /// The store gives each renewal its whole TTL from when it arrived, which is at or after it was sent.
    #[test]
    fn a_holder_never_believes_longer_than_the_store_may_agree(story in prop::collection::vec(happens(), 0..40)) {
        let mut hold = hold();
        let mut now = 10;
        let mut store_agrees_until = at(0) + TTL;
        let mut sent = None;
        for (passes, event) in story {
            now += passes;
            if hold.poll_action(at(now)) == Some(Action::Renew) {
                sent = Some(now);
            }
            match (event, sent) {
                (Happens::Answered { took_ms }, Some(sent_ms)) => {
                    store_agrees_until = store_agrees_until.max(at(sent_ms) + TTL);
                    now += took_ms;
                    hold.handle_renewed(at(sent_ms), TTL, at(now));
                    sent = None;
                }
                (Happens::Failed, Some(_)) => {
                    hold.handle_failed(Duration::from_millis(50), at(now));
                    sent = None;
                }
                (Happens::Gone, _) => hold.handle_gone(),
                (Happens::Nothing | Happens::Answered { .. } | Happens::Failed, _) => {}
            }
            prop_assert!(hold.valid_until() + MARGIN_MIN <= store_agrees_until);
            prop_assert!(!hold.is_valid(at(now)) || at(now) + MARGIN_MIN < store_agrees_until);
        }
    }
}
