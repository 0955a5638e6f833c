//! Reports mistakes in a command line in the format of all failures: what is wrong, why, and the command to type next.
//!
//! clap finds the mistakes; its own text is never printed. For verbs of other tools (`task cancel`, `-o json`) the hint has the command of this tool.

mod names;
mod suggest;

use std::error::Error as _;
use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::cli::Cli;
use crate::failure::Failure;
use crate::output::escape;

pub(crate) use names::{Verbs, flag_after_command, verb_as_name};

/// The failure for a command line that clap refused.
pub(crate) fn failure(error: &clap::Error, typed: &[OsString]) -> Failure {
    let path = Cli::path(typed);
    let mistake = Mistake { error, typed, command: path.join(" ") };
    match error.kind() {
        ErrorKind::InvalidSubcommand => mistake.subcommand(),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand => {
            mistake.no_subcommand(&path)
        }
        ErrorKind::UnknownArgument => mistake.argument(),
        ErrorKind::MissingRequiredArgument => mistake.missing(),
        ErrorKind::InvalidValue | ErrorKind::ValueValidation => mistake.value(),
        ErrorKind::ArgumentConflict => mistake.conflict(),
        _ => mistake.other(),
    }
}

/// Whether a word looks like an address. It may contain a password, so no message repeats it.
fn is_address(word: &str) -> bool {
    word.contains("://") || word.contains('@') || word.contains(':')
}

/// A command line that clap refused.
struct Mistake<'a> {
    error: &'a clap::Error,
    /// The whole command line.
    typed: &'a [OsString],
    /// The parsed part of it, such as `tenure task ls`.
    command: String,
}

