//! How many keys are listed at a time.
//!
//! The size of the values is not known beforehand. A page of a thousand tasks is some hundred KiB, and with the longest props some hundred
//! MiB, which exceeds every response limit. So a page that was too large is requested again, smaller, and those after it are as small.

use super::{InvalidRequest, StoreError};

/// Enough to make round trips rare, few enough that values of a few KiB stay far below what a connection carries in one message.
const LEN_MAX: u32 = 1_000;

/// How much smaller the next attempt is: halving would fetch most of the discarded data twice.
const DIVISOR: u32 = 4;

/// How many keys are listed at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PageLen(u32);

impl PageLen {
    pub(crate) fn new() -> PageLen {
        PageLen(LEN_MAX)
    }

    pub(crate) fn get(self) -> u32 {
        self.0
    }

    /// Whether the page should be requested again, because it is smaller now.
    pub(crate) fn shrinks_for(&mut self, error: &StoreError) -> bool {
        let is_too_large = matches!(error, StoreError::Invalid(InvalidRequest::AnswerTooLarge(_)));
        let was_more = self.0 > 1;
        if is_too_large {
            self.0 = (self.0 / DIVISOR).max(1);
        }
        is_too_large && was_more
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_shrinks_only_when_too_large() {
        let too_large = StoreError::Invalid(InvalidRequest::AnswerTooLarge("70 MiB".to_owned()));
        let mut len = PageLen::new();
        assert!(!len.shrinks_for(&StoreError::NoSpace));
        assert_eq!(len.get(), 1_000);
        let mut tries = 0;
        while len.shrinks_for(&too_large) {
            tries += 1;
        }
        assert_eq!((len.get(), tries), (1, 5));
    }
}
