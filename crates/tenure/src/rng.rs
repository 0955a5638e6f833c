//! Throws of the dice, for jitter and nonces. The machines take them as arguments, so that a test can throw what it likes.
//!
//! Everything random comes from here, so that a seed can decide all of it: see `testing::Seed`.

use std::cell::Cell;

use crate::store::{Cause, StoreError};

thread_local! {
    /// Where this thread's throws go on from; the system is asked once, because machines are told a throw with every event.
    static THROWN: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Anywhere in `0.0..=1.0`; without entropy everybody throws the same.
pub(crate) fn jitter() -> f64 {
    #[cfg(feature = "testing")]
    {
        let mut bytes = [0; 4];
        if crate::testing::seed::fill(&mut bytes) {
            return part_of_one(u32::from_le_bytes(bytes));
        }
    }
    let mut thrown = THROWN.get().unwrap_or_else(|| fill().map_or(0, u64::from_le_bytes));
    let number = tenure_core::rng::next(&mut thrown);
    THROWN.set(Some(thrown));
    part_of_one(u32::try_from(number >> 32).unwrap_or(u32::MAX))
}

fn part_of_one(number: u32) -> f64 {
    f64::from(number) / f64::from(u32::MAX)
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
    if crate::testing::seed::fill(&mut bytes) {
        return Ok(bytes);
    }
    getrandom::fill(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throws_fall_everywhere() {
        let throws: Vec<f64> = (0..10_000).map(|_| jitter()).collect();
        for tenth in 0..10 {
            let (from, to) = (f64::from(tenth) / 10.0, f64::from(tenth + 1) / 10.0);
            let fallen = throws.iter().filter(|throw| (from..to).contains(*throw)).count();
            assert!((800..1_200).contains(&fallen), "{fallen} from {from} to {to}");
        }
    }
}
