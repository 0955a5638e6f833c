//! Parses `KEY=VALUE`, and computes its key in the store.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use bytes::Bytes;
use tenure_core::id::{InstanceId, InvalidName, Namespace, RegistryKey, ServiceName};
use tenure_core::layout::{Key, Layout};
use thiserror::Error;

use crate::failure::Failure;
use crate::output::escape;

/// A key to register.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct RegisterPair {
    /// The given key, relative to the namespace's registry or to its services.
    pub(super) name: RegistryKey,
    /// The key in the store.
    pub(super) path: Bytes,
    pub(super) value: Bytes,
}

/// Why `KEY=VALUE` cannot be registered.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub(super) enum InvalidPair {
    #[error("{0:?} has no '=': give each key with its value")]
    NoValue(String),
    #[error("the key of {0:?} is not UTF-8 text")]
    NotText(String),
    #[error("the key before '=' is missing")]
    Empty,
    #[error("the key {key:?} begins with '/', but keys are relative to {root}")]
    Absolute { key: String, root: String },
    #[error("the key {0:?} has an empty segment, '.' or '..', which keys cannot have")]
    Segment(String),
    #[error("invalid key {key:?}: {why}")]
    Name { key: String, why: InvalidName },
    #[error("the key {0:?} is given twice")]
    Twice(String),
}

impl From<InvalidPair> for Failure {
    fn from(bad: InvalidPair) -> Failure {
        let hint = match &bad {
            InvalidPair::NoValue(text) if matches!(text.as_str(), "ls" | "list" | "show" | "help") => {
                "`tenure service ls` lists what is registered, `tenure register --help` explains the command"
                    .to_owned()
            }
            InvalidPair::NoValue(text) => {
                format!("write it as {text}=VALUE; {text}= registers an empty value")
            }
            InvalidPair::Absolute { key, root } => {
                let relative = key.strip_prefix(root.as_str()).unwrap_or(key).trim_start_matches('/');
                format!("use {relative:?}; for a raw key there is `tenure kv put --ttl`")
            }
            InvalidPair::Twice(_) => "leave one of them out".to_owned(),
            InvalidPair::NotText(_)
            | InvalidPair::Empty
            | InvalidPair::Segment(_)
            | InvalidPair::Name { .. } => {
                "write a key as in web/1=10.0.0.7:80: segments between single slashes".to_owned()
            }
        };
        Failure::usage(bad.to_string()).hint(hint)
    }
}

/// Parses all pairs, or returns the first error.
pub(super) fn parse(texts: &[OsString], namespace: &Namespace) -> Result<Vec<RegisterPair>, InvalidPair> {
    let layout = Layout::new(namespace);
    let mut seen = BTreeSet::new();
    let mut pairs = Vec::with_capacity(texts.len());
    for text in texts {
        let pair = parse_one(text.as_bytes(), namespace, &layout)?;
        // Compared by the stored key: `web/1` and `services/web/1` are the same.
        if !seen.insert(pair.path.clone()) {
            return Err(InvalidPair::Twice(pair.name.to_string()));
        }
        pairs.push(pair);
    }
    Ok(pairs)
}

fn parse_one(text: &[u8], namespace: &Namespace, layout: &Layout) -> Result<RegisterPair, InvalidPair> {
    let separator =
        text.iter().position(|&byte| byte == b'=').ok_or_else(|| InvalidPair::NoValue(escape(text)))?;
    let (key, value) = (&text[..separator], &text[separator + 1..]);
    let key = std::str::from_utf8(key).map_err(|_| InvalidPair::NotText(escape(key)))?;
    if key.is_empty() {
        return Err(InvalidPair::Empty);
    }
    if key.starts_with('/') {
        return Err(InvalidPair::Absolute { key: key.to_owned(), root: format!("/{namespace}/registry/") });
    }
    if key.split('/').any(|segment| matches!(segment, "" | "." | "..")) {
        return Err(InvalidPair::Segment(key.to_owned()));
    }
    let invalid = |why| InvalidPair::Name { key: key.to_owned(), why };
    let name = RegistryKey::parse(key).map_err(invalid)?;
    let stored = instance(key).map_err(invalid)?.unwrap_or_else(|| name.clone());
    let path = layout.encode(&Key::Registration(stored));
    Ok(RegisterPair { name, path, value: Bytes::copy_from_slice(value) })
}

