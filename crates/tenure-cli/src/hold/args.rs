//! The flags that `lock`, `once` and `elect` share.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;
use rustix::process::Signal;

use super::timing::Timing;
use crate::duration;
use crate::failure::{Failure, LOST, NOT_ACQUIRED};
use crate::output::escape;
use crate::supervise::Program;

/// How something is held.
#[derive(Args, Debug)]
pub(crate) struct HoldArgs {
    /// How long the store keeps it after this process or host dies. It is renewed after every third of this time.
    #[arg(long, value_name = "DUR", value_parser = duration::parse, default_value = "15s")]
    ttl: Duration,
    /// How long the command has between the stop signal and SIGKILL [default: 5s or a third of the TTL].
    #[arg(long, value_name = "DUR", value_parser = duration::parse)]
    grace: Option<Duration>,
    /// The command is killed this long before another holder is possible [default: 500ms or 5 % of the TTL].
    #[arg(long, value_name = "DUR", value_parser = duration::parse)]
    margin: Option<Duration>,
    /// The stop signal: TERM, INT, HUP, QUIT, USR1, USR2 or KILL.
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

/// Finds the command's program; `None` without a command.
pub(super) fn find(command: &[OsString]) -> Result<Option<Program>, Failure> {
    let has_separator = std::env::args_os().any(|arg| arg == "--");
    let Some(name) = command.first() else {
        if has_separator {
            return Err(Failure::usage("there is no command after --").hint("add a command, or leave -- out"));
        }
        return Ok(None);
    };
    if name.as_encoded_bytes().first() == Some(&b'-') && !has_separator {
        let shown = escape(name.as_encoded_bytes());
        return Err(Failure::usage(format!("tenure has no flag {shown} here"))
            .hint("see `--help`; put -- in front of a command that starts with '-'"));
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
