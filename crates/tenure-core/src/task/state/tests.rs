//! Checks every pair of state and message against the contract, which is written down here again,
//! independently of the table.

use super::*;

const UNTIL: Timestamp = Timestamp(7);
const LATER: Timestamp = Timestamp(9);

fn states() -> Vec<TaskStatus> {
    TaskState::ALL.into_iter().map(|kind| kind.until(Some(UNTIL)).unwrap()).collect()
}

fn messages() -> Vec<TaskMessage> {
    let messages = TaskMessageKind::ALL.into_iter().map(|kind| match kind {
        TaskMessageKind::Run => TaskMessage::Run,
        TaskMessageKind::Sleep => TaskMessage::Sleep { until: LATER },
        TaskMessageKind::Pause => TaskMessage::Pause,
        TaskMessageKind::Kill => TaskMessage::Kill { reason: None },
        TaskMessageKind::Error => TaskMessage::Error { message: "broken".to_owned() },
        TaskMessageKind::Complete => TaskMessage::Complete,
        TaskMessageKind::Checkpoint => TaskMessage::Checkpoint { blob: None },
        TaskMessageKind::Release => TaskMessage::Release,
    });
    messages.collect()
}

/// The contract, in its own words. A dash is a refusal; the columns are those of [`TaskMessageKind::ALL`].
const CONTRACT: [(&str, [&str; 8]); 7] = [
    //            run         sleep       pause     kill      error    complete     checkpoint  release
    ("runnable", ["runnable", "sleeping", "paused", "killed", "fault", "completed", "runnable", "runnable"]),
    ("sleeping", ["runnable", "sleeping", "paused", "killed", "fault", "-", "sleeping", "sleeping"]),
    ("fault", ["runnable", "sleeping", "paused", "killed", "failed", "-", "-", "fault"]),
    ("paused", ["runnable", "sleeping", "paused", "killed", "-", "-", "paused", "paused"]),
    ("completed", ["-"; 8]),
    ("failed", ["-"; 8]),
    ("killed", ["-"; 8]),
];

#[test]
fn every_pair_matches_the_contract() {
    let mut checked = 0;
    for (state, (name, row)) in states().into_iter().zip(CONTRACT) {
        assert_eq!(state.kind().as_str(), name);
        for (message, wanted) in messages().into_iter().zip(row) {
            match transition(state, &message) {
                Ok(to) => assert_eq!(to.kind().as_str(), wanted, "{name} and {}", message.kind()),
                Err(refused) => {
                    assert_eq!(wanted, "-", "{name} and {}", message.kind());
                    assert_eq!(refused, IllegalTransition { from: state.kind(), message: message.kind() });
                }
            }
            checked += 1;
        }
    }
    assert_eq!(checked, 7 * 8);
}

#[test]
fn table_has_one_row_per_pair() {
    let allowed = CONTRACT.iter().flat_map(|(_, row)| row).filter(|to| **to != "-").count();
    assert_eq!(TABLE.len(), allowed);
}

#[test]
fn a_terminal_state_takes_no_message() {
    for state in states().into_iter().filter(|state| state.is_terminal()) {
        for message in messages() {
            assert!(transition(state, &message).is_err(), "{state} and {}", message.kind());
        }
    }
    let terminal = states().into_iter().filter(|state| state.is_terminal()).count();
    assert_eq!(terminal, 3);
}

#[test]
fn only_sleep_has_a_time() {
    let sleeping = TaskStatus::Sleeping { until: UNTIL };
    assert_eq!(transition(sleeping, &TaskMessage::Release), Ok(sleeping));
    assert_eq!(transition(sleeping, &TaskMessage::Checkpoint { blob: None }), Ok(sleeping));
    let again = transition(sleeping, &TaskMessage::Sleep { until: LATER });
    assert_eq!(again, Ok(TaskStatus::Sleeping { until: LATER }));
}

#[test]
fn names_round_trip() {
    for kind in TaskState::ALL {
        assert_eq!(TaskState::parse(kind.as_str()), Some(kind));
        assert_eq!(serde_json::to_string(&kind).unwrap(), format!("\"{kind}\""));
    }
    for kind in TaskMessageKind::ALL {
        assert_eq!(TaskMessageKind::parse(kind.as_str()), Some(kind));
        assert_eq!(serde_json::to_string(&kind).unwrap(), format!("\"{kind}\""));
    }
    assert_eq!(TaskState::parse("Runnable"), None);
}