impl Mistake<'_> {
    fn subcommand(&self) -> Failure {
        let word = self.context(ContextKind::InvalidSubcommand);
        let similar = self.contexts(ContextKind::SuggestedSubcommand);
        let hint = match (suggest::meant(&self.command, &word), similar.as_slice()) {
            (Some(meant), _) => meant.to_owned(),
            (None, []) => format!("`{} --help` lists its commands", self.command),
            (None, similar) => {
                // clap puts the most similar last.
                let similar: Vec<String> =
                    similar.iter().rev().take(2).map(|name| format!("`{} {name}`", self.command)).collect();
                format!("did you mean {}?", similar.join(" or "))
            }
        };
        if is_address(&word) {
            return Failure::usage(format!("`{}` has an address in the place of a command", self.command))
                .hint(
                    "give the address with --store, and user and password with --user and --password-file",
                );
        }
        Failure::usage(format!("`{}` has no command '{word}'", self.command)).hint(hint)
    }

    fn no_subcommand(&self, path: &[String]) -> Failure {
        let names = Cli::subcommands(path);
        Failure::usage(format!("`{}` needs a command, and none was given", self.command)).hint(format!(
            "add one of {}; `{} --help` explains them",
            names.join(", "),
            self.command
        ))
    }

    fn argument(&self) -> Failure {
        let word = self.context(ContextKind::InvalidArg);
        let typed = self.typed_as(&word);
        let refused =
            |why: &str| Failure::usage(format!("`{}` takes no argument '{typed}'{why}", self.command));
        if typed.strip_prefix('-').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit())) {
            let flag = self.flag_before(&typed);
            return Failure::usage(format!("{flag}{typed}: the value is negative"))
                .hint("write a number from 0 on, or a duration as 500ms, 15s, 2m or 1h30m");
        }
        if let Some(hint) = suggest::flag(&self.command, &word) {
            return refused("").hint(hint);
        }
        if self.command == "tenure worker" && !typed.starts_with('-') {
            let command = self.after_separator().unwrap_or(typed.clone());
            return refused(": the command of a worker is given with --exec")
                .hint(format!("write it as `tenure worker --exec '{command}'`"));
        }
        let similar = self.contexts(ContextKind::SuggestedArg);
        let hint = match similar.first() {
            Some(similar) => format!("did you mean {similar}? `{} --help` lists all", self.command),
            None => format!("`{} --help` lists what it takes", self.command),
        };
        refused("").hint(hint)
    }

    fn missing(&self) -> Failure {
        let missing = self.contexts(ContextKind::InvalidArg).join(" and ");
        Failure::usage(format!("`{}` needs {missing}, and it was not given", self.command))
            .hint(format!("write it as `{}`", self.usage()))
    }

    fn value(&self) -> Failure {
        let (flag, value) = (self.context(ContextKind::InvalidArg), self.context(ContextKind::InvalidValue));
        let flag = flag.split([' ', '=']).next().unwrap_or_default();
        let help = format!("`{} --help` explains {flag}", self.command);
        let valid = self.contexts(ContextKind::ValidValue);
        if value.is_empty() && self.error.source().is_none() {
            return Failure::usage(format!("{flag} needs a value, and none was given")).hint(help);
        }
        if !valid.is_empty() {
            return Failure::usage(format!("{flag} {value}: unknown value"))
                .hint(format!("use one of {}", valid.join(", ")));
        }
        // The parsers of this crate return "what is wrong; what to write instead".
        let why = self.error.source().map(ToString::to_string).unwrap_or_default();
        let (why, hint) =
            why.split_once("; ").map_or((why.as_str(), help), |(why, hint)| (why, hint.to_owned()));
        Failure::usage(format!("{flag} {value}: {why}")).hint(hint)
    }

    fn conflict(&self) -> Failure {
        let (one, others) = (self.context(ContextKind::InvalidArg), self.contexts(ContextKind::PriorArg));
        let other = others.first().map_or("another flag", String::as_str);
        if one == other {
            return Failure::usage(format!("{one} was given twice, and it can have only one value"))
                .hint("leave one of them out");
        }
        Failure::usage(format!("{one} and {other} exclude each other"))
            .hint(format!("leave one of them out; `{} --help` explains both", self.command))
    }

    fn other(&self) -> Failure {
        let text = self.error.render().to_string();
        let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
        Failure::usage(line.trim_start_matches("error: "))
            .hint(format!("`{} --help` explains the command", self.command))
    }

    /// The values of clap's error for a kind of context.
    fn contexts(&self, kind: ContextKind) -> Vec<String> {
        match self.error.get(kind) {
            Some(ContextValue::String(text)) => vec![text.clone()],
            Some(ContextValue::Strings(texts)) => texts.clone(),
            _ => Vec::new(),
        }
    }

    fn context(&self, kind: ContextKind) -> String {
        self.contexts(kind).into_iter().next().unwrap_or_default()
    }

    /// The usage of the command, which clap generates.
    fn usage(&self) -> String {
        let text = match self.error.get(ContextKind::Usage) {
            Some(ContextValue::StyledStr(text)) => text.to_string(),
            _ => return format!("{} --help", self.command),
        };
        text.trim_start_matches("Usage:").trim().to_owned()
    }

    /// The word as it was typed: clap cuts `-5s` to `-5`.
    fn typed_as(&self, word: &str) -> String {
        let words = self.typed.iter().map(|typed| escape(typed.as_encoded_bytes()));
        words.into_iter().find(|typed| typed.starts_with(word)).unwrap_or_else(|| word.to_owned())
    }

    /// The flag before a word, with a space.
    fn flag_before(&self, word: &str) -> String {
        let words: Vec<String> = self.typed.iter().map(|typed| escape(typed.as_encoded_bytes())).collect();
        let at = words.iter().position(|typed| typed == word).unwrap_or(0);
        let before = at.checked_sub(1).and_then(|before| words.get(before));
        before.filter(|before| before.starts_with('-')).map(|flag| format!("{flag} ")).unwrap_or_default()
    }

    /// The command after `--`.
    fn after_separator(&self) -> Option<String> {
        let at = self.typed.iter().position(|typed| typed == "--")?;
        let rest: Vec<String> =
            self.typed.iter().skip(at + 1).map(|typed| escape(typed.as_encoded_bytes())).collect();
        (!rest.is_empty()).then(|| rest.join(" "))
    }
}
