//! Commands to a worker, and their encoding: `{"command":"stop_task","parameters":{"task":"t1"}}`.
//!
//! Clients and foreign programs write commands too, so nothing about one is trusted. A command that
//! cannot be parsed is an error with the reason, for the reply to its sender. Commands to tasks are
//! [`TaskMessage`](crate::task::TaskMessage)s, and have the same encoding.

use std::fmt;

use serde_json::Value;
use thiserror::Error;

use crate::id::TaskId;
use crate::record::{CommandRecord, UnknownFields};

/// A command to a worker.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NodeCommand {
    /// Take no new tasks, also after a restart.
    Freeze,
    /// Take new tasks again.
    Unfreeze,
    /// Call the balancer now.
    Balance(BalanceMode),
    /// Release one of its tasks for another worker.
    ReleaseTask(TaskId),
    /// Stop the handler of one of its tasks, and release the task.
    StopTask(TaskId),
    /// Release all tasks, and leave.
    Drain(AfterDrain),
}

/// Whether the next process with the id of a drained worker takes tasks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AfterDrain {
    /// It does: the drain ends with the process.
    TakeTasks,
    /// It does not: the id is frozen.
    StayFrozen,
}

/// Whether the balancer's releases are carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BalanceMode {
    /// They are carried out.
    Act,
    /// They are only returned, with their reasons.
    DryRun,
}

impl NodeCommand {
    /// The stored and displayed text.
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

    /// Parses a stored command. Parameters that the command does not know are ignored.
    ///
    /// # Errors
    ///
    /// [`InvalidCommand`] with what cannot be parsed.
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

    /// The stored form of the command, without sender.
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

/// Why a command cannot be parsed.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum InvalidCommand {
    /// There is no command of this name.
    #[error("there is no command {name:?} to {to}")]
    Unknown {
        /// The kind of addressee.
        to: &'static str,
        /// The beginning of the given name.
        name: String,
    },
    /// A parameter is missing.
    #[error("{command} needs the parameter {name:?}: {what}")]
    Missing {
        /// The command.
        command: &'static str,
        /// What is missing.
        name: &'static str,
        /// What it must be.
        what: &'static str,
    },
    /// A parameter is invalid.
    #[error("the parameter {name:?} of {command} must be {what}")]
    Wrong {
        /// The command.
        command: &'static str,
        /// The name of the parameter.
        name: &'static str,
        /// What it must be.
        what: &'static str,
    },
}

impl InvalidCommand {
    pub(crate) fn unknown(to: &'static str, name: &str) -> InvalidCommand {
        /// How much of an unknown name the error contains.
        const NAME_CHARS_MAX: usize = 40;
        InvalidCommand::Unknown { to, name: name.chars().take(NAME_CHARS_MAX).collect() }
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
    fn invalid_command_names_its_fault() {
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
