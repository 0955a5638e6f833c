//! Throws of the dice, for jitter and nonces. The machines take them as arguments, so that a test can throw what it likes.
//!
//! Everything random comes from here, so that a seed can decide all of it: see `testing::Fate`.

use crate::store::{Cause, StoreError};

/// Anywhere in `0.0..=1.0`; without entropy everybody throws the middle.
pub(crate) fn throw() -> f64 {
    match fill() {
        Ok(bytes) => f64::from(u32::from_le_bytes(bytes)) / f64::from(u32::MAX),
        Err(_) => 0.5,
    }
}

/// A number that nobody else has thrown.
///
/// # Panics
///
/// Without entropy: two processes with the same nonce could take each other's place for their own.
pub(crate) fn nonce() -> u64 {
    u64::from_le_bytes(bytes())
}

/// Bytes that nobody else has thrown.
///
/// # Panics
///
/// Without entropy, as [`nonce`] does.
pub(crate) fn bytes<const N: usize>() -> [u8; N] {
    fill().expect("the system's random numbers are there once it has booted")
}

/// Bytes that nobody else has thrown, for those who can wait until there is entropy.
///
/// # Errors
///
/// [`StoreError::Unavailable`] without entropy.
pub(crate) fn try_bytes<const N: usize>() -> Result<[u8; N], StoreError> {
    fill().map_err(|error| StoreError::Unavailable(Cause::new(format!("no random bytes: {error}"))))
}

fn fill<const N: usize>() -> Result<[u8; N], getrandom::Error> {
    let mut bytes = [0; N];
    #[cfg(feature = "testing")]
    if crate::testing::fate::fill(&mut bytes) {
        return Ok(bytes);
    }
    getrandom::fill(&mut bytes)?;
    Ok(bytes)
}
