//! The record changes only as the transition table allows, and decoding returns what was encoded.

use proptest::prelude::*;

use super::super::retry::Retry;
use super::*;

fn node() -> NodeId {
    NodeId::parse("web-1").unwrap()
}

fn apply_message(
    task: &mut StateRecord,
    message: TaskMessage,
    at: u64,
) -> Result<Applied, IllegalTransition> {
    task.apply(message, Timestamp(at), &node())
}

fn broken() -> TaskMessage {
    TaskMessage::Error { message: "disk full".to_owned() }
}

#[test]
fn task_without_record_is_runnable() {
    let task = StateRecord::default();
    assert_eq!((task.state, task.attempt(), task.errors.len()), (TaskStatus::Runnable, 1, 0));
}

#[test]
fn a_record_is_stored_as_plain_json() {
    let mut task = StateRecord::default();
    let _ = apply_message(&mut task, broken(), 4).unwrap();
    let _ = apply_message(&mut task, TaskMessage::Sleep { until: Timestamp(9) }, 5).unwrap();
    let blob = Checkpoint::new("half").unwrap();
    let _ = apply_message(&mut task, TaskMessage::Checkpoint { blob: Some(blob) }, 6).unwrap();
    assert_eq!(
        std::str::from_utf8(&task.encode()).unwrap(),
        concat!(
            r#"{"state":"sleeping","until":9,"errors":[{"at":4,"message":"disk full"}],"faults":1,"checkpoint":"aGFsZg==","#,
            r#""updated_at":6,"by":"web-1","#,
            r#""history":[{"at":4,"from":"runnable","message":"error","to":"fault","by":"web-1"},"#,
            r#"{"at":5,"from":"fault","message":"sleep","to":"sleeping","by":"web-1"}],"v":1}"#
        )
    );
    assert_eq!(StateRecord::decode(&task.encode()).unwrap(), task);
}

