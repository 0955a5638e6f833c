//! Validated names of nodes, tasks, locks, elections and namespaces.
//!
//! Names are parsed once, at the edge. etcd takes any bytes for a key, so this module does all
//! checks. A name with a line break would forge log lines, one with an escape sequence would change
//! a terminal, and one with a `/` must not reach another name's keys (the layout escapes it).
//!
//! A name is shared, not copied: a worker has each of a hundred thousand task ids in half a dozen
//! indexes. Its first bytes are stored inline, because they decide most comparisons in those
//! indexes, and each would otherwise follow a pointer.

mod command_id;

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use command_id::{CommandId, CommandIds};

/// The longest name, in bytes: long enough for anything typed, short enough for a key.
pub const NAME_BYTES_MAX: usize = 256;

/// The longest namespace, in bytes, all its segments together.
pub const NAMESPACE_BYTES_MAX: usize = 256;

/// Why a text is not a name.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum InvalidName {
    /// A name has at least one character.
    #[error("a name must not be empty")]
    Empty,
    /// The name is too long.
    #[error("a name of {0} bytes, at most {NAME_BYTES_MAX} are allowed")]
    TooLong(usize),
    /// NUL, line breaks, escape and other control characters.
    #[error("a name must not contain control characters, found {found:?} at byte {at}")]
    Control {
        /// The character.
        found: char,
        /// Its byte offset.
        at: usize,
    },
    /// A namespace is segments between single slashes.
    #[error("a namespace must not have empty segments: {0:?}")]
    EmptySegment(String),
}

fn check(text: &str, bytes_max: usize) -> Result<(), InvalidName> {
    if text.is_empty() {
        return Err(InvalidName::Empty);
    }
    if text.len() > bytes_max {
        return Err(InvalidName::TooLong(text.len()));
    }
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        return Ok(());
    }
    match text.char_indices().find(|(_, c)| is_treacherous(*c)) {
        Some((at, found)) => Err(InvalidName::Control { found, at }),
        None => Ok(()),
    }
}

/// A control character in a text that must not contain one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("must not contain control characters, found {found:?} at byte {at}")]
pub struct ControlCharacter {
    /// The character.
    pub found: char,
    /// Its byte offset.
    pub at: usize,
}

/// Checks a text that is no name and has no limit of its own, such as the kind of a task.
///
/// It is printed on terminals and passed to programs in their environment, so it is refused for the
/// same characters as a name.
///
/// # Errors
///
/// [`ControlCharacter`] for the first one.
pub fn check_text(text: &str) -> Result<(), ControlCharacter> {
    match text.char_indices().find(|(_, c)| is_treacherous(*c)) {
        Some((at, found)) => Err(ControlCharacter { found, at }),
        None => Ok(()),
    }
}

