//! What a node can be told, and how commands travel: `{"command":"stop_task","parameters":{"task":"t1"}}`.
//!
//! People and other programs write commands too, so nothing about one is trusted: what cannot be understood is an error that says why, so that
//! its sender can be told. What a task can be told is a [`TaskMessage`](crate::task::TaskMessage), and travels in the same way.

use std::fmt;

use serde_json::Value;
use thiserror::Error;

use crate::id::TaskId;
use crate::record::{CommandRecord, UnknownFields};

/// What a node can be told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NodeCommand {
    /// Take no new tasks, also after a restart.
    Freeze,
    /// Take new tasks again.
    Unfreeze,
    /// Look now whether others should have some of its tasks.
    Balance(BalanceMode),
    /// Give one of its tasks to somebody else.
    ReleaseTask(TaskId),
    /// Stop running one of its tasks and give it away.
    StopTask(TaskId),
    /// Give all tasks away, and leave.
    Drain(AfterDrain),
}

/// Whether the next process with the id of a drained node takes tasks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AfterDrain {
    /// It does: the drain ends with the node.
    TakeTasks,
    /// It does not: the id is frozen.
    StayFrozen,
}

/// Whether a node that balances does what it finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BalanceMode {
    /// It gives tasks away.
    Act,
    /// It only says what it would give away, and why.
    DryRun,
}

impl NodeCommand {
    /// As it is stored and shown.
    pub const fn as_str(&self) -> &'static str {
        match self {
            NodeCommand::Freeze => "freeze",
            NodeCommand::Unfreeze => "unfreeze",
            NodeCommand::Balance(_) => "balance",
            NodeCommand::ReleaseTask(_) => "release_task",
            NodeCommand::StopTask(_) => "stop_task",
            NodeCommand::Drain(_) => "drain",
        }
    }

    /// What a stored command says. Parameters that the command does not know are ignored.
    ///
    /// # Errors
    ///
    /// [`InvalidCommand`] says what cannot be understood.
    pub fn parse(record: &CommandRecord) -> Result<NodeCommand, InvalidCommand> {
        let given = |command| CommandParameters { command, parameters: &record.parameters };
        Ok(match record.command.as_str() {
            "freeze" => NodeCommand::Freeze,
            "unfreeze" => NodeCommand::Unfreeze,
            "balance" => NodeCommand::Balance(match record.parameters.get("dry_run") {
                None | Some(Value::Null | Value::Bool(false)) => BalanceMode::Act,
                Some(Value::Bool(true)) => BalanceMode::DryRun,
                Some(_) => return Err(given("balance").wrong("dry_run", "true or false")),
            }),
            "release_task" => NodeCommand::ReleaseTask(given("release_task").task()?),
            "stop_task" => NodeCommand::StopTask(given("stop_task").task()?),
            "drain" => NodeCommand::Drain(match record.parameters.get("stay_frozen") {
                None | Some(Value::Null | Value::Bool(false)) => AfterDrain::TakeTasks,
                Some(Value::Bool(true)) => AfterDrain::StayFrozen,
                Some(_) => return Err(given("drain").wrong("stay_frozen", "true or false")),
            }),
            unknown => return Err(InvalidCommand::unknown("a node", unknown)),
        })
    }

    /// The command as it is stored, without sender.
    pub fn into_command(self) -> CommandRecord {
        let command = self.as_str().to_owned();
        let parameter: Option<(&str, Value)> = match self {
            NodeCommand::Freeze
            | NodeCommand::Unfreeze
            | NodeCommand::Drain(AfterDrain::TakeTasks)
            | NodeCommand::Balance(BalanceMode::Act) => None,
            NodeCommand::Balance(BalanceMode::DryRun) => Some(("dry_run", true.into())),
            NodeCommand::Drain(AfterDrain::StayFrozen) => Some(("stay_frozen", true.into())),
            NodeCommand::ReleaseTask(task) | NodeCommand::StopTask(task) => {
                Some(("task", String::from(task).into()))
            }
        };
        let parameters = parameter.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        CommandRecord { command, parameters, ..CommandRecord::default() }
    }
}

