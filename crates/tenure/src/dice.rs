//! Throws of the dice, for jitter and nonces. The machines take them as arguments, so that a test can throw what it likes.

use std::cell::Cell;

thread_local! {
    /// Where this thread's throws go on from; the system is asked once, because machines are told a throw with every event.
    static THROWN: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Anywhere in `0.0..=1.0`; without entropy everybody throws the same.
pub(crate) fn throw() -> f64 {
    let thrown = THROWN.get().unwrap_or_else(|| {
        let mut bytes = [0; 8];
        getrandom::fill(&mut bytes).map_or(0, |()| u64::from_le_bytes(bytes))
    });
    let next = thrown.wrapping_add(0x9e37_79b9_7f4a_7c15);
    THROWN.set(Some(next));
    let high = u32::try_from(mix(next) >> 32).unwrap_or(u32::MAX);
    f64::from(high) / f64::from(u32::MAX)
}

/// The last steps of SplitMix64: neighbours become strangers.
fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throws_fall_everywhere() {
        let throws: Vec<f64> = (0..10_000).map(|_| throw()).collect();
        for tenth in 0..10 {
            let (from, to) = (f64::from(tenth) / 10.0, f64::from(tenth + 1) / 10.0);
            let fallen = throws.iter().filter(|throw| (from..to).contains(*throw)).count();
            assert!((800..1_200).contains(&fallen), "{fallen} from {from} to {to}");
        }
    }
}
