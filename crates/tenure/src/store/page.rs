//! How many keys are listed at a time.
//!
//! Nobody knows beforehand how large the values are. A page of a thousand tasks is some hundred KiB, and with the longest props some hundred MiB,
//! which no answer carries. So a page that was too large is asked again, smaller, and those after it are as small.

use super::{InvalidRequest, StoreError};

/// Enough to make round trips rare, few enough that values of a few KiB stay far below what a connection carries in one message.
const LEN_MAX: u32 = 1_000;

/// How much smaller the next try is: halving would fetch most of what is thrown away twice.
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

    /// Whether the page is worth asking for again, because it is smaller now.
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
    fn a_page_shrinks_to_one_key_and_for_one_reason() {
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
