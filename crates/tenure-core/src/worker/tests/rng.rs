//! A deterministic random number generator for the tests.

use crate::rng;

#[derive(Clone, Debug)]
pub(super) struct TestRng(pub(super) u64);

impl TestRng {
    pub(super) fn random(&mut self) -> u64 {
        rng::next(&mut self.0)
    }

    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.random() % end.max(1)
    }

    pub(super) fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).unwrap()
    }

    pub(super) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}