/// Control characters, and the marks that reverse the direction of writing, so that a name reads as
/// another.
fn is_treacherous(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The number of inline bytes: enough for most ids with a counter, and two comparisons of a machine
/// word each.
const HEAD_BYTES: usize = 16;

/// The first bytes of a name as a number that sorts like the name. No name contains NUL, so a
/// padded short name sorts first.
fn head_of(text: &str) -> u128 {
    let mut head = [0; HEAD_BYTES];
    let len = text.len().min(HEAD_BYTES);
    head[..len].copy_from_slice(&text.as_bytes()[..len]);
    u128::from_be_bytes(head)
}

macro_rules! names {
    ($($(#[$doc:meta])* $name:ident;)+) => {$(
        $(#[$doc])*
        #[derive(Clone, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name {
            /// The result of `head_of` for the text.
            head: u128,
            text: Arc<str>,
        }

        impl $name {
            /// Reads a name. Refuses an empty one, a too long one, and control characters.
            pub fn parse(text: &str) -> Result<$name, InvalidName> {
                check(text, NAME_BYTES_MAX)?;
                Ok($name { head: head_of(text), text: text.into() })
            }

            /// The name as it was given.
            pub fn as_str(&self) -> &str {
                &self.text
            }

            /// The text, shared with this name instead of copied.
            pub fn shared_str(&self) -> Arc<str> {
                self.text.clone()
            }
        }

        impl PartialEq for $name {
            fn eq(&self, other: &$name) -> bool {
                self.cmp(other).is_eq()
            }
        }

        impl Eq for $name {}

        impl PartialOrd for $name {
            fn partial_cmp(&self, other: &$name) -> Option<Ordering> {
                Some(self.cmp(other))
            }
        }

        impl Ord for $name {
            fn cmp(&self, other: &$name) -> Ordering {
                self.head.cmp(&other.head).then_with(|| {
                    // Short names with equal heads are equal. Only longer ones follow the pointer.
                    if self.text.len().max(other.text.len()) <= HEAD_BYTES {
                        Ordering::Equal
                    } else {
                        self.text.cmp(&other.text)
                    }
                })
            }
        }

        impl Hash for $name {
            fn hash<H: Hasher>(&self, state: &mut H) {
                self.text.hash(state);
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.text)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", self.text)
            }
        }

        impl FromStr for $name {
            type Err = InvalidName;

            fn from_str(text: &str) -> Result<$name, InvalidName> {
                $name::parse(text)
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidName;

            fn try_from(text: String) -> Result<$name, InvalidName> {
                $name::parse(&text)
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.as_str().to_owned()
            }
        }
    )+};
}

names! {
    /// The name of a node.
    NodeId;
    /// The name of a task.
    TaskId;
    /// The name of a lock.
    LockName;
    /// The name of an election.
    ElectionName;
    /// The name of a service.
    ServiceName;
    /// The name of one instance of a service.
    InstanceId;
    /// The name of one claim of a task: the nonce in the owner's record.
    ClaimId;
    /// The name of a registration. `/` in it groups registrations and is not escaped.
    RegistryKey;
}

/// The part of a store that one group of programs shares: one or more segments, as in `shop` or
/// `shop/eu`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Namespace(String);

impl Namespace {
    /// Reads a namespace. One leading and one trailing `/` are ignored; empty segments are refused.
    pub fn parse(text: &str) -> Result<Namespace, InvalidName> {
        let trimmed = text.strip_prefix('/').unwrap_or(text);
        let trimmed = trimmed.strip_suffix('/').unwrap_or(trimmed);
        check(trimmed, NAMESPACE_BYTES_MAX)?;
        if trimmed.split('/').any(str::is_empty) {
            return Err(InvalidName::EmptySegment(text.to_owned()));
        }
        Ok(Namespace(trimmed.to_owned()))
    }

    /// The segments, without leading or trailing `/`.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_1_to_256_bytes() {
        assert_eq!(TaskId::parse(""), Err(InvalidName::Empty));
        assert!(TaskId::parse(&"x".repeat(256)).is_ok());
        assert_eq!(TaskId::parse(&"x".repeat(257)), Err(InvalidName::TooLong(257)));
        assert_eq!(TaskId::parse(&"ä".repeat(129)), Err(InvalidName::TooLong(258)));
    }

    #[test]
    fn names_sort_like_their_texts() {
        let long = "sixteen bytes are";
        let mut texts: Vec<String> = ["a", "a ", "a!", "ab", "b", "ä", "日本", "sixteen bytes ar", long]
            .iter()
            .flat_map(|text| ["", "-1", "-10", "-2", "ä"].map(|end| format!("{text}{end}")))
            .collect();
        let mut names: Vec<TaskId> = texts.iter().map(|text| TaskId::parse(text).unwrap()).collect();
        texts.sort();
        names.sort();
        assert_eq!(names.iter().map(TaskId::as_str).collect::<Vec<_>>(), texts);
        for (one, other) in names.iter().zip(names.iter().skip(1)) {
            assert!(one < other && one != other, "{one} {other}");
        }
    }

    #[test]
    fn control_characters_are_refused() {
        for text in ["a\0", "a\nb", "\x1b[2J", "a\u{7f}", "a\u{85}", "a\u{202e}b"] {
            assert!(matches!(NodeId::parse(text), Err(InvalidName::Control { .. })), "{text:?}");
        }
        for text in ["a b", "a/b", "..", "%2F", "owner", "näme", "日本"] {
            assert!(NodeId::parse(text).is_ok(), "{text:?}");
        }
    }

    #[test]
    fn namespace_is_trimmed_without_empty_segments() {
        for (text, namespace) in [("shop", "shop"), ("/shop/", "shop"), ("/shop/eu", "shop/eu")] {
            assert_eq!(Namespace::parse(text).unwrap().as_str(), namespace);
        }
        for text in ["", "/", "//", "a//b", "//a", "a\0"] {
            assert!(Namespace::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn name_from_json_is_checked() {
        assert!(serde_json::from_str::<NodeId>("\"a\\u0000\"").is_err());
        assert_eq!(serde_json::from_str::<NodeId>("\"a\"").unwrap().as_str(), "a");
        assert!(serde_json::from_str::<CommandId>("\"a\\u0000\"").is_err());
        assert!(serde_json::from_str::<CommandId>("\"0190a000-0000-7000-8000-000000000000\"").is_ok());
    }
}
