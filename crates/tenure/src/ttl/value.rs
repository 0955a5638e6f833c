//! The nonce in a stored value: it identifies one campaign.
//!
//! The stored form is `v1:<nonce>:<value>`, with a nonce of 32 hexadecimal digits. So two candidates with the same value by mistake store
//! two values, and a lost reply can be settled by a comparison.

use std::fmt;

use bytes::Bytes;

use crate::rng;

/// The format version before the nonce.
const FORMAT: &str = "v1:";

/// The digits of a nonce.
const NONCE_LEN: usize = 32;

/// A random number that identifies one campaign.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nonce(u128);

impl Nonce {
    pub(super) fn random() -> Nonce {
        Nonce(u128::from_le_bytes(rng::bytes()))
    }

    fn parse(text: &[u8]) -> Option<Nonce> {
        let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if text.len() != NONCE_LEN || !text.iter().all(is_digit) {
            return None;
        }
        u128::from_str_radix(std::str::from_utf8(text).ok()?, 16).ok().map(Nonce)
    }
}

impl fmt::Display for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "nonce:{self}")
    }
}

/// The value of a candidate, and how it is stored with a nonce.
///
/// Text and bytes are stored as `v1:<nonce>:<value>`. An own type may keep the nonce in a field instead.
pub trait TtlValue: Clone + PartialEq + Send + Sync + 'static {
    /// The value as it is stored: different for each nonce.
    fn stamped(&self, nonce: Nonce) -> Self;

    /// The nonce and the value of what was stored; none if no election stored it.
    fn unstamped(&self) -> Option<(Nonce, Self)>;
}

impl TtlValue for String {
    fn stamped(&self, nonce: Nonce) -> String {
        format!("{FORMAT}{nonce}:{self}")
    }

    fn unstamped(&self) -> Option<(Nonce, String)> {
        let (nonce, start) = split(self.as_bytes())?;
        Some((nonce, self.get(start..)?.to_owned()))
    }
}

impl TtlValue for Bytes {
    fn stamped(&self, nonce: Nonce) -> Bytes {
        let mut stored = format!("{FORMAT}{nonce}:").into_bytes();
        stored.extend_from_slice(self);
        stored.into()
    }

    fn unstamped(&self) -> Option<(Nonce, Bytes)> {
        let (nonce, start) = split(self)?;
        Some((nonce, self.slice(start..)))
    }
}

impl TtlValue for Vec<u8> {
    fn stamped(&self, nonce: Nonce) -> Vec<u8> {
        let mut stored = format!("{FORMAT}{nonce}:").into_bytes();
        stored.extend_from_slice(self);
        stored
    }

    fn unstamped(&self) -> Option<(Nonce, Vec<u8>)> {
        let (nonce, start) = split(self)?;
        Some((nonce, self[start..].to_vec()))
    }
}

/// The nonce, and where the value begins.
fn split(stored: &[u8]) -> Option<(Nonce, usize)> {
    let rest = stored.strip_prefix(FORMAT.as_bytes())?;
    let (nonce, rest) = rest.split_at_checked(NONCE_LEN)?;
    (rest.first() == Some(&b':')).then_some((Nonce::parse(nonce)?, FORMAT.len() + NONCE_LEN + 1))
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamped_value_is_split_again() {
        let nonce = Nonce(0xabc);
        assert_eq!("web-1".to_owned().stamped(nonce), "v1:00000000000000000000000000000abc:web-1");
        for value in ["web-1", "", "a:b:c", "ümlaut", "v1:x"] {
            let text = value.to_owned();
            assert_eq!(text.stamped(nonce).unstamped(), Some((nonce, text)));
            let bytes = Bytes::from(value);
            assert_eq!(bytes.stamped(nonce).unstamped(), Some((nonce, bytes)));
            let bytes = value.as_bytes().to_vec();
            assert_eq!(bytes.stamped(nonce).unstamped(), Some((nonce, bytes)));
        }
    }

    #[test]
    fn foreign_value_is_not_split() {
        for foreign in [
            "",
            "v1:",
            "v1:abc:x",
            "v2:00000000000000000000000000000abc:x",
            "v1:0000000000000000000000000000ABC0:x",
            "v1:+0000000000000000000000000000abc:x",
            "v1:00000000000000000000000000000abc",
            "v1:ääääääääääääääää:x",
        ] {
            assert_eq!(foreign.to_owned().unstamped(), None, "{foreign}");
        }
    }

    #[test]
    fn random_nonces_differ() {
        assert_ne!(Nonce::random(), Nonce::random());
    }
}
