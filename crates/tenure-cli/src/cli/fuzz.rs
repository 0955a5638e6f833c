//! Fuzz target: whole command lines. Each is understood, answered with help, or refused as a mistake with the right code; none ends the program.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use clap::error::ErrorKind;

use super::{Cli, CliCommand, USAGE};
use crate::failure::WRAPPER_FAILED;

/// One word a line, without our own name; words may be any bytes.
fn command_line(bytes: &[u8]) -> String {
    let words = bytes.split(|byte| *byte == b'\n').filter(|_| !bytes.is_empty()).map(OsStr::from_bytes);
    let words: Vec<OsString> = [OsStr::new("tenure")].into_iter().chain(words).map(OsStr::to_owned).collect();
    match Cli::read(&words) {
        Ok(cli) => {
            let command = cli.command.as_ref().map(name).unwrap_or_default();
            format!("{command} understood, a command of the user's: {}", cli.is_wrapper())
        }
        Err(error) => {
            let is_answer = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
            assert_eq!(error.exit_code(), if is_answer { 0 } else { i32::from(USAGE) }, "{words:?}");
            let text = error.render().to_string();
            assert!(is_answer || text.starts_with("error: ") || is_usage(&text), "{words:?}: {text}");
            let code = Cli::mistake_code(&words);
            let runs_nothing = !words
                .iter()
                .any(|word| ["lock", "elect", "once", "register"].iter().any(|wrapper| word == wrapper));
            // Only who runs commands of users keeps out of the way of their codes.
            assert!(code == USAGE || (code == WRAPPER_FAILED && !runs_nothing), "{words:?}: {code}");
            format!("{:?} {code}", error.kind())
        }
    }
}

/// A command without its subcommand answers with its help.
fn is_usage(text: &str) -> bool {
    text.contains("Usage: ")
}

/// The first word of how it is shown: its variant.
fn name(command: &CliCommand) -> String {
    format!("{command:?}")
        .split(|letter: char| !letter.is_ascii_alphanumeric())
        .next()
        .unwrap_or_default()
        .to_owned()
}

#[test]
fn command_lines_soak() {
    tenure_fuzz::fuzz(env!("CARGO_MANIFEST_DIR"), "command_line", command_line);
}
