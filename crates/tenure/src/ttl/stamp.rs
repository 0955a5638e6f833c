//! The nonce in what is stored: whose it is, when two electors go by the same name.
//!
//! Stored is `v1:<nonce>:<value>`, with a nonce of 32 hexadecimal digits, one for each acquisition. So two electors that were
//! started with the same value by mistake still store two values, and an answer that was lost can be settled by comparing.

use std::fmt;

use bytes::Bytes;

use crate::dice;

/// What stands before the nonce; another format begins with another number.
const FORMAT: &str = "v1:";

/// How many digits a nonce has.
const NONCE_LEN: usize = 32;

/// The mark of one acquisition.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nonce(u128);

impl Nonce {
    pub(super) fn random() -> Nonce {
        Nonce(u128::from_le_bytes(dice::bytes()))
    }

    fn parse(text: &[u8]) -> Option<Nonce> {
        let is_ours = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if text.len() != NONCE_LEN || !text.iter().all(is_ours) {
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

/// What a leader says of itself, and how the nonce is put beside it.
///
/// Text and bytes are stored as `v1:<nonce>:<value>`. A type of your own may keep the nonce in a field instead.
pub trait Value: Clone + PartialEq + Send + Sync + 'static {
    /// The value as it is stored: different for each nonce.
    fn stamped(&self, nonce: Nonce) -> Self;

    /// What was stored, taken apart; none if it was not stored by an election.
    fn unstamped(&self) -> Option<(Nonce, Self)>;
}

impl Value for String {
    fn stamped(&self, nonce: Nonce) -> String {
        format!("{FORMAT}{nonce}:{self}")
    }

    fn unstamped(&self) -> Option<(Nonce, String)> {
        let (nonce, start) = split(self.as_bytes())?;
        Some((nonce, self.get(start..)?.to_owned()))
    }
}

impl Value for Bytes {
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

impl Value for Vec<u8> {
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
    fn what_was_stamped_comes_apart_again() {
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
    fn what_no_election_stored_is_not_taken_apart() {
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
    fn two_nonces_are_two() {
        assert_ne!(Nonce::random(), Nonce::random());
    }
}
