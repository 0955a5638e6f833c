//! Confirmation of verbs that destroy what other processes may need.
//!
//! On a terminal the verb prompts. Everywhere else `--yes` is required, so that a script contains the decision.

use std::io::{self, BufRead, IsTerminal, Write};

use clap::Args;

use crate::failure::{Code, Failure};
use crate::output::{Output, escape_controls};

/// The flag of every verb that needs a confirmation.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct ConfirmArgs {
    /// Do not prompt for a confirmation. Required if stdin or stderr is not a terminal.
    #[arg(short = 'y', long)]
    yes: bool,
}

impl ConfirmArgs {
    /// Refuses a run that can neither prompt nor has `--yes`, before a store is opened.
    ///
    /// `what` completes "… needs a confirmation"; `preview` is the command that shows what is affected.
    pub(crate) fn check(self, what: &str, preview: &str, output: &Output) -> Result<(), Failure> {
        if self.yes || can_prompt(output) {
            return Ok(());
        }
        let why = if is_terminal() { "--json never prompts" } else { "there is no terminal to prompt on" };
        Err(Failure::usage(format!("{what} needs a confirmation, and {why}; nothing was changed"))
            .hint(format!("see what is affected with `{preview}`, then add --yes")))
    }

    /// Prompts on the terminal, unless `--yes` was given.
    pub(crate) async fn prompt(self, question: &str, output: &Output) -> Result<(), Failure> {
        if self.yes {
            return Ok(());
        }
        let text = format!("tenure: {}? [y/N] ", escape_controls(question.as_bytes()));
        // On a blocking thread: Ctrl-C must end the process while this read waits.
        let line = tokio::task::spawn_blocking(move || {
            let mut stderr = io::stderr();
            let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
            let mut line = String::new();
            io::stdin().lock().read_line(&mut line).map(|_| line)
        });
        let line = line.await.ok().and_then(Result::ok).unwrap_or_default();
        if is_yes(&line) {
            return Ok(());
        }
        debug_assert!(can_prompt(output), "`check` comes before `prompt`");
        Err(Failure::new(Code::Failed, "not confirmed; nothing was changed")
            .hint("answer y to confirm, or add --yes"))
    }
}

/// Whether a person can read the prompt and reply to it.
fn can_prompt(output: &Output) -> bool {
    !output.is_json && is_terminal()
}

fn is_terminal() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

fn is_yes(line: &str) -> bool {
    matches!(line.trim().to_ascii_lowercase().as_str(), "y" | "yes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_y_and_yes_confirm() {
        for (line, is) in [
            ("y\n", true),
            (" YES \n", true),
            ("\n", false),
            ("", false),
            ("no\n", false),
            ("yesterday\n", false),
        ] {
            assert_eq!(is_yes(line), is, "{line:?}");
        }
    }
}
