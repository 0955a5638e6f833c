//! Fuzz target: whole command lines. Each is parsed, prints help, or is refused with the right exit code; none panics.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use clap::error::ErrorKind;

use super::{Cli, CliCommand, USAGE};
use crate::failure::WRAPPER_FAILED;

/// One argument per line, without the program's name; arguments may be any bytes.
fn command_line(bytes: &[u8]) -> String {
    let words = bytes.split(|byte| *byte == b'\n').filter(|_| !bytes.is_empty()).map(OsStr::from_bytes);
    let words: Vec<OsString> = [OsStr::new("tenure")].into_iter().chain(words).map(OsStr::to_owned).collect();
    match Cli::read(&words) {
        Ok(cli) => {
            let command = cli.command.as_ref().map(name).unwrap_or_default();
            format!("{command} parsed, wrapper: {}", cli.is_wrapper())
        }
        Err(error) => {
            let is_help = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
            assert_eq!(error.exit_code(), if is_help { 0 } else { i32::from(USAGE) }, "{words:?}");
            let text = error.render().to_string();
            assert!(is_help || text.starts_with("error: ") || is_usage(&text), "{words:?}: {text}");
            let code = Cli::mistake_code(&words);
            let runs_nothing = !words
                .iter()
                .any(|word| ["lock", "elect", "once", "register"].iter().any(|wrapper| word == wrapper));
            // Only a wrapper uses the code that its command cannot be mistaken for.
            assert!(code == USAGE || (code == WRAPPER_FAILED && !runs_nothing), "{words:?}: {code}");
            format!("{:?} {code}", error.kind())
        }
    }
}

/// A command without its subcommand prints its usage.
fn is_usage(text: &str) -> bool {
    text.contains("Usage: ")
}

/// The name of the variant.
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
