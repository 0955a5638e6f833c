//! `SplitMix64`: the numbers that one number decides.
//!
//! No chance is in here. Whoever has some hands in where to begin, and the same beginning leads to the same numbers: that is what makes a
//! simulated day, or an input that broke a decoder, repeatable from its seed.
//!
//! **Invariant**: the sequence of a seed never changes, or every seed that was written down means something else.

/// The next number after `state`, which moves on. Every beginning is a good one, also 0 and 1.
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
    fn the_sequence_is_the_one_that_everybody_calls_splitmix64() {
        let mut state = 1_234_567;
        let numbers: [u64; 3] = std::array::from_fn(|_| next(&mut state));
        assert_eq!(
            numbers,
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
    }
}
