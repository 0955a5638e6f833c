//! How a command ended, and the exit code for it.

use rustix::process::WaitIdStatus;

use crate::failure::LOST;

/// How a command ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CommandExit {
    /// The end of the command's own process.
    pub(crate) end: ProcessEnd,
    /// Whether it was stopped because the hold was lost.
    pub(crate) is_lost: bool,
    /// Whether it was stopped on request.
    pub(crate) is_stopped: bool,
    /// Whether this process got SIGTERM or SIGINT.
    pub(crate) is_signaled: bool,
}

/// The end of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ProcessEnd {
    /// It exited with this code.
    Exited(u8),
    /// This signal ended it.
    Killed(u8),
}

impl CommandExit {
    /// The command's own code, 128 and the signal, or 122 for a loss.
    pub(crate) fn exit_code(self) -> u8 {
        match self {
            CommandExit { is_lost: true, .. } => LOST,
            CommandExit { end: ProcessEnd::Exited(code), .. } => code,
            CommandExit { end: ProcessEnd::Killed(signal), .. } => 128 | signal,
        }
    }
}

impl ProcessEnd {
    /// Converts the kernel's status of an ended process.
    pub(super) fn of(status: &WaitIdStatus) -> ProcessEnd {
        let byte = |number: i32| u8::try_from(number & 0xff).unwrap_or(u8::MAX);
        match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => ProcessEnd::Exited(byte(code)),
            (None, Some(signal)) => ProcessEnd::Killed(byte(signal)),
            // The status is read of ended processes only.
            (None, None) => ProcessEnd::Exited(u8::MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_code_reports_exit_signal_or_loss() {
        for (end, is_lost, code) in [
            (ProcessEnd::Exited(0), false, 0),
            (ProcessEnd::Exited(7), false, 7),
            (ProcessEnd::Exited(255), false, 255),
            (ProcessEnd::Killed(9), false, 137),
            (ProcessEnd::Killed(15), false, 143),
            (ProcessEnd::Killed(64), false, 192),
            (ProcessEnd::Exited(0), true, 122),
            (ProcessEnd::Killed(15), true, 122),
        ] {
            let outcome = CommandExit { end, is_lost, is_stopped: false, is_signaled: false };
            assert_eq!(outcome.exit_code(), code, "{end:?} {is_lost}");
        }
    }
}
