//! From an input that breaks a target to the smallest that was found to break it too.

/// How many tries that may take.
const TRIES_MAX: usize = 4_000;

/// Leaves out what is not needed: halves first, single bytes last.
pub(crate) fn shrink(input: &[u8], is_broken: &mut dyn FnMut(&[u8]) -> bool) -> Vec<u8> {
    let mut best = input.to_vec();
    let mut piece = best.len() / 2;
    let mut tries = 0;
    while piece > 0 {
        let mut from = 0;
        while from < best.len() && tries < TRIES_MAX {
            let to = (from + piece).min(best.len());
            let without: Vec<u8> = [&best[..from], &best[to..]].concat();
            tries += 1;
            if is_broken(&without) {
                best = without;
            } else {
                from = to;
            }
        }
        piece /= 2;
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shrinking_keeps_needed_bytes() {
        let input: Vec<u8> = (0..200).collect();
        let small = shrink(&input, &mut |bytes| bytes.contains(&17) && bytes.contains(&150));
        assert_eq!(small, [17, 150]);
    }
}