impl fmt::Display for NodeCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a command cannot be understood.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum InvalidCommand {
    /// No command is called that.
    #[error("there is no command {word:?} to {to}")]
    Unknown {
        /// To what it was sent.
        to: &'static str,
        /// The beginning of what stands in the place of a command.
        word: String,
    },
    /// It needs something to go with it.
    #[error("{command} needs the parameter {name:?}: {what}")]
    Missing {
        /// The command.
        command: &'static str,
        /// What is missing.
        name: &'static str,
        /// What it must be.
        what: &'static str,
    },
    /// What goes with it makes no sense.
    #[error("the parameter {name:?} of {command} must be {what}")]
    Wrong {
        /// The command.
        command: &'static str,
        /// What is wrong.
        name: &'static str,
        /// What it must be.
        what: &'static str,
    },
}

impl InvalidCommand {
    pub(crate) fn unknown(to: &'static str, word: &str) -> InvalidCommand {
        /// How much of a word that is no command is said back.
        const WORD_CHARS_MAX: usize = 40;
        InvalidCommand::Unknown { to, word: word.chars().take(WORD_CHARS_MAX).collect() }
    }
}

/// The parameters of a command.
pub(crate) struct CommandParameters<'a> {
    pub(crate) command: &'static str,
    pub(crate) parameters: &'a UnknownFields,
}

impl<'a> CommandParameters<'a> {
    pub(crate) fn needed(&self, name: &'static str, what: &'static str) -> Result<&'a Value, InvalidCommand> {
        self.parameters.get(name).ok_or(InvalidCommand::Missing { command: self.command, name, what })
    }

    pub(crate) fn text(&self, name: &'static str) -> Result<Option<String>, InvalidCommand> {
        match self.parameters.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(_) => Err(self.wrong(name, "a text")),
        }
    }

    pub(crate) fn wrong(&self, name: &'static str, what: &'static str) -> InvalidCommand {
        InvalidCommand::Wrong { command: self.command, name, what }
    }

    fn task(&self) -> Result<TaskId, InvalidCommand> {
        let value = self.needed("task", "the id of a task")?;
        let id = value.as_str().and_then(|text| TaskId::parse(text).ok());
        id.ok_or(self.wrong("task", "the id of a task"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Record;

    fn parse(json: &str) -> Result<NodeCommand, InvalidCommand> {
        NodeCommand::parse(&CommandRecord::decode(json.as_bytes()).unwrap())
    }

    #[test]
    fn every_command_comes_back_as_it_was_sent() {
        let task = || TaskId::parse("a/b").unwrap();
        for command in [
            NodeCommand::Freeze,
            NodeCommand::Unfreeze,
            NodeCommand::Balance(BalanceMode::Act),
            NodeCommand::Balance(BalanceMode::DryRun),
            NodeCommand::ReleaseTask(task()),
            NodeCommand::StopTask(task()),
            NodeCommand::Drain(AfterDrain::TakeTasks),
            NodeCommand::Drain(AfterDrain::StayFrozen),
        ] {
            let stored = command.clone().into_command().encode();
            assert_eq!(NodeCommand::parse(&CommandRecord::decode(&stored).unwrap()), Ok(command));
        }
    }

    #[test]
    fn what_cannot_be_understood_says_why() {
        let why = |json: &str| parse(json).unwrap_err().to_string();
        assert_eq!(why(r#"{"command":"melt"}"#), r#"there is no command "melt" to a node"#);
        assert_eq!(
            why(r#"{"command":"stop_task","parameters":{}}"#),
            r#"stop_task needs the parameter "task": the id of a task"#
        );
        for task in ["7", "\"\"", "\"a\\u0000\"", "null"] {
            assert_eq!(
                why(&format!(r#"{{"command":"release_task","parameters":{{"task":{task}}}}}"#)),
                r#"the parameter "task" of release_task must be the id of a task"#
            );
        }
        assert_eq!(
            why(r#"{"command":"balance","parameters":{"dry_run":"yes"}}"#),
            r#"the parameter "dry_run" of balance must be true or false"#
        );
    }
}
