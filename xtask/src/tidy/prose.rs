//! Banned words: the terms of the field are written instead, as the glossary in ARCHITECTURE.md defines them.

use std::sync::OnceLock;

use super::Breach;
use super::rust::{TokenKind, items, tokens};
use super::tree::Tree;

/// The banned words, in a file of their own so that no source needs an exception.
const LIST: &str = include_str!("../../banned_words.txt");

/// Documents that strangers read; the style guide and the change log quote the words they replace. The list of modules repeats lines
/// that are checked in the sources.
const DOCUMENTS: [&str; 5] = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "docs/", "crates/"];

/// One banned phrase.
#[derive(Debug)]
struct Phrase {
    words: Vec<&'static str>,
    /// Whether the last word is only a beginning.
    is_open: bool,
    /// Whether only names are checked.
    is_for_names: bool,
    instead: &'static str,
}

/// Banned words in comments, strings, documents and the names of items.
pub(super) fn banned(tree: &Tree) -> Vec<Breach> {
    let mut breaches = Vec::new();
    for (path, text) in tree.files() {
        if path.ends_with(".rs") {
            in_source(path, text, &mut breaches);
        } else if path.ends_with(".md")
            && path != crate::modules::DOCUMENT
            && DOCUMENTS.iter().any(|beginning| path.starts_with(beginning))
        {
            in_prose(path, 1, text, &mut breaches);
        }
    }
    breaches
}

fn in_source(path: &str, text: &str, breaches: &mut Vec<Breach>) {
    let tokens = tokens(text);
    for token in tokens
        .iter()
        .filter(|token| matches!(token.kind, TokenKind::DocComment | TokenKind::Comment | TokenKind::Str))
    {
        in_prose(path, token.line, token.text, breaches);
    }
    for item in items(&tokens) {
        in_name(path, item.line, item.name, breaches);
    }
    let stem = path.rsplit('/').next().unwrap_or_default().trim_end_matches(".rs");
    in_name(path, 1, stem, breaches);
}

/// Each line by itself, and each line together with the first words of the next: a phrase may be broken there.
fn in_prose(path: &str, first_line: usize, text: &str, breaches: &mut Vec<Breach>) {
    let mut words: Vec<(usize, String)> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        words.extend(split_prose(line).map(|word| (first_line + index, word)));
    }
    for start in 0..words.len() {
        for phrase in phrases().iter().filter(|phrase| !phrase.is_for_names) {
            let found = words[start..].iter().map(|(_, word)| word.as_str());
            if phrase.begins(found) {
                breaches.push(phrase.breach(path, words[start].0));
            }
        }
    }
}

fn in_name(path: &str, line: usize, name: &str, breaches: &mut Vec<Breach>) {
    let words = split_name(name);
    for start in 0..words.len() {
        for phrase in phrases() {
            if phrase.begins(words[start..].iter().map(String::as_str)) {
                breaches.push(phrase.breach(path, line));
            }
        }
    }
}

impl Phrase {
    /// Whether the words begin with this phrase.
    fn begins<'a>(&self, mut words: impl Iterator<Item = &'a str>) -> bool {
        let (last, before) = self.words.split_last().expect("a phrase has a word");
        before.iter().all(|word| words.next() == Some(word))
            && words
                .next()
                .is_some_and(|word| if self.is_open { word.starts_with(last) } else { word == *last })
    }

    fn breach(&self, path: &str, line: usize) -> Breach {
        Breach::at(path, line, format!("`{}`: write {}", self.words.join(" "), self.instead))
    }
}

fn phrases() -> &'static [Phrase] {
    static PHRASES: OnceLock<Vec<Phrase>> = OnceLock::new();
    PHRASES.get_or_init(|| LIST.lines().filter_map(phrase).collect())
}

