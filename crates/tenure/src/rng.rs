//! Random numbers for jitter, nonces and ids. The machines take jitter as an argument, so that a test can choose it.
//!
//! Every random number comes from here, so that one seed can decide all of them: see `testing::World::seeded`.

use std::cell::Cell;

use crate::store::{Cause, StoreError};

thread_local! {
    /// The state of this thread's generator. The system seeds it once, because a machine needs jitter with every event.
    static STATE: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Returns a random number in `0.0..=1.0`. Without entropy every process gets the same sequence.
pub(crate) fn jitter() -> f64 {
    #[cfg(feature = "testing")]
    {
        let mut bytes = [0; 4];
        if crate::testing::seed::fill(&mut bytes) {
            return fraction(u32::from_le_bytes(bytes));
        }
    }
    let mut state = STATE.get().unwrap_or_else(|| fill().map_or(0, u64::from_le_bytes));
    let number = tenure_core::rng::next(&mut state);
    STATE.set(Some(state));
    fraction(u32::try_from(number >> 32).unwrap_or(u32::MAX))
}

fn fraction(number: u32) -> f64 {
    f64::from(number) / f64::from(u32::MAX)
}

/// Returns a number that no other process has.
///
/// # Panics
///
/// Without entropy: two processes with the same nonce could each take the other's key for their own.
pub(crate) fn nonce() -> u64 {
    u64::from_le_bytes(bytes())
}

/// Returns bytes that no other process has.
///
/// # Panics
///
/// Without entropy, as [`nonce`] does.
pub(crate) fn bytes<const N: usize>() -> [u8; N] {
    fill().expect("the system's random numbers are there once it has booted")
}

/// Returns bytes that no other process has, for callers that can wait for entropy.
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
    fn jitter_is_uniform() {
        let numbers: Vec<f64> = (0..10_000).map(|_| jitter()).collect();
        for tenth in 0..10 {
            let (from, to) = (f64::from(tenth) / 10.0, f64::from(tenth + 1) / 10.0);
            let count = numbers.iter().filter(|number| (from..to).contains(*number)).count();
            assert!((800..1_200).contains(&count), "{count} from {from} to {to}");
        }
    }
}
