//! `--exec` as a command: a single word is run as it is, anything more by the shell.
//!
//! What is wrong with it is said before anything is claimed: a typing mistake must not make a thousand tasks fail.

use std::ffi::{OsStr, OsString};
use std::process::Stdio;

use tokio::process::Command;

use crate::failure::{Code, Failure};
use crate::supervise::Program;

/// A command that can be run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Shell {
    pub(super) program: Program,
    pub(super) args: Vec<OsString>,
}

impl Shell {
    /// Looks the command up: 127 if there is none, 126 if it may not be executed.
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
            // A path can be judged as the kernel will.
            Some(word) if word.contains('/') => drop(Program::find(OsStr::new(word))?),
            Some(word) if !is_known(word).await? => {
                return Err(Failure::new(Code::CommandNotFound, format!("there is no command {word}"))
                    .hint("check its spelling and PATH; no task was taken for it"));
            }
            Some(_) | None => {}
        }
        let program = Program::find(OsStr::new("sh"))?;
        Ok(Shell { program, args: vec!["-c".into(), text.into()] })
    }
}

/// Whether the shell would only find one program in it.
fn is_plain(text: &str) -> bool {
    text.chars().all(is_harmless)
}

/// Characters that mean nothing to a shell. `=` is not one of them: it may be an assignment.
fn is_harmless(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '/' | '.' | '_' | '-' | '+' | ':' | ',' | '@' | '%')
}

/// The word that a shell would look up, unless finding that out needs a shell.
fn first_token(text: &str) -> Option<&str> {
    text.split_whitespace().next().filter(|word| is_plain(word))
}

/// Whether the shell knows such a command: a program, or a word of its own.
async fn is_known(word: &str) -> Result<bool, Failure> {
    let asked = Command::new("sh")
        .args(["-c", "command -v -- \"$1\"", "sh", word])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .await;
    let status = asked.map_err(|error| Failure::new(Code::Failed, format!("sh cannot be asked: {error}")))?;
    Ok(status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn code(text: &str) -> Option<Code> {
        Shell::find(text).await.err().map(|failure| failure.code)
    }

    #[tokio::test]
    async fn a_mistyped_command_is_found_before_it_is_needed() {
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
    async fn one_word_is_run_as_it_is_and_more_by_the_shell() {
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
