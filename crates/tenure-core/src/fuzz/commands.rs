//! Commands: input of users and other programs is read, or refused with a printable reason.

use super::records;
use crate::command::{InvalidCommand, NodeCommand};
use crate::record::{CommandRecord, Record};
use crate::task::TaskMessage;

/// A command that was read means the same after it was written and read again.
pub(super) fn command(bytes: &[u8]) -> String {
    let seen = records::record::<CommandRecord>(bytes);
    let Ok(record) = CommandRecord::decode(bytes) else { return seen };
    let again =
        |record: &CommandRecord| CommandRecord::decode(&record.encode()).expect("our own command is one");
    let node = NodeCommand::parse(&record);
    if let Ok(command) = &node {
        assert_eq!(NodeCommand::parse(&again(&command.clone().into_command())).as_ref(), Ok(command));
    }
    let task = TaskMessage::parse(&record);
    if let Ok(message) = &task {
        assert_eq!(TaskMessage::parse(&again(&message.clone().into_command())).as_ref(), Ok(message));
    }
    format!(
        "{} / {}",
        outcome(node.map(|command| command.to_string())),
        outcome(task.map(|task| task.kind().as_str().to_owned()))
    )
}

fn outcome(parsed: Result<String, InvalidCommand>) -> String {
    match parsed {
        Ok(name) => name,
        Err(bad) => {
            let text = bad.to_string();
            assert!(text.len() < 600, "a reason of {} bytes", text.len());
            assert!(!text.contains(char::is_control), "{text:?}");
            match bad {
                InvalidCommand::Unknown { .. } => "unknown".to_owned(),
                InvalidCommand::Missing { .. } | InvalidCommand::Wrong { .. } => text,
            }
        }
    }
}
