//! Verbs in the place of a name: `tenure lock ls` means the list of locks, not a lock called ls.

use std::ffi::{OsStr, OsString};

use crate::cli::Cli;
use crate::failure::Failure;
use crate::output::escape;
use crate::supervise::Program;

/// Verbs that a command takes as a name, and the command each is meant to be; NAME stands for the word after it.
pub(crate) type Verbs = &'static [(&'static str, &'static str)];

/// A verb in the place of a name.
///
/// With `--` the name is meant. Without it a word after the name is the command; one that exists is meant, too.
pub(crate) fn verb_as_name(name: &str, command: &[OsString], act: &str, verbs: Verbs) -> Option<Failure> {
    let has_separator = std::env::args_os().any(|typed| typed == "--");
    let has_command = command.first().is_some_and(|command| Program::find(command).is_ok());
    if has_separator || has_command {
        return None;
    }
    let (_, meant) = verbs.iter().find(|(verb, _)| *verb == name)?;
    let of = command.first().map_or("NAME".to_owned(), |of| escape(OsStr::as_encoded_bytes(of)));
    Some(
        Failure::usage(format!("'{name}' stands where a name is expected, and {act}; nothing was done"))
            .hint(format!("did you mean `{}`?", meant.replace("NAME", &of))),
    )
}

/// A flag of ours after a command without `--`, where it is the command's: `tenure lock a sh --ttl 5s`.
pub(crate) fn flag_after_command(command: &[OsString]) -> Option<String> {
    let typed: Vec<OsString> = std::env::args_os().collect();
    let (name, rest) = command.split_first()?;
    if typed.iter().any(|word| word == "--") {
        return None;
    }
    let path = Cli::path(&typed);
    let ours = Cli::flags(&path);
    let is_ours = |word: &&OsString| {
        let word = word.to_string_lossy();
        let long = word.strip_prefix("--").and_then(|flag| flag.split('=').next());
        long.is_some_and(|long| ours.iter().any(|flag| flag == long))
    };
    let flag = escape(rest.iter().find(is_ours)?.as_encoded_bytes());
    let (name, ours) = (escape(name.as_encoded_bytes()), path.join(" "));
    Some(format!(
        "{flag} is passed to {name}, because everything after the command's name is the command's; \
         for tenure write `{ours} NAME {flag} … -- {name} …`, for {name} write `{ours} NAME -- {name} {flag} …`"
    ))
}
