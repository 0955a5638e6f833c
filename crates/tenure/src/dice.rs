//! Throws of the dice, for jitter and nonces. The machines take them as arguments, so that a test can throw what it likes.

/// Anywhere in `0.0..=1.0`; without entropy everybody throws the middle.
pub(crate) fn throw() -> f64 {
    let mut bytes = [0; 4];
    match getrandom::fill(&mut bytes) {
        Ok(()) => f64::from(u32::from_le_bytes(bytes)) / f64::from(u32::MAX),
        Err(_) => 0.5,
    }
}

/// A number that nobody else has thrown.
///
/// # Panics
///
/// Without entropy: two processes with the same nonce could take each other's place for their own.
pub(crate) fn nonce() -> u64 {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).expect("the system's random numbers are there once it has booted");
    u64::from_le_bytes(bytes)
}
