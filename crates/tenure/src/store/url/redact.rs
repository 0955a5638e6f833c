//! What of a refused address may be repeated in an error, a log line or `Debug`.
//!
//! Addresses of other systems carry a user and a password, and such an address is what is typed by mistake. An allow list decides: a part is shown
//! only if it has the shape of a scheme, a host, a port or a path. A list of places where a password may be would miss the next one.

/// Replaces everything that is not shown.
const HIDDEN: &str = "…";

/// A port has at most so many digits. A longer number may be a password.
const PORT_DIGITS_MAX: usize = 5;

/// The text as far as it cannot be a password: the scheme, then hosts with numeric ports, or a path.
pub(super) fn redact(text: &str) -> String {
    let (scheme, rest) = match text.split_once("://") {
        Some((scheme, rest)) if is_scheme(scheme) => (format!("{scheme}://"), rest),
        Some(_) => return HIDDEN.to_owned(),
        None => (String::new(), text),
    };
    // One of these anywhere, and the whole may be `user:password@host`, also encoded, or `host?password=…`.
    let may_hide_more = |c: char| !c.is_ascii() || c.is_ascii_control() || "@%?#=&;\\\"'`$<> ".contains(c);
    if rest.contains(may_hide_more) {
        return format!("{scheme}{HIDDEN}");
    }
    let shown: Vec<String> = rest.split(',').map(redact_member).collect();
    format!("{scheme}{}", shown.join(","))
}

/// Cuts behind the first colon that no port follows.
fn redact_member(text: &str) -> String {
    let Some((host, port)) = text.split_once(':') else { return text.to_owned() };
    let (port, path) = port.split_at(port.find('/').unwrap_or(port.len()));
    let is_port = port.len() <= PORT_DIGITS_MAX && port.chars().all(|c| c.is_ascii_digit());
    // A path behind a port has no place in an address, so it may be anything.
    match (is_port, matches!(path, "" | "/")) {
        (true, true) => text.to_owned(),
        (true, false) => format!("{host}:{port}{HIDDEN}"),
        (false, _) => format!("{host}:{HIDDEN}"),
    }
}

fn is_scheme(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'))
}

#[cfg(test)]
mod tests {
    use super::redact;

    #[test]
    fn harmless_parts_of_an_address_are_shown() {
        for text in [
            "",
            "memory",
            "redis://a",
            "host:2379",
            "http://a:2379,b:2379/",
            "/var/lib/x.db",
            "relative/x.db",
            "a:99999",
            "a:",
        ] {
            assert_eq!(redact(text), text);
        }
    }

    #[test]
    fn parts_that_may_be_secret_are_hidden() {
        for (text, shown) in [
            ("etcd://ann:canary@h:1", "etcd://…"),
            ("ann:canary@h:1", "…"),
            ("ann:canary", "ann:…"),
            ("http://ann:canary", "http://ann:…"),
            ("http://ann:12345678", "http://ann:…"),
            ("canary:x://h", "…"),
            ("http://h:1/canary", "http://h:1…"),
        ] {
            assert_eq!(redact(text), shown, "{text}");
        }
    }
}
