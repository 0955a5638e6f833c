//! A text that must never be seen: passwords and tokens.
//!
//! It has no `Display`, its `Debug` says nothing, and its bytes are overwritten when it goes.

use std::fmt;

/// A password or a token. It can be handed over, never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// Takes a text into custody.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into().into_bytes())
    }

    /// The text itself, for the one place that has to send it.
    pub(crate) fn reveal(&self) -> &str {
        std::str::from_utf8(&self.0).expect("a secret is made from a string and never changed")
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        // Without `unsafe` the compiler may see through this; `black_box` keeps the writes in practice.
        self.0.fill(0);
        std::hint::black_box(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::Secret;

    #[test]
    fn a_secret_shows_nothing_of_itself() {
        let secret = Secret::new("canary-in-a-coal-mine");
        assert_eq!(format!("{secret:?}"), "Secret(..)");
        assert_eq!(format!("{secret:#?}"), "Secret(..)");
        assert_eq!(secret.reveal(), "canary-in-a-coal-mine");
    }
}
