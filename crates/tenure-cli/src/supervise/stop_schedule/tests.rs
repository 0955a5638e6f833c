//! Cases of inputs at their times, with the signals that each returns.

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

/// Handles each input at its second, and compares the returned signals.
fn check(grace: Option<Duration>, cases: &[(u64, ScheduleInput, &[Signal])]) -> StopSchedule {
    let mut schedule = StopSchedule::new(grace, Signal::TERM);
    for (second, event, expected) in cases {
        assert_eq!(schedule.handle(*event, at(*second)), *expected, "{event:?} at {second} s");
    }
    schedule
}

const TERM: &[Signal] = &[Signal::TERM, Signal::CONT];
const KILL: &[Signal] = &[Signal::KILL];

#[test]
fn other_signals_are_forwarded() {
    for signal in [Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2, Signal::WINCH] {
        let schedule = check(Some(GRACE), &[(0, ScheduleInput::Signal(signal), &[signal])]);
        assert_eq!(schedule.next_wake(), None, "{signal:?} requests no end");
    }
}

#[test]
fn end_request_starts_the_grace() {
    for (signal, sent) in [(Signal::TERM, TERM), (Signal::INT, &[Signal::INT])] {
        let schedule = check(
            Some(GRACE),
            &[
                (1, ScheduleInput::Signal(signal), sent),
                (5, ScheduleInput::Time, &[]),
                (6, ScheduleInput::Time, KILL),
                (7, ScheduleInput::Time, &[]),
            ],
        );
        assert!(!schedule.is_lost());
    }
}

#[test]
fn second_request_keeps_the_grace() {
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
fn request_without_grace_never_kills() {
    let schedule =
        check(None, &[(1, ScheduleInput::Signal(Signal::TERM), TERM), (1_000, ScheduleInput::Time, &[])]);
    assert_eq!(schedule.next_wake(), None);
}

#[test]
fn second_ctrl_c_kills() {
    let int = ScheduleInput::Signal(Signal::INT);
    check(None, &[(1, int, &[Signal::INT]), (3, int, KILL), (4, int, &[])]);
    check(None, &[(1, int, &[Signal::INT]), (4, int, &[Signal::INT]), (6, int, KILL)]);
}

#[test]
fn deadlines_terminate_then_kill() {
    let schedule = check(
        Some(GRACE),
        &[
            (0, until(10, 14), &[]),
            (9, ScheduleInput::Time, &[]),
            (10, ScheduleInput::Time, TERM),
            (13, ScheduleInput::Time, &[]),
            (14, ScheduleInput::Time, KILL),
        ],
    );
    assert!(schedule.is_lost() && schedule.has_killed());
}

#[test]
fn renewal_moves_the_deadlines() {
    let schedule =
        check(None, &[(0, until(10, 14), &[]), (5, until(15, 19), &[]), (14, ScheduleInput::Time, &[])]);
    assert_eq!(schedule.next_wake(), Some(at(15)));
}

/// A host that was suspended past both deadlines must not send SIGTERM first when it resumes.
#[test]
fn suspend_past_deadlines_kills_immediately() {
    check(Some(GRACE), &[(0, until(10, 14), &[]), (20, ScheduleInput::Time, KILL)]);
    check(Some(GRACE), &[(0, until(10, 14), &[]), (20, ScheduleInput::Signal(Signal::USR1), KILL)]);
    check(Some(GRACE), &[(20, until(10, 14), KILL)]);
}

#[test]
fn late_renewal_does_not_undo_loss() {
    let schedule = check(
        Some(GRACE),
        &[
            (0, until(10, 14), &[]),
            (10, ScheduleInput::Time, TERM),
            (11, until(21, 25), &[]),
            (14, ScheduleInput::Time, KILL),
        ],
    );
    assert!(schedule.is_lost());
}

#[test]
fn known_loss_kills_after_a_second() {
    let schedule =
        check(Some(GRACE), &[(0, order(SupervisorAction::Lost), TERM), (1, ScheduleInput::Time, KILL)]);
    assert!(schedule.is_lost());
    check(None, &[(0, order(SupervisorAction::Lost), TERM), (1, ScheduleInput::Time, KILL)]);
    let short = Some(Duration::from_millis(500));
    let mut schedule = check(short, &[(0, order(SupervisorAction::Lost), TERM)]);
    assert_eq!(schedule.next_wake(), Some(Moment::from_ms(500)));
    assert_eq!(schedule.handle(ScheduleInput::Time, Moment::from_ms(500)), KILL);
}

#[test]
fn stop_is_sent_once_and_no_loss() {
    let schedule = check(
        Some(GRACE),
        &[
            (0, order(SupervisorAction::Stop), TERM),
            (1, order(SupervisorAction::Stop), &[]),
            (5, ScheduleInput::Time, KILL),
        ],
    );
    assert!(!schedule.is_lost());
}

#[test]
fn loss_shortens_a_stop() {
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
fn end_kills_immediately_after_any_request() {
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
