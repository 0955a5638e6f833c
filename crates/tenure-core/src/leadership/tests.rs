//! One leadership in virtual milliseconds. The TTL is 4 s: renewed every second, patience 1 s, margin 0.5 s.

mod world;

use super::*;
use crate::keepalive::Terms;

const TTL: Duration = Duration::from_secs(4);

fn at(ms: u64) -> Moment {
    Moment::from_ms(ms)
}

fn plan(fencing: FencingSupport) -> Plan {
    Plan { terms: Terms::quarterly(TTL, None).unwrap(), stop_within: Duration::from_secs(1), fencing }
}

/// What happens to a leadership, with the millisecond at which it does.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// It is polled, and must ask for this.
    Asks(u64, Option<Ask>),
    /// What was asked at the first moment is answered at the second.
    Answered(u64, Ask, Answer, u64),
    Leave(u64),
    Stopped(u64),
    /// It must stand like this.
    Stands(u64, Standing),
    /// It must want to be woken then.
    Wakes(Option<u64>),
}

use Answer::{No, NotApplied, Unknown, Yes};
use Ask::{Delete, Insert, Swap, Token as AskToken};
use Step::{Answered, Asks, Leave, Stands, Stopped, Wakes};

fn check_with(fencing: FencingSupport, story: &[Step]) {
    let mut leadership = Leadership::new(plan(fencing), at(0));
    for (index, step) in story.iter().enumerate() {
        match *step {
            Asks(ms, ask) => assert_eq!(leadership.poll_ask(at(ms)), ask, "step {index}: {step:?}"),
            Answered(asked, ask, answer, ms) => {
                leadership.handle_answer(ask, at(asked), answer, 1.0, at(ms));
            }
            Leave(ms) => leadership.leave(at(ms)),
            Stopped(ms) => leadership.handle_stopped(at(ms)),
            Stands(ms, standing) => {
                assert_eq!(leadership.standing(at(ms)), standing, "step {index}: {step:?}");
                let is_leading = standing == Standing::Leading;
                assert_eq!(leadership.is_valid(at(ms)), is_leading, "step {index}: {step:?}");
                assert_eq!(!leadership.remaining(at(ms)).is_zero(), is_leading, "step {index}: {step:?}");
            }
            Wakes(wake) => assert_eq!(leadership.next_wake(), wake.map(at), "step {index}: {step:?}"),
        }
    }
}

fn check(story: &[Step]) {
    check_with(FencingSupport::None, story);
}

const LEADING: Standing = Standing::Leading;

fn over(end: End) -> Standing {
    Standing::Over(end)
}

fn left(left: Left) -> Standing {
    Standing::Over(End::Left(left))
}

#[test]
fn a_leader_is_valid_from_the_answer_until_the_margin_before_what_was_sent_ends() {
    check(&[
        Asks(0, Some(Insert)),
        Stands(10, Standing::Acquiring),
        Answered(0, Insert, Yes, 300),
        Stands(300, LEADING),
        Wakes(Some(1_000)),
        Stands(3_499, LEADING),
        Stands(3_500, over(End::Lapsed)),
    ]);
}

#[test]
fn a_renewal_goes_out_every_quarter_and_counts_from_when_it_was_sent() {
    check(&[
        Asks(0, Some(Insert)),
        Answered(0, Insert, Yes, 10),
        Asks(999, None),
        Asks(1_000, Some(Swap)),
        Answered(1_000, Swap, Yes, 1_900),
        Wakes(Some(2_000)),
        Stands(4_499, LEADING),
        Stands(4_500, over(End::Lapsed)),
    ]);
}

#[test]
fn a_storage_that_hangs_is_asked_again_and_ends_leadership_on_time() {
    check(&[
        Asks(0, Some(Insert)),
        Answered(0, Insert, Yes, 10),
        Asks(1_000, Some(Swap)),
        Asks(1_999, None),
        Asks(2_000, Some(Swap)),
        Asks(3_000, Some(Swap)),
        Wakes(Some(3_500)),
        Asks(3_500, None),
        Stands(3_500, over(End::Lapsed)),
        Wakes(None),
    ]);
}

#[test]
fn an_answer_to_an_older_swap_renews_from_when_that_one_was_sent() {
    check(&[
        Asks(0, Some(Insert)),
        Answered(0, Insert, Yes, 10),
        Asks(1_000, Some(Swap)),
        Asks(2_000, Some(Swap)),
        Answered(1_000, Swap, Yes, 2_500),
        Stands(4_499, LEADING),
        Stands(4_500, over(End::Lapsed)),
    ]);
}