/// The stored key of `SERVICE/INSTANCE`, where `tenure service show SERVICE` finds it. Any other key is stored as given, also one that
/// begins with `services/` already.
fn instance(key: &str) -> Result<Option<RegistryKey>, InvalidName> {
    match key.split_once('/') {
        Some((service, instance)) if service != "services" && !instance.contains('/') => {
            RegistryKey::of_instance(&ServiceName::parse(service)?, &InstanceId::parse(instance)?).map(Some)
        }
        _ => Ok(None),
    }
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    fn read(texts: &[&str]) -> Result<Vec<(String, Bytes)>, InvalidPair> {
        let texts: Vec<OsString> = texts.iter().map(OsString::from).collect();
        let pairs = parse(&texts, &Namespace::parse("shop").unwrap())?;
        Ok(pairs
            .into_iter()
            .map(|pair| (String::from_utf8(pair.path.to_vec()).unwrap(), pair.value))
            .collect())
    }

    #[test]
    fn first_equals_sign_separates_key_and_value() {
        let pairs = read(&["web/1=a=b", "empty=", "näme= x "]).unwrap();
        assert_eq!(
            pairs,
            [
                ("/shop/registry/services/web/1".to_owned(), Bytes::from("a=b")),
                ("/shop/registry/empty".to_owned(), Bytes::new()),
                ("/shop/registry/näme".to_owned(), Bytes::from(" x ")),
            ]
        );
        let bytes = OsString::from_vec(b"a=\xff\n".to_vec());
        let pairs = parse(&[bytes], &Namespace::parse("shop").unwrap()).unwrap();
        assert_eq!(pairs[0].value, &b"\xff\n"[..]);
    }

    #[test]
    fn invalid_key_is_refused() {
        let absolute = |key: &str| InvalidPair::Absolute { key: key.into(), root: "/shop/registry/".into() };
        for (texts, bad) in [
            (&["web"][..], InvalidPair::NoValue("web".into())),
            (&["=v"], InvalidPair::Empty),
            (&["/web=v"], absolute("/web")),
            (&["/shop/registry/web=v"], absolute("/shop/registry/web")),
            (&["/other/registry/web=v"], absolute("/other/registry/web")),
            (&["../nodes/web=v"], InvalidPair::Segment("../nodes/web".into())),
            (&["a//b=v"], InvalidPair::Segment("a//b".into())),
            (&["a/=v"], InvalidPair::Segment("a/".into())),
            (&["a=1", "b=2", "a=1"], InvalidPair::Twice("a".into())),
        ] {
            assert_eq!(read(texts), Err(bad), "{texts:?}");
        }
        for text in ["a\nb=v", "\x1b[2J=v", "a\u{202e}b=v", &format!("{}=v", "k".repeat(257))] {
            assert!(matches!(read(&[text]), Err(InvalidPair::Name { .. })), "{text:?}");
        }
    }

    /// `register web/1=ADDR` once stored a key that `service show web` did not read.
    #[test]
    fn service_and_instance_are_stored_as_instance() {
        for (text, path) in [
            ("web/1=a", "services/web/1"),
            ("services/web/1=a", "services/web/1"),
            ("we%b/1=a", "services/we%25b/1"),
            ("web=a", "web"),
            ("services/web=a", "services/web"),
            ("a/b/c=a", "a/b/c"),
        ] {
            assert_eq!(read(&[text]).unwrap()[0].0, format!("/shop/registry/{path}"), "{text}");
        }
        assert_eq!(read(&["web/1=a", "services/web/1=b"]), Err(InvalidPair::Twice("services/web/1".into())));
    }

    #[test]
    fn hint_shows_the_intended_key() {
        let hint = |text: &str| Failure::from(read(&[text]).unwrap_err()).hint.unwrap();
        assert!(hint("/shop/registry/web=v").contains("\"web\""));
        assert!(hint("/web=v").contains("\"web\""));
        assert!(hint("web").contains("web=VALUE"));
    }
}