#[test]
fn minimal_record_is_read_and_kept() {
    assert_eq!(StateRecord::decode(br#"{"state":"paused"}"#).unwrap().state, TaskStatus::Paused);
    let newer = br#"{"v":1,"state":"runnable","updated_at":0,"zone":"eu"}"#;
    let again = StateRecord::decode(newer).unwrap().encode();
    assert!(std::str::from_utf8(&again).unwrap().contains(r#""zone":"eu""#));
}

#[test]
fn invalid_state_is_refused() {
    for bytes in [
        &b"{}"[..],
        br#"{"state":"asleep"}"#,
        br#"{"state":"sleeping"}"#,
        br#"{"state":"runnable","checkpoint":"?"}"#,
        br#"{"state":"runnable","errors":7}"#,
        br#"{"v":2,"state":"runnable"}"#,
        b"runnable",
    ] {
        assert!(StateRecord::decode(bytes).is_err(), "{bytes:?}");
    }
}

#[test]
fn message_without_effect_is_not_stored() {
    for (state, message) in [
        (TaskStatus::Runnable, TaskMessage::Run),
        (TaskStatus::Runnable, TaskMessage::Release),
        (TaskStatus::Runnable, TaskMessage::Checkpoint { blob: None }),
        (TaskStatus::Paused, TaskMessage::Pause),
        (TaskStatus::Sleeping { until: Timestamp(9) }, TaskMessage::Sleep { until: Timestamp(9) }),
        (TaskStatus::Fault, TaskMessage::Release),
    ] {
        let before = StateRecord { state, updated_at: Timestamp(1), ..StateRecord::default() };
        let mut task = before.clone();
        assert_eq!(apply_message(&mut task, message, 5), Ok(Applied::Same));
        assert_eq!(task, before);
    }
}

#[test]
fn checkpoint_changes_record_but_not_state() {
    let mut task = StateRecord::default();
    let save = || TaskMessage::Checkpoint { blob: Some(Checkpoint::new("half").unwrap()) };
    assert_eq!(apply_message(&mut task, save(), 5), Ok(Applied::Changed));
    assert_eq!((task.state, task.updated_at, task.history.len()), (TaskStatus::Runnable, Timestamp(5), 0));
    assert_eq!(apply_message(&mut task, save(), 6), Ok(Applied::Same));
    assert_eq!(task.checkpoint.unwrap().bytes(), "half");
}

#[test]
fn fault_counts_once_when_task_fails() {
    let mut task = StateRecord::default();
    let _ = apply_message(&mut task, broken(), 4).unwrap();
    let _ = apply_message(&mut task, TaskMessage::Error { message: "enough".to_owned() }, 5).unwrap();
    assert_eq!((task.state, task.faults, task.errors.len()), (TaskStatus::Failed, 1, 1));
    assert_eq!(task.reason.as_deref(), Some("enough"));
}

#[test]
fn stored_fault_is_decided_by_next_owner() {
    let mut task = StateRecord { state: TaskStatus::Fault, ..StateRecord::default() };
    assert_eq!(task.settle(Timestamp(0), &node(), &Retry::default()), Applied::Changed);
    assert_eq!(task.state, TaskStatus::Sleeping { until: Timestamp(600_000) });
    assert_eq!(task.settle(Timestamp(0), &node(), &Retry::default()), Applied::Same);
}

#[test]
fn illegal_failure_changes_nothing() {
    let before = StateRecord { state: TaskStatus::Paused, ..StateRecord::default() };
    let mut task = before.clone();
    assert!(task.fail("late", Timestamp(5), &node(), &Retry::default()).is_err());
    assert_eq!(task, before);
}

#[test]
fn killed_task_keeps_reason() {
    let mut task = StateRecord::default();
    let _ =
        apply_message(&mut task, TaskMessage::Kill { reason: Some("too expensive".to_owned()) }, 5).unwrap();
    assert_eq!((task.state, task.reason.as_deref()), (TaskStatus::Killed, Some("too expensive")));
}

#[test]
fn the_newest_steps_and_errors_are_kept() {
    let mut task = StateRecord::default();
    for at in 0..100 {
        let _ = apply_message(&mut task, broken(), 2 * at).unwrap();
        let _ = apply_message(&mut task, TaskMessage::Run, 2 * at + 1).unwrap();
    }
    assert_eq!((task.history.len(), task.errors.len(), task.faults), (HISTORY_LEN_MAX, ERRORS_LEN_MAX, 100));
    assert_eq!(task.history.last().unwrap().at, Timestamp(199));
    assert_eq!(task.errors.first().unwrap().at, Timestamp(184));
}

#[test]
fn a_record_at_its_largest_is_still_read() {
    let mut task = StateRecord::default();
    let blob = Checkpoint::new(vec![7; super::super::CHECKPOINT_BYTES_MAX]).unwrap();
    let _ = apply_message(&mut task, TaskMessage::Checkpoint { blob: Some(blob) }, 1).unwrap();
    for at in 0..40 {
        let long = TaskMessage::Error { message: "\u{1}".repeat(1 << 20) };
        let _ = apply_message(&mut task, long, at).unwrap();
        let _ = apply_message(&mut task, TaskMessage::Run, at).unwrap();
    }
    let _ =
        apply_message(&mut task, TaskMessage::Kill { reason: Some("\u{1}".repeat(1 << 20)) }, 50).unwrap();
    let stored = task.encode();
    assert_eq!(StateRecord::decode(&stored).unwrap(), task, "{} bytes", stored.len());
}

#[test]
fn a_long_text_is_cut_between_two_characters() {
    let kept = shortened("ä".repeat(5_000));
    assert_eq!((kept.len(), shortened("ok".to_owned())), (2_048, "ok".to_owned()));
    assert_eq!(shortened(format!("x{}", "ä".repeat(5_000))).len(), 2_047);
}

fn any_message() -> impl Strategy<Value = TaskMessage> {
    prop_oneof![
        Just(TaskMessage::Run),
        (0..50_u64).prop_map(|until| TaskMessage::Sleep { until: Timestamp(until) }),
        Just(TaskMessage::Pause),
        prop::option::of("[a-z]{0,3}").prop_map(|reason| TaskMessage::Kill { reason }),
        "[a-z]{0,3}".prop_map(|message| TaskMessage::Error { message }),
        Just(TaskMessage::Complete),
        prop::option::of("[a-z]{0,3}").prop_map(|text| TaskMessage::Checkpoint {
            blob: text.map(|text| Checkpoint::new(text).unwrap())
        }),
        Just(TaskMessage::Release),
    ]
}

proptest! {
    #[test]
    fn record_follows_the_table(messages in prop::collection::vec(any_message(), 0..60)) {
        let mut task = StateRecord::default();
        let mut path = vec![TaskState::Runnable];
        for (at, message) in messages.into_iter().enumerate() {
            let before = task.clone();
            let wanted = transition(task.state, &message);
            match apply_message(&mut task, message, at as u64) {
                Err(refused) => {
                    prop_assert_eq!(Err(refused), wanted);
                    prop_assert_eq!(&task, &before, "an illegal message changes nothing");
                }
                Ok(Applied::Same) => prop_assert_eq!(&task, &before),
                Ok(Applied::Changed) => {
                    prop_assert_eq!(Ok(task.state), wanted);
                    prop_assert!(!before.state.is_terminal(), "a terminal state refuses everything");
                    prop_assert_eq!(task.updated_at, Timestamp(at as u64));
                }
            }
            if task.state != before.state {
                path.push(task.state.kind());
            }
            prop_assert_eq!(&StateRecord::decode(&task.encode()).unwrap(), &task);
        }
        let told: Vec<TaskState> = task.history.iter().map(|step| step.to).collect();
        prop_assert!(path.ends_with(&told), "the history is the end of the path");
        for (a, b) in task.history.iter().zip(task.history.iter().skip(1)) {
            prop_assert_eq!(a.to, b.from, "and without a gap");
        }
    }

    #[test]
    fn no_bytes_make_the_decoder_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = StateRecord::decode(&bytes);
    }

    #[test]
    fn no_bent_record_makes_the_decoder_panic(at in 0..150_usize, byte in any::<u8>()) {
        let mut task = StateRecord::default();
        let _ = apply_message(&mut task, broken(), 4).unwrap();
        let _ = apply_message(&mut task, TaskMessage::Sleep { until: Timestamp(9) }, 5).unwrap();
        let mut stored = task.encode().to_vec();
        let at = at % stored.len();
        stored[at] = byte;
        if let Ok(read) = StateRecord::decode(&stored) {
            let _ = read.encode();
        }
    }
}

/// A completed task begins anew; one that failed goes on from its checkpoint, and its earlier errors do not count.
/// `task show` printed attempt 5 of a task that three workers had tried.
#[test]
fn failed_task_shows_number_of_its_last_attempt() {
    let mut task = StateRecord::default();
    let lost = |started| Attempt {
        node: node(),
        started: Timestamp(started),
        ended: Timestamp(started + 1),
        end: AttemptEnd::Lost,
    };
    for started in 0..3 {
        task.note_attempt(lost(started));
    }
    let _ = task.quarantine("3 claims in a row were lost", Timestamp(9), &node()).unwrap();
    assert_eq!((task.state, task.attempt(), task.faults), (TaskStatus::Failed, 3, 0));
    assert_eq!(task.errors.len(), 1);
}

#[test]
fn retried_task_keeps_its_checkpoint_unless_completed() {
    let node = NodeId::parse("n").unwrap();
    let at = Timestamp(7);
    let mut task = StateRecord::default();
    let blob = Some(Checkpoint::new(vec![1]).unwrap());
    let _ = task.apply(TaskMessage::Checkpoint { blob }, at, &node).unwrap();
    assert_eq!(task.retried(at, &node), None, "it has not ended");
    let mut completed = task.clone();
    let _ = completed.apply(TaskMessage::Complete, at, &node).unwrap();
    assert_eq!(completed.retried(at, &node).unwrap().checkpoint, None);
    let _ = task.quarantine("it kills its workers", at, &node).unwrap();
    let retried = task.retried(Timestamp(9), &node).unwrap();
    assert_eq!((retried.state, &retried.checkpoint), (TaskStatus::Runnable, &task.checkpoint));
    assert_eq!((retried.errors.len(), retried.faults, retried.attempt()), (0, 0, 1));
    assert_eq!((retried.reason, retried.updated_at), (None, Timestamp(9)));
}
