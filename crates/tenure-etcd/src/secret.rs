//! A text that must never be seen: passwords and tokens.
//!
//! It has no `Display`, its `Debug` shows nothing, and its bytes are overwritten on drop.
//! [`redact`] does the same for an endpoint that contains a user and a password.

use std::fmt;

/// A password or a token. It can be handed over, never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// Takes ownership of a text.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into().into_bytes())
    }

    /// The text itself, for the code that sends it.
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
        // Without `unsafe` the compiler may remove these writes; `black_box` keeps them in
        // practice.
        self.0.fill(0);
        std::hint::black_box(&self.0);
    }
}

/// An endpoint as errors and `Debug` may show it: scheme, host and port. Anything else may be a
/// password and is replaced by `…`.
pub(crate) fn redact(endpoint: &str) -> String {
    const HIDDEN: &str = "…";
    /// A longer number is no port.
    const PORT_DIGITS_MAX: usize = 5;
    let (scheme, rest) = endpoint.split_once("://").map_or(("", endpoint), |(scheme, rest)| (scheme, rest));
    let of_host = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    if !scheme.chars().all(|c| c.is_ascii_alphanumeric()) {
        return HIDDEN.to_owned();
    }
    let scheme = if scheme.is_empty() { String::new() } else { format!("{scheme}://") };
    let (host, port) = match rest.find(']') {
        Some(end) => rest.split_at(end + 1),
        None => rest.split_at(rest.find(':').unwrap_or(rest.len())),
    };
    let is_ip6 = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .is_some_and(|host| host.parse::<std::net::Ipv6Addr>().is_ok());
    if !is_ip6 && !host.trim_end_matches('/').chars().all(of_host) {
        return format!("{scheme}{HIDDEN}");
    }
    let number = port.trim_end_matches('/').trim_start_matches(':');
    if number.len() <= PORT_DIGITS_MAX && number.chars().all(|c| c.is_ascii_digit()) {
        format!("{scheme}{host}{port}")
    } else {
        format!("{scheme}{host}:{HIDDEN}")
    }
}

#[cfg(test)]
mod tests {
    use super::{Secret, redact};

    #[test]
    fn endpoint_is_shown_without_its_credentials() {
        for text in ["a:1", "a", "http://a:2379/", "https://[::1]:7", "[::1]:7", "http://a.b-c_d:1"] {
            assert_eq!(redact(text), text);
        }
        for text in [
            "http://ann:canary@a:1",
            "ann:canary@a:1",
            "ann:canary",
            "http://ann:canary%40a:1",
            "a:1/canary",
            "a:1?x=canary",
            "canary@x://a",
            "[canary]:1",
            "ann:12canary",
        ] {
            assert!(!redact(text).contains("canary"), "{text}: {}", redact(text));
        }
    }

    #[test]
    fn secret_debug_shows_nothing() {
        let secret = Secret::new("canary-in-a-coal-mine");
        assert_eq!(format!("{secret:?}"), "Secret(..)");
        assert_eq!(format!("{secret:#?}"), "Secret(..)");
        assert_eq!(secret.reveal(), "canary-in-a-coal-mine");
    }
}