/// A line of the list: `prose WORDS: INSTEAD` or `name WORDS: INSTEAD`.
fn phrase(line: &'static str) -> Option<Phrase> {
    let (key, instead) = line.split_once(": ")?;
    let (is_for_names, words) = match key.split_once(' ')? {
        ("prose", words) => (false, words),
        ("name", words) => (true, words),
        _ => return None,
    };
    let is_open = words.ends_with('*');
    let words = words.trim_end_matches('*').split(' ').collect();
    Some(Phrase { words, is_open, is_for_names, instead })
}

/// The words of a sentence in lower case. A possessive loses its ending; names in snake case are split.
fn split_prose(text: &str) -> impl Iterator<Item = String> {
    text.split(|c: char| !(c.is_alphanumeric() || c == '\''))
        .map(|word| word.trim_matches('\'').trim_end_matches("'s").to_lowercase())
        .filter(|word| !word.is_empty())
}

/// The words of a name in snake case, kebab case or camel case, in lower case.
fn split_name(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    for c in name.chars() {
        if c == '_' || c == '-' {
            words.push(String::new());
            continue;
        }
        // A run of capitals, as in a constant, is one word.
        let is_start = c.is_uppercase() && name.chars().any(char::is_lowercase);
        if is_start {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut() {
            word.extend(c.to_lowercase());
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines_of(path: &str, text: &str) -> Vec<Option<usize>> {
        banned(&Tree::of(&[(path, text)])).into_iter().map(|breach| breach.line).collect()
    }

    #[test]
    fn list_is_read_whole() {
        let entries = LIST.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).count();
        assert_eq!(phrases().len(), entries);
        assert!(phrases().iter().any(|phrase| phrase.is_for_names));
        assert!(phrases().iter().any(|phrase| phrase.words.len() == 2 && !phrase.is_open));
    }

    #[test]
    fn every_phrase_is_found_in_prose_and_names() {
        for phrase in phrases() {
            let written = phrase.words.join(" ");
            let name = phrase.words.join("_");
            for (text, is_prose) in [
                (format!("//! A.\n// The {written}.\n"), true),
                (format!("//! A.\n/// The {written}.\n"), true),
                (format!("//! A.\nlet a = \"the {written}\";\n"), true),
                (format!("//! A.\nfn the_{name}() {{}}\n"), false),
            ] {
                let expected = if is_prose && phrase.is_for_names { 0 } else { 1 };
                assert_eq!(lines_of("a.rs", &text).len(), expected, "{text}");
            }
        }
    }

    #[test]
    fn broken_phrase_counts_where_it_begins() {
        let (first, second) = phrases()
            .iter()
            .find_map(|phrase| match phrase.words[..] {
                [first, second] => Some((first, second)),
                _ => None,
            })
            .unwrap();
        let text = format!("//! A.\n/*\n a {first}\n {second} */\n");
        assert_eq!(lines_of("a.rs", &text), [Some(3)]);
        assert_eq!(lines_of("docs/a.md", &format!("A.\n\n{first}\n{second}\n")), [Some(3)]);
    }

    #[test]
    fn code_and_longer_phrases_pass() {
        let word = phrases()[0].words[0];
        let name = phrases().iter().find(|phrase| phrase.is_for_names).unwrap().words[0];
        let text = format!("//! A.\nlet {word} = 1;\n// {word}x x{word} {name}\n");
        assert_eq!(lines_of("a.rs", &text), []);
        assert_eq!(lines_of("CHANGELOG.md", word), []);
        assert_eq!(lines_of("README.md", word), [Some(1)]);
    }

    #[test]
    fn names_are_split_in_every_case() {
        assert_eq!(split_name("HeldLease"), ["held", "lease"]);
        assert_eq!(split_name("held_lease"), ["held", "lease"]);
        assert_eq!(split_name("HELD_LEASE"), ["held", "lease"]);
        let file = phrases().iter().find(|phrase| phrase.is_for_names).unwrap().words[0];
        assert_eq!(lines_of(&format!("src/{file}.rs"), "//! A.\n"), [Some(1)]);
    }
}
