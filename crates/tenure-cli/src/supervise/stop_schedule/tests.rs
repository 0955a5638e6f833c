//! The table of cases: what happened when, and what is sent for it.

use super::*;

const GRACE: Duration = Duration::from_secs(5);

fn at(seconds: u64) -> Moment {
    Moment::from_ms(seconds * 1_000)
}

fn until(term: u64, kill: u64) -> ScheduleInput {
    ScheduleInput::StopTimes(StopTimes {
        deadlines: Some(Deadlines { term: at(term), kill: at(kill) }),
        order: SupervisorAction::Run,
    })
}

fn order(order: SupervisorAction) -> ScheduleInput {
    ScheduleInput::StopTimes(StopTimes { deadlines: None, order })
}

/// Plays events at their seconds; after each, what must have been sent.
fn check(grace: Option<Duration>, story: &[(u64, ScheduleInput, &[Signal])]) -> StopSchedule {
    let mut course = StopSchedule::new(grace, Signal::TERM);
    for (second, event, expected) in story {
        assert_eq!(course.handle(*event, at(*second)), *expected, "{event:?} at {second} s");
    }
    course
}

const TERM: &[Signal] = &[Signal::TERM, Signal::CONT];
const KILL: &[Signal] = &[Signal::KILL];

#[test]
fn signals_are_passed_on_as_they_come() {
    for signal in [Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2, Signal::WINCH] {
        let course = check(Some(GRACE), &[(0, ScheduleInput::Signal(signal), &[signal])]);
        assert_eq!(course.next_wake(), None, "{signal:?} asks nobody to end");
    }
}

#[test]
fn the_grace_begins_with_a_request_to_end() {
    for (signal, sent) in [(Signal::TERM, TERM), (Signal::INT, &[Signal::INT])] {
        let course = check(
            Some(GRACE),
            &[
                (1, ScheduleInput::Signal(signal), sent),
                (5, ScheduleInput::Time, &[]),
                (6, ScheduleInput::Time, KILL),
                (7, ScheduleInput::Time, &[]),
            ],
        );
        assert!(!course.is_lost());
    }
}

#[test]
fn a_second_request_does_not_lengthen_the_grace() {
    check(
        Some(GRACE),
        &[
            (1, ScheduleInput::Signal(Signal::TERM), TERM),
            (4, ScheduleInput::Signal(Signal::TERM), TERM),
            (6, ScheduleInput::Time, KILL),
        ],
    );
}

#[test]
fn without_a_grace_a_request_is_never_enforced() {
    let course =
        check(None, &[(1, ScheduleInput::Signal(Signal::TERM), TERM), (1_000, ScheduleInput::Time, &[])]);
    assert_eq!(course.next_wake(), None);
}

#[test]
fn a_second_ctrl_c_within_two_seconds_kills() {
    let int = ScheduleInput::Signal(Signal::INT);
    check(None, &[(1, int, &[Signal::INT]), (3, int, KILL), (4, int, &[])]);
    check(None, &[(1, int, &[Signal::INT]), (4, int, &[Signal::INT]), (6, int, KILL)]);
}

#[test]
fn the_deadlines_ask_first_and_kill_then() {
    let course = check(
        Some(GRACE),
        &[
            (0, until(10, 14), &[]),
            (9, ScheduleInput::Time, &[]),
            (10, ScheduleInput::Time, TERM),
            (13, ScheduleInput::Time, &[]),
            (14, ScheduleInput::Time, KILL),
        ],
    );
    assert!(course.is_lost() && course.has_killed());
}

#[test]
fn a_renewal_moves_the_deadlines() {
    let course =
        check(None, &[(0, until(10, 14), &[]), (5, until(15, 19), &[]), (14, ScheduleInput::Time, &[])]);
    assert_eq!(course.next_wake(), Some(at(15)));
}

/// A machine that slept through both deadlines must not ask politely on waking up.
#[test]
fn whoever_slept_past_the_end_kills_at_once() {
    check(Some(GRACE), &[(0, until(10, 14), &[]), (20, ScheduleInput::Time, KILL)]);
    check(Some(GRACE), &[(0, until(10, 14), &[]), (20, ScheduleInput::Signal(Signal::USR1), KILL)]);
    check(Some(GRACE), &[(20, until(10, 14), KILL)]);
}

#[test]
fn a_renewal_that_comes_after_the_request_does_not_take_it_back() {
    let course = check(
        Some(GRACE),
        &[
            (0, until(10, 14), &[]),
            (10, ScheduleInput::Time, TERM),
            (11, until(21, 25), &[]),
            (14, ScheduleInput::Time, KILL),
        ],
    );
    assert!(course.is_lost());
}

#[test]
fn what_is_known_to_be_gone_leaves_one_second() {
    let course =
        check(Some(GRACE), &[(0, order(SupervisorAction::Lost), TERM), (1, ScheduleInput::Time, KILL)]);
    assert!(course.is_lost());
    check(None, &[(0, order(SupervisorAction::Lost), TERM), (1, ScheduleInput::Time, KILL)]);
    let short = Some(Duration::from_millis(500));
    let mut course = check(short, &[(0, order(SupervisorAction::Lost), TERM)]);
    assert_eq!(course.next_wake(), Some(Moment::from_ms(500)));
    assert_eq!(course.handle(ScheduleInput::Time, Moment::from_ms(500)), KILL);
}

#[test]
fn a_stop_is_asked_for_once_and_is_no_loss() {
    let course = check(
        Some(GRACE),
        &[
            (0, order(SupervisorAction::Stop), TERM),
            (1, order(SupervisorAction::Stop), &[]),
            (5, ScheduleInput::Time, KILL),
        ],
    );
    assert!(!course.is_lost());
}

#[test]
fn a_loss_shortens_a_stop() {
    check(
        Some(GRACE),
        &[
            (0, order(SupervisorAction::Stop), TERM),
            (1, order(SupervisorAction::Lost), &[]),
            (2, ScheduleInput::Time, KILL),
        ],
    );
}

#[test]
fn an_order_to_end_kills_at_once_whatever_was_asked_before() {
    check(Some(GRACE), &[(1, order(SupervisorAction::End), KILL), (2, order(SupervisorAction::Stop), &[])]);
    check(
        Some(GRACE),
        &[
            (1, order(SupervisorAction::Stop), TERM),
            (2, order(SupervisorAction::End), KILL),
            (6, ScheduleInput::Time, &[]),
        ],
    );
}
