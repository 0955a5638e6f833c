//! Parses the keys, prefixes, leases and revisions of a command line.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use tenure::store::{LeaseId, Selection};
use tenure_core::revision::Revision;

use crate::failure::Failure;
use crate::output::is_treacherous;

/// One key, as text or as base64.
#[derive(Args, Debug)]
pub(super) struct KeyArg {
    /// The key, literally.
    #[arg(id = "raw_key", value_name = "KEY", required_unless_present = "raw_key_b64")]
    text: Option<String>,
    /// The key in base64, for keys with control characters or bytes that are not text.
    #[arg(long = "key-b64", id = "raw_key_b64", value_name = "BASE64", conflicts_with = "raw_key")]
    b64: Option<String>,
}

impl KeyArg {
    /// A key given as an argument, which must be text.
    pub(super) fn from_text(text: &OsStr) -> Result<KeyArg, Failure> {
        let text = text.to_str().ok_or_else(|| {
            Failure::usage("the key is not UTF-8 text")
                .hint(format!("for this key use --key-b64 {}", STANDARD.encode(text.as_bytes())))
        })?;
        Ok(KeyArg { text: Some(text.to_owned()), b64: None })
    }

    /// A key given with `--key-b64`.
    pub(super) fn from_b64(b64: &str) -> KeyArg {
        KeyArg { text: None, b64: Some(b64.to_owned()) }
    }

    /// The key's bytes, never empty.
    pub(super) fn bytes(&self) -> Result<Vec<u8>, Failure> {
        let bytes = match (&self.text, &self.b64) {
            (Some(text), _) => plain(text)?,
            (None, Some(b64)) => decode(b64)?,
            (None, None) => Vec::new(),
        };
        if bytes.is_empty() {
            return Err(Failure::usage("a key must not be empty"));
        }
        Ok(bytes)
    }
}

/// A key, or every key under a prefix.
#[derive(Args, Debug)]
pub(super) struct KeyOrPrefix {
    /// The key, literally.
    #[arg(id = "raw_key", value_name = "KEY", required_unless_present_any = ["raw_key_b64", "prefix"])]
    text: Option<String>,
    /// The key in base64, for keys with control characters or bytes that are not text.
    #[arg(long = "key-b64", id = "raw_key_b64", value_name = "BASE64", conflicts_with_all = ["raw_key", "prefix"])]
    b64: Option<String>,
    /// Every key under this prefix, which ends in '/' or is ''.
    #[arg(long, value_name = "PREFIX/", conflicts_with = "raw_key")]
    prefix: Option<String>,
}

impl KeyOrPrefix {
    /// The prefix, if `--prefix` was given.
    pub(super) fn prefix(&self) -> Option<&str> {
        self.prefix.as_deref()
    }

    pub(super) fn selection(&self) -> Result<Selection, Failure> {
        match &self.prefix {
            Some(prefix) => self::prefix(prefix),
            None => {
                let key = KeyArg { text: self.text.clone(), b64: self.b64.clone() };
                Ok(Selection::key(key.bytes()?))
            }
        }
    }
}

/// A prefix. It ends in `/` or is empty, so that `/a` never selects `/ab`.
pub(super) fn prefix(text: &str) -> Result<Selection, Failure> {
    if !text.is_empty() && !text.ends_with('/') {
        return Err(Failure::usage(format!(
            "the prefix {text:?} does not end in '/', so it would also select longer names"
        ))
        .hint(format!("use '{text}/', or '' for every key")));
    }
    Ok(Selection::prefix(plain(text)?))
}

/// Text without control characters, which are far more often a mistake than a name.
fn plain(text: &str) -> Result<Vec<u8>, Failure> {
    match text.chars().find(|&c| is_treacherous(c)) {
        None => Ok(text.as_bytes().to_vec()),
        Some(c) => Err(Failure::usage(format!("the key {text:?} has a control character ({c:?})"))
            .hint(format!("for this key use --key-b64 {}", STANDARD.encode(text)))),
    }
}

/// Decodes base64, the form in which `--json` shows bytes that are not text.
pub(super) fn decode(b64: &str) -> Result<Vec<u8>, Failure> {
    STANDARD.decode(b64).map_err(|error| Failure::usage(format!("not base64: {error}")))
}

/// Parses a lease id as listings show it.
pub(crate) fn parse_lease(text: &str) -> Result<LeaseId, String> {
    LeaseId::parse_hex(text)
        .ok_or_else(|| "a lease id is a hexadecimal number, as `tenure kv put --ttl` prints it".to_owned())
}

/// Parses a revision, from 1 on.
pub(super) fn parse_revision(text: &str) -> Result<Revision, String> {
    match text.parse() {
        Ok(number) if number >= 1 => Ok(Revision(number)),
        _ => Err("a revision is a whole number from 1 on".to_owned()),
    }
}

/// Parses a revision to compare with or to continue after; 0 is before every revision.
pub(crate) fn parse_revision_or_zero(text: &str) -> Result<Revision, String> {
    if text == "0" { Ok(Revision::ZERO) } else { parse_revision(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> Result<Vec<u8>, Failure> {
        KeyArg { text: Some(text.to_owned()), b64: None }.bytes()
    }

    #[test]
    fn keys_are_literal() {
        for text in ["/a", "a", " ", "../x", "é☃", "*", "/a/"] {
            assert_eq!(key(text).unwrap(), text.as_bytes());
        }
    }

    #[test]
    fn control_character_is_refused_with_base64_hint() {
        for text in ["a\nb", "\x1b[31m", "a\0", "a\u{202e}b", "\u{9b}"] {
            let failure = key(text).unwrap_err();
            let b64 = failure.hint.unwrap().split(' ').next_back().unwrap().to_owned();
            let meant = KeyArg { text: None, b64: Some(b64) }.bytes().unwrap();
            assert_eq!(meant, text.as_bytes());
        }
        assert!(key("").is_err());
        assert!(KeyArg { text: None, b64: Some(String::new()) }.bytes().is_err());
        assert!(KeyArg { text: None, b64: Some("?".into()) }.bytes().is_err());
    }

    #[test]
    fn prefix_ends_in_slash_or_is_empty() {
        assert_eq!(prefix("/a/").unwrap(), Selection::prefix("/a/"));
        assert_eq!(prefix("").unwrap(), Selection::everything());
        assert!(prefix("/a").unwrap_err().hint.unwrap().contains("'/a/'"));
        assert!(prefix("\n/").is_err());
    }

    #[test]
    fn revisions_begin_at_one() {
        assert_eq!(parse_revision("7"), Ok(Revision(7)));
        for bad in ["0", "-1", "x", "", "9223372036854775808"] {
            assert!(parse_revision(bad).is_err(), "{bad}");
        }
        assert_eq!(parse_revision_or_zero("0"), Ok(Revision::ZERO));
    }
}
