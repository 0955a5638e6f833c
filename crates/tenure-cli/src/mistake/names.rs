//! Refuses a verb that was given as a name: `tenure lock ls` means `tenure locks ls`, not a lock with the name ls.

use std::ffi::{OsStr, OsString};

use crate::cli::Cli;
use crate::failure::Failure;
use crate::output::escape;
use crate::supervise::Program;

/// Verbs that a command would take as a name, with the command that is meant. NAME is replaced by the next argument.
pub(crate) type Verbs = &'static [(&'static str, &'static str)];

/// The failure if a name is a verb.
///
/// With `--`, or with an existing command after the name, the user means the name.
pub(crate) fn verb_as_name(name: &str, command: &[OsString], act: &str, verbs: Verbs) -> Option<Failure> {
    let has_separator = std::env::args_os().any(|typed| typed == "--");
    let has_command = command.first().is_some_and(|command| Program::find(command).is_ok());
    if has_separator || has_command {
        return None;
    }
    let (_, meant) = verbs.iter().find(|(verb, _)| *verb == name)?;
    let of = command.first().map_or("NAME".to_owned(), |of| escape(OsStr::as_encoded_bytes(of)));
    Some(
        Failure::usage(format!("'{name}' is used as a name, and {act}; nothing was done"))
            .hint(format!("did you mean `{}`?", meant.replace("NAME", &of))),
    )
}

/// A note about a flag of tenure after a command without `--`, where it belongs to the command: `tenure lock a sh --ttl 5s`.
pub(crate) fn flag_after_command(command: &[OsString]) -> Option<String> {
    let typed: Vec<OsString> = std::env::args_os().collect();
    let (name, rest) = command.split_first()?;
    if typed.iter().any(|word| word == "--") {
        return None;
    }
    let path = Cli::path(&typed);
    let flags = Cli::flags(&path);
    let is_own_flag = |word: &&OsString| {
        let word = word.to_string_lossy();
        let long = word.strip_prefix("--").and_then(|flag| flag.split('=').next());
        long.is_some_and(|long| flags.iter().any(|flag| flag == long))
    };
    let flag = escape(rest.iter().find(is_own_flag)?.as_encoded_bytes());
    let (name, verb) = (escape(name.as_encoded_bytes()), path.join(" "));
    Some(format!(
        "{flag} is passed to {name}, because everything after the command's name is the command's; \
         for tenure write `{verb} NAME {flag} … -- {name} …`, for {name} write `{verb} NAME -- {name} {flag} …`"
    ))
}
