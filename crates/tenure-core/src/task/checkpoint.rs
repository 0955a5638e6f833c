//! The progress that a task leaves for its next owner: bytes that only its handler understands.
//!
//! Records are JSON, and JSON has no bytes, so a checkpoint is stored as base64 text.

use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// How many bytes a checkpoint may have. As text it is a third longer, and a record of twice this size is not even read.
pub const CHECKPOINT_BYTES_MAX: usize = 256 * 1024;

/// Progress of a task.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Checkpoint(Bytes);

/// Progress that is too much to store. Keep it elsewhere, and store where it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("a checkpoint of {0} bytes, at most {CHECKPOINT_BYTES_MAX} are stored")]
pub struct CheckpointTooLarge(pub usize);

impl Checkpoint {
    /// These bytes.
    ///
    /// # Errors
    ///
    /// [`CheckpointTooLarge`] above [`CHECKPOINT_BYTES_MAX`].
    pub fn new(bytes: impl Into<Bytes>) -> Result<Checkpoint, CheckpointTooLarge> {
        let bytes = bytes.into();
        if bytes.len() > CHECKPOINT_BYTES_MAX {
            return Err(CheckpointTooLarge(bytes.len()));
        }
        Ok(Checkpoint(bytes))
    }

    /// The bytes.
    pub fn bytes(&self) -> &Bytes {
        &self.0
    }
}

/// It may be secret, so only its size is shown.
impl fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Checkpoint({} bytes)", self.0.len())
    }
}

impl From<Checkpoint> for String {
    fn from(checkpoint: Checkpoint) -> String {
        encode(&checkpoint.0)
    }
}

impl TryFrom<String> for Checkpoint {
    type Error = InvalidCheckpoint;

    fn try_from(text: String) -> Result<Checkpoint, InvalidCheckpoint> {
        let bytes = decode(text.as_bytes()).ok_or(InvalidCheckpoint::NotBase64)?;
        Checkpoint::new(bytes).map_err(InvalidCheckpoint::TooLarge)
    }
}

/// Why a text is not a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum InvalidCheckpoint {
    /// Not written as we write it.
    #[error("a checkpoint is base64 text")]
    NotBase64,
    /// Too long.
    #[error("{0}")]
    TooLarge(CheckpointTooLarge),
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// RFC 4648, with padding.
fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let at = |index: usize| u32::from(group.get(index).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for place in 0..4 {
            let is_padding = place > group.len();
            let index = (bits >> (18 - 6 * place)) & 63;
            text.push(if is_padding { '=' } else { char::from(ALPHABET[index as usize]) });
        }
    }
    text
}

/// What [`encode`] writes, and nothing else.
fn decode(text: &[u8]) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(4) {
        return None;
    }
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let groups = text.len() / 4;
    for (number, group) in text.chunks(4).enumerate() {
        let padding = group.iter().rev().take_while(|&&c| c == b'=').count();
        if padding > 2 || (padding > 0 && number + 1 < groups) {
            return None;
        }
        let mut bits = 0_u32;
        for &c in &group[..4 - padding] {
            bits = bits << 6 | u32::from(value(c)?);
        }
        bits <<= 6 * padding;
        let [_, first, second, third] = bits.to_be_bytes();
        let group = [first, second, third];
        let (kept, cut) = group.split_at(3 - padding);
        if cut.iter().any(|&byte| byte != 0) {
            return None;
        }
        bytes.extend_from_slice(kept);
    }
    Some(bytes)
}

fn value(c: u8) -> Option<u8> {
    Some(match c {
        b'A'..=b'Z' => c - b'A',
        b'a'..=b'z' => c - b'a' + 26,
        b'0'..=b'9' => c - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_text_is_that_of_rfc_4648() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(encode(bytes.as_bytes()), text);
            assert_eq!(decode(text.as_bytes()).as_deref(), Some(bytes.as_bytes()));
        }
        assert_eq!(encode(&[0xfb, 0xff]), "+/8=");
    }

    #[test]
    fn foreign_base64_is_refused() {
        for text in ["Z", "Zg", "Zg=", "Zh==", "Zm9=", "Z===", "====", "Zg==Zg==", "Zm9v\n", "Zm_v", "ä=="] {
            assert_eq!(decode(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn large_checkpoint_is_refused_with_limit() {
        assert!(Checkpoint::new(vec![0; CHECKPOINT_BYTES_MAX]).is_ok());
        let refused = Checkpoint::new(vec![0; CHECKPOINT_BYTES_MAX + 1]).unwrap_err();
        assert_eq!(refused.to_string(), "a checkpoint of 262145 bytes, at most 262144 are stored");
        let text = encode(&vec![0; CHECKPOINT_BYTES_MAX + 1]);
        assert!(matches!(Checkpoint::try_from(text), Err(InvalidCheckpoint::TooLarge(_))));
    }

    #[test]
    fn a_checkpoint_is_never_shown() {
        assert_eq!(format!("{:?}", Checkpoint::new("secret").unwrap()), "Checkpoint(6 bytes)");
    }

    proptest! {
        #[test]
        fn every_checkpoint_comes_back(bytes in prop::collection::vec(any::<u8>(), 0..70)) {
            prop_assert_eq!(decode(encode(&bytes).as_bytes()), Some(bytes));
        }

        #[test]
        fn valid_text_round_trips(text in "[A-Za-z0-9+/=]{0,12}") {
            if let Some(bytes) = decode(text.as_bytes()) {
                prop_assert_eq!(encode(&bytes), text);
            }
        }
    }
}
