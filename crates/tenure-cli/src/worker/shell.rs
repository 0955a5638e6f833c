//! The command of `--exec`: one word is run directly, anything else by the shell.
//!
//! Mistakes are reported before a task is claimed: a mistyped command must not make a thousand tasks fail.

use std::ffi::{OsStr, OsString};
use std::process::Stdio;

use tokio::process::Command;

use crate::failure::{Code, Failure};
use crate::supervise::Program;

/// A command that exists and may be executed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Shell {
    pub(super) program: Program,
    pub(super) args: Vec<OsString>,
}

impl Shell {
    /// Looks the command up. Fails with 127 if it does not exist, with 126 if it may not be executed.
    pub(super) async fn find(text: &str) -> Result<Shell, Failure> {
        if text.trim().is_empty() {
            return Err(
                Failure::usage("--exec is empty").hint("name what runs a task, as in --exec ./job.sh")
            );
        }
        if is_plain(text) {
            return Ok(Shell { program: Program::find(OsStr::new(text))?, args: Vec::new() });
        }
        match first_token(text) {
            // A path is checked as the kernel will check it; for a name only the shell knows its builtins and functions.
            Some(token) if token.contains('/') => drop(Program::find(OsStr::new(token))?),
            Some(token) if !is_known(token).await? => {
                return Err(Failure::new(Code::CommandNotFound, format!("there is no command {token}"))
                    .hint("check its spelling and PATH; no task was claimed"));
            }
            Some(_) | None => {}
        }
        let program = Program::find(OsStr::new("sh"))?;
        Ok(Shell { program, args: vec!["-c".into(), text.into()] })
    }
}

/// Whether the text is one program name without shell syntax.
fn is_plain(text: &str) -> bool {
    text.chars().all(is_harmless)
}

/// Characters without a meaning in a shell. `=` has one: it may be an assignment.
fn is_harmless(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '/' | '.' | '_' | '-' | '+' | ':' | ',' | '@' | '%')
}

/// The first token of the text, if the shell would look it up as a command without expanding it.
fn first_token(text: &str) -> Option<&str> {
    text.split_whitespace().next().filter(|token| is_plain(token))
}

/// Whether the shell finds such a command: a program, a builtin or a keyword.
async fn is_known(name: &str) -> Result<bool, Failure> {
    let status = Command::new("sh")
        .args(["-c", "command -v -- \"$1\"", "sh", name])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .await;
    let status = status.map_err(|error| Failure::new(Code::Failed, format!("cannot run sh: {error}")))?;
    Ok(status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn code(text: &str) -> Option<Code> {
        Shell::find(text).await.err().map(|failure| failure.code)
    }

    #[tokio::test]
    async fn mistyped_command_is_refused() {
        for (text, expected) in [
            ("", Code::Usage),
            ("  ", Code::Usage),
            ("/nowhere/job.sh", Code::CommandNotFound),
            ("/nowhere/job.sh --fast", Code::CommandNotFound),
            ("no-such-command-at-all", Code::CommandNotFound),
            ("no-such-command-at-all --fast; true", Code::CommandNotFound),
            ("/", Code::NotExecutable),
            ("/etc/passwd now", Code::NotExecutable),
        ] {
            assert_eq!(code(text).await, Some(expected), "{text:?}");
        }
    }

    #[tokio::test]
    async fn only_a_plain_name_bypasses_the_shell() {
        let one = Shell::find("true").await.unwrap();
        assert_eq!((one.program.name.to_str(), one.args.len()), (Some("true"), 0));
        for text in [
            "exit 75",
            "true && false",
            "X=1 true",
            "while :; do :; done",
            "(true)",
            "\"$X\" a",
            "if true; then :; fi",
        ] {
            let shell = Shell::find(text).await.unwrap();
            assert_eq!(shell.program.name, "sh", "{text:?}");
            assert_eq!(shell.args, ["-c", text].map(OsString::from), "{text:?}");
        }
    }
}
