//! What `lock`, `once` and `elect` have in common on the command line.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;
use rustix::process::Signal;

use super::timing::Timing;
use crate::duration;
use crate::failure::{Failure, LOST, NOT_ACQUIRED};
use crate::output::escape;
use crate::supervise::Program;

/// On which terms something is held.
#[derive(Args, Debug)]
pub(crate) struct HoldArgs {
    /// How long it outlives us if we cannot give it back. It is renewed every third of this.
    #[arg(long, value_name = "DUR", value_parser = duration::parse, default_value = "15s")]
    ttl: Duration,
    /// How long the command has between being asked to stop and being killed [default: 5s or a third of the TTL].
    #[arg(long, value_name = "DUR", value_parser = duration::parse)]
    grace: Option<Duration>,
    /// How long before the store could give it to somebody else the command is killed [default: 500ms or 5 % of the TTL].
    #[arg(long, value_name = "DUR", value_parser = duration::parse)]
    margin: Option<Duration>,
    /// What the command is asked to stop with: TERM, INT, HUP, QUIT, USR1, USR2 or KILL.
    #[arg(long, value_name = "NAME", value_parser = parse_signal, default_value = "TERM")]
    pub(super) signal: Signal,
    /// The exit code for "not acquired".
    #[arg(short = 'E', long = "conflict-exit-code", value_name = "CODE", default_value_t = NOT_ACQUIRED)]
    pub(crate) not_acquired: u8,
    /// The exit code for "lost".
    #[arg(long = "lost-exit-code", value_name = "CODE", default_value_t = LOST)]
    pub(crate) lost: u8,
}

impl HoldArgs {
    pub(super) fn timing(&self) -> Result<Timing, Failure> {
        Ok(Timing::divide(self.ttl, self.grace, self.margin)?)
    }
}

/// The command to run, looked up; none if there is none to run.
pub(super) fn find(command: &[OsString]) -> Result<Option<Program>, Failure> {
    let has_separator = std::env::args_os().any(|arg| arg == "--");
    let Some(name) = command.first() else {
        if has_separator {
            return Err(Failure::usage("no command after --").hint("give one, or leave -- out"));
        }
        return Ok(None);
    };
    if name.as_encoded_bytes().first() == Some(&b'-') && !has_separator {
        let shown = escape(name.as_encoded_bytes());
        return Err(Failure::usage(format!("{shown} is no flag of ours, and no command begins with '-'"))
            .hint("see `--help`; put -- in front of the command"));
    }
    Program::find(name).map(Some)
}

fn parse_signal(text: &str) -> Result<Signal, String> {
    let name = text.to_ascii_uppercase();
    match name.strip_prefix("SIG").unwrap_or(&name) {
        "TERM" => Ok(Signal::TERM),
        "INT" => Ok(Signal::INT),
        "HUP" => Ok(Signal::HUP),
        "QUIT" => Ok(Signal::QUIT),
        "USR1" => Ok(Signal::USR1),
        "USR2" => Ok(Signal::USR2),
        "KILL" => Ok(Signal::KILL),
        _ => Err("use TERM, INT, HUP, QUIT, USR1, USR2 or KILL".to_owned()),
    }
}
