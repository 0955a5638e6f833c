//! How a command ended, and the exit code that says so.

use rustix::process::WaitIdStatus;

use crate::failure::LOST;

/// How a command ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Outcome {
    /// What the command itself did.
    pub(crate) end: End,
    /// Whether we stopped it because what it relied on was lost.
    pub(crate) is_lost: bool,
    /// Whether we stopped it because we wanted to.
    pub(crate) is_stopped: bool,
    /// Whether somebody told us to end, with SIGTERM or SIGINT.
    pub(crate) is_told: bool,
}

/// The end of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// It ended by itself, with this code.
    Exited(u8),
    /// This signal ended it.
    Killed(u8),
}

impl Outcome {
    /// The command's own code, 128 and the signal, or 122 for a loss.
    pub(crate) fn exit_code(self) -> u8 {
        match self {
            Outcome { is_lost: true, .. } => LOST,
            Outcome { end: End::Exited(code), .. } => code,
            Outcome { end: End::Killed(signal), .. } => 128 | signal,
        }
    }
}

impl End {
    /// Reads what the kernel says of a process that has ended.
    pub(super) fn of(status: &WaitIdStatus) -> End {
        let byte = |number: i32| u8::try_from(number & 0xff).unwrap_or(u8::MAX);
        match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => End::Exited(byte(code)),
            (None, Some(signal)) => End::Killed(byte(signal)),
            // Only ended processes are asked about.
            (None, None) => End::Exited(u8::MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_is_the_commands_own_unless_it_was_killed_or_lost() {
        for (end, is_lost, code) in [
            (End::Exited(0), false, 0),
            (End::Exited(7), false, 7),
            (End::Exited(255), false, 255),
            (End::Killed(9), false, 137),
            (End::Killed(15), false, 143),
            (End::Killed(64), false, 192),
            (End::Exited(0), true, 122),
            (End::Killed(15), true, 122),
        ] {
            let outcome = Outcome { end, is_lost, is_stopped: false, is_told: false };
            assert_eq!(outcome.exit_code(), code, "{end:?} {is_lost}");
        }
    }
}
