//! Messages encoded as commands: `{"command":"sleep","parameters":{"until":1798761599123}}`.
//!
//! Clients and foreign programs write commands too, so nothing about one is trusted. A command that
//! cannot be parsed is an error with the reason, for the reply to its sender.

use serde_json::Value;

use super::checkpoint::Checkpoint;
use super::state::{TaskMessage, TaskMessageKind};
use crate::command::{CommandParameters, InvalidCommand};
use crate::record::{CommandRecord, Timestamp};

impl TaskMessage {
    /// Parses a stored command. Parameters that the command does not know are ignored.
    ///
    /// # Errors
    ///
    /// [`InvalidCommand`] with what cannot be parsed.
    pub fn parse(record: &CommandRecord) -> Result<TaskMessage, InvalidCommand> {
        let Some(command) = TaskMessageKind::parse(&record.command) else {
            return Err(InvalidCommand::unknown("a task", &record.command));
        };
        let given = CommandParameters { command: command.as_str(), parameters: &record.parameters };
        Ok(match command {
            TaskMessageKind::Run => TaskMessage::Run,
            TaskMessageKind::Sleep => {
                let what = "milliseconds since 1970";
                let until = given.needed("until", what)?.as_u64();
                TaskMessage::Sleep { until: Timestamp(until.ok_or(given.wrong("until", what))?) }
            }
            TaskMessageKind::Pause => TaskMessage::Pause,
            TaskMessageKind::Kill => TaskMessage::Kill { reason: given.text("reason")? },
            TaskMessageKind::Error => {
                given.needed("message", "what went wrong")?;
                TaskMessage::Error { message: given.text("message")?.unwrap_or_default() }
            }
            TaskMessageKind::Complete => TaskMessage::Complete,
            TaskMessageKind::Checkpoint => {
                let blob = given.text("blob")?.map(Checkpoint::try_from).transpose();
                TaskMessage::Checkpoint {
                    blob: blob.map_err(|_| given.wrong("blob", "base64 of at most 256 KiB"))?,
                }
            }
            TaskMessageKind::Release => TaskMessage::Release,
        })
    }

    /// The message as a command, without id and sender.
    pub fn into_command(self) -> CommandRecord {
        let command = self.kind().as_str().to_owned();
        let parameter = match self {
            TaskMessage::Run
            | TaskMessage::Pause
            | TaskMessage::Complete
            | TaskMessage::Release
            | TaskMessage::Kill { reason: None }
            | TaskMessage::Checkpoint { blob: None } => None,
            TaskMessage::Sleep { until } => Some(("until", until.0.into())),
            TaskMessage::Kill { reason: Some(reason) } => Some(("reason", reason.into())),
            TaskMessage::Error { message } => Some(("message", message.into())),
            TaskMessage::Checkpoint { blob: Some(blob) } => Some(("blob", String::from(blob).into())),
        };
        let parameters = parameter.into_iter().map(|(name, value): (&str, Value)| (name.to_owned(), value));
        CommandRecord { command, parameters: parameters.collect(), ..CommandRecord::default() }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::record::{Record, UnknownFields};

    fn parse(json: &str) -> Result<TaskMessage, InvalidCommand> {
        TaskMessage::parse(&CommandRecord::decode(json.as_bytes()).unwrap())
    }

    fn why(json: &str) -> String {
        parse(json).unwrap_err().to_string()
    }

    #[test]
    fn every_message_comes_back_from_its_command() {
        let text = || "disk full".to_owned();
        let blob = Some(Checkpoint::new("progress").unwrap());
        for message in [
            TaskMessage::Run,
            TaskMessage::Sleep { until: Timestamp(u64::MAX) },
            TaskMessage::Pause,
            TaskMessage::Kill { reason: None },
            TaskMessage::Kill { reason: Some(text()) },
            TaskMessage::Error { message: text() },
            TaskMessage::Complete,
            TaskMessage::Checkpoint { blob: None },
            TaskMessage::Checkpoint { blob },
            TaskMessage::Release,
        ] {
            let stored = message.clone().into_command().encode();
            assert_eq!(TaskMessage::parse(&CommandRecord::decode(&stored).unwrap()), Ok(message));
        }
    }

    #[test]
    fn command_has_documented_form() {
        assert_eq!(parse(r#"{"command":"pause"}"#), Ok(TaskMessage::Pause));
        assert_eq!(
            parse(r#"{"command":"sleep","parameters":{"until":5,"zone":"eu"}}"#),
            Ok(TaskMessage::Sleep { until: Timestamp(5) })
        );
    }

    #[test]
    fn invalid_command_names_its_fault() {
        assert_eq!(why(r#"{"command":"paus"}"#), r#"there is no command "paus" to a task"#);
        assert_eq!(why(r#"{"command":"Pause"}"#), r#"there is no command "Pause" to a task"#);
        assert_eq!(
            why(r#"{"command":"sleep"}"#),
            r#"sleep needs the parameter "until": milliseconds since 1970"#
        );
        for until in ["-1", "1.5", "\"5\"", "null", "[]"] {
            assert_eq!(
                why(&format!(r#"{{"command":"sleep","parameters":{{"until":{until}}}}}"#)),
                r#"the parameter "until" of sleep must be milliseconds since 1970"#
            );
        }
        assert_eq!(why(r#"{"command":"error"}"#), r#"error needs the parameter "message": what went wrong"#);
        assert_eq!(
            why(r#"{"command":"kill","parameters":{"reason":7}}"#),
            r#"the parameter "reason" of kill must be a text"#
        );
        assert_eq!(
            why(r#"{"command":"checkpoint","parameters":{"blob":"?"}}"#),
            r#"the parameter "blob" of checkpoint must be base64 of at most 256 KiB"#
        );
        let long = "x".repeat(100_000);
        assert!(why(&format!(r#"{{"command":"{long}"}}"#)).len() < 100, "a long name is truncated");
    }

    proptest! {
        #[test]
        fn no_command_makes_the_parser_panic(
            command in prop::sample::select(TaskMessageKind::ALL.to_vec()),
            name in prop::sample::select(vec!["until", "reason", "message", "blob"]),
            value in prop::sample::select(vec![
                Value::Null, true.into(), 1.into(), (-1).into(), 0.5.into(), "AA==".into(), "x".into(),
                Value::Array(Vec::new()), Value::Object(UnknownFields::new()),
            ]),
        ) {
            let parameters = UnknownFields::from_iter([(name.to_owned(), value)]);
            let record = CommandRecord { command: command.as_str().to_owned(), parameters, ..CommandRecord::default() };
            if let Ok(message) = TaskMessage::parse(&record) {
                prop_assert_eq!(message.kind(), command);
            }
        }
    }
}
