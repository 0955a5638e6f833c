//! `SplitMix64`: random numbers derived from a seed.
//!
//! Nothing here is random. The caller passes the seed, and the same seed leads to the same numbers.
//! That makes a simulated run, or an input that broke a decoder, repeatable from its seed.
//!
//! **Invariant**: the sequence of a seed never changes, or every recorded seed would mean something
//! else.

/// Returns the next number after `state`, and advances `state`. Every seed is good, also 0 and 1.
pub fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_matches_splitmix64() {
        let mut state = 1_234_567;
        let numbers: [u64; 3] = std::array::from_fn(|_| next(&mut state));
        assert_eq!(
            numbers,
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
    }
}