#[test]
fn three_failed_swaps_and_a_good_one_keep_it() {
    check(&[
        Asks(0, Some(Insert)),
        Answered(0, Insert, Yes, 10),
        Asks(1_000, Some(Swap)),
        Answered(1_000, Swap, NotApplied, 1_010),
        Asks(1_109, None),
        Asks(1_110, Some(Swap)),
        Answered(1_110, Swap, Unknown, 1_120),
        Asks(1_320, Some(Swap)),
        Answered(1_320, Swap, Unknown, 1_330),
        Asks(1_730, Some(Swap)),
        Answered(1_730, Swap, Yes, 1_740),
        Stands(5_229, LEADING),
        Stands(5_230, over(End::Lapsed)),
    ]);
}

#[test]
fn a_mismatch_ends_it_at_once_and_nothing_is_deleted() {
    check(&[
        Asks(0, Some(Insert)),
        Answered(0, Insert, Yes, 10),
        Asks(1_000, Some(Swap)),
        Answered(1_000, Swap, No, 1_010),
        Stands(1_010, over(End::Taken)),
        Asks(1_010, None),
        Wakes(None),
    ]);
}

#[test]
fn a_lost_answer_to_the_insert_is_settled_by_swapping_the_value_for_itself() {
    check(&[
        Asks(0, Some(Insert)),
        Answered(0, Insert, Unknown, 100),
        Asks(100, Some(Swap)),
        Answered(100, Swap, Yes, 150),
        Stands(150, LEADING),
        Stands(3_599, LEADING),
        Stands(3_600, over(End::Lapsed)),
    ]);
}

#[test]
fn an_insert_that_was_lost_before_it_arrived_is_not_taken() {
    check(&[
        Asks(0, Some(Insert)),
        Answered(0, Insert, Unknown, 100),
        Asks(100, Some(Swap)),
        Answered(100, Swap, No, 150),
        Stands(150, over(End::NotTaken)),
    ]);
}

#[test]
fn what_cannot_be_settled_is_given_back_until_its_ttl_is_over() {
    check(&[
        Asks(0, Some(Insert)),
        Answered(0, Insert, Unknown, 100),
        Asks(100, Some(Swap)),
        Answered(100, Swap, Unknown, 150),
        Stands(150, Standing::Leaving(End::NotTaken)),
        Asks(150, Some(Delete)),
        Answered(150, Delete, Unknown, 160),
        Asks(259, None),
        Asks(260, Some(Delete)),
        Asks(1_260, Some(Delete)),
        Answered(260, Delete, No, 1_300),
        Stands(1_300, Standing::Leaving(End::NotTaken)),
        Answered(1_260, Delete, Yes, 1_400),
        Stands(1_400, over(End::NotTaken)),
    ]);
}

/// The swap overtook the insert: its no says nothing about what came later.
#[test]
fn the_settling_swap_cannot_take_away_what_the_insert_gave() {
    check(&[
        Asks(0, Some(Insert)),
        Asks(1_000, Some(Swap)),
        Answered(0, Insert, Yes, 1_100),
        Answered(1_000, Swap, No, 1_200),
        Stands(1_200, LEADING),
        Stands(3_500, over(End::Lapsed)),
    ]);
}

#[test]
fn an_insert_that_arrives_after_it_was_undone_is_undone_again() {
    check(&[
        Asks(0, Some(Insert)),
        Asks(1_000, Some(Swap)),
        Answered(1_000, Swap, No, 1_010),
        Asks(1_010, Some(Delete)),
        Answered(1_010, Delete, No, 1_020),
        Stands(1_020, Standing::Leaving(End::NotTaken)),
        Wakes(Some(5_000)),
        Answered(0, Insert, Yes, 1_500),
        Asks(1_500, Some(Delete)),
        Answered(1_500, Delete, Yes, 1_600),
        Stands(1_600, over(End::NotTaken)),
    ]);
}

#[test]
fn a_deletion_that_the_insert_overtook_is_not_believed() {
    check(&[
        Asks(0, Some(Insert)),
        Asks(1_000, Some(Swap)),
        Answered(1_000, Swap, No, 1_010),
        Asks(1_010, Some(Delete)),
        Answered(0, Insert, Yes, 1_100),
        Answered(1_010, Delete, No, 1_200),
        Asks(1_200, Some(Delete)),
        Answered(1_200, Delete, Yes, 1_300),
        Stands(1_300, over(End::NotTaken)),
    ]);
}

#[test]
fn leaving_withdraws_first_then_waits_for_the_work_then_deletes() {
    check(&[
        Asks(0, Some(Insert)),
        Answered(0, Insert, Yes, 10),
        Leave(500),
        Stands(500, Standing::Stopping),
        Asks(600, None),
        Wakes(Some(1_500)),
        Stopped(700),
        Asks(700, Some(Delete)),
        Stands(700, Standing::Leaving(End::Left(Left::Nothing))),
        Answered(700, Delete, Yes, 800),
        Stands(800, left(Left::Nothing)),
    ]);
}

#[test]
fn work_that_does_not_stop_leaves_the_key_to_lapse() {
    check(&[
        Asks(0, Some(Insert)),
        Answered(0, Insert, Yes, 10),
        Leave(500),
        Asks(1_500, None),
        Stands(1_500, left(Left::StillRunning)),
        Stopped(1_600),
        Asks(1_600, None),
    ]);
}

/// The work may take a second to stop, but not longer than the validity that is left.
#[test]
fn the_wait_for_the_work_ends_with_validity() {
    check(&[
        Asks(0, Some(Insert)),
        Answered(0, Insert, Yes, 10),
        Leave(3_400),
        Wakes(Some(3_500)),
        Stopped(3_500),
        Stands(3_500, left(Left::StillRunning)),
    ]);
}

#[test]
fn what_was_gone_already_is_said_to_be_gone() {
    check(&[
        Asks(0, Some(Insert)),
        Answered(0, Insert, Yes, 10),
        Leave(500),
        Stopped(500),
        Asks(500, Some(Delete)),
        Answered(500, Delete, No, 510),
        Stands(510, left(Left::Gone)),
    ]);
}

#[test]
fn a_deletion_whose_answer_was_lost_is_not_taken_for_somebody_else_s() {
    check(&[
        Asks(0, Some(Insert)),
        Answered(0, Insert, Yes, 10),
        Leave(500),
        Stopped(500),
        Asks(500, Some(Delete)),
        Answered(500, Delete, Unknown, 510),
        Asks(610, Some(Delete)),
        Answered(610, Delete, No, 620),
        Stands(620, left(Left::Nothing)),
    ]);
}

#[test]
fn a_deletion_that_nobody_answers_is_given_up_when_the_ttl_is_over() {
    check(&[
        Asks(0, Some(Insert)),
        Answered(0, Insert, Yes, 10),
        Asks(1_000, Some(Swap)),
        Leave(1_500),
        Stopped(1_500),
        Asks(1_500, Some(Delete)),
        Asks(2_500, Some(Delete)),
        Asks(3_500, Some(Delete)),
        Asks(4_500, Some(Delete)),
        Wakes(Some(5_000)),
        Asks(5_000, None),
        Stands(5_000, left(Left::Unconfirmed)),
    ]);
}

#[test]
fn one_who_is_not_wanted_any_more_gives_back_what_the_insert_brings() {
    check(&[
        Asks(0, Some(Insert)),
        Leave(50),
        Stands(50, Standing::Acquiring),
        Answered(0, Insert, Yes, 100),
        Asks(100, Some(Delete)),
        Answered(100, Delete, Yes, 110),
        Stands(110, left(Left::Nothing)),
    ]);
    check(&[Asks(0, Some(Insert)), Leave(50), Answered(0, Insert, No, 100), Stands(100, over(End::Held))]);
    check(&[
        Asks(0, Some(Insert)),
        Leave(50),
        Answered(0, Insert, Unknown, 100),
        Asks(100, Some(Delete)),
        Answered(100, Delete, No, 110),
        Stands(110, left(Left::Gone)),
    ]);
}

#[test]
fn an_answer_that_comes_too_late_to_act_on_is_given_back() {
    check(&[
        Asks(0, Some(Insert)),
        Asks(1_000, Some(Swap)),
        Answered(1_000, Swap, Unknown, 1_010),
        Asks(1_010, Some(Delete)),
        Answered(0, Insert, Yes, 3_600),
        Stands(3_600, Standing::Leaving(End::NotTaken)),
    ]);
}

#[test]
fn nobody_leads_before_the_token_is_known() {
    check_with(
        FencingSupport::Token,
        &[
            Asks(0, Some(Insert)),
            Answered(0, Insert, Yes, 10),
            Stands(10, Standing::Acquiring),
            Asks(10, Some(AskToken)),
            Answered(10, AskToken, Unknown, 20),
            Wakes(Some(120)),
            Asks(120, Some(AskToken)),
            Asks(1_000, Some(Swap)),
            Asks(1_120, Some(AskToken)),
            Answered(120, AskToken, Yes, 1_200),
            Stands(1_200, LEADING),
        ],
    );
    check_with(
        FencingSupport::Token,
        &[
            Asks(0, Some(Insert)),
            Answered(0, Insert, Yes, 10),
            Asks(10, Some(AskToken)),
            Answered(10, AskToken, No, 20),
            Stands(20, over(End::Taken)),
        ],
    );
}

#[test]
fn one_who_never_learns_the_token_gives_back_when_validity_ends() {
    check_with(
        FencingSupport::Token,
        &[
            Asks(0, Some(Insert)),
            Answered(0, Insert, Yes, 10),
            Asks(10, Some(AskToken)),
            Asks(3_500, Some(Delete)),
            Stands(3_500, Standing::Leaving(End::Lapsed)),
        ],
    );
}
