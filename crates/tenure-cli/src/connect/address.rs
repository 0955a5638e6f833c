//! Parses `--endpoints` and `--store`. No message repeats a password from an address.

use tenure::store::{InvalidStoreUrl, StoreUrl, Transport};

use crate::failure::Failure;

/// Parses a store URL.
pub(crate) fn parse_url(text: &str) -> Result<StoreUrl, Failure> {
    refuse_credentials(text)?;
    text.parse::<StoreUrl>().map_err(|error| match error {
        InvalidStoreUrl::UnknownScheme(shown) => Failure::usage(format!(
            "unknown store {shown:?}: it does not begin with memory:, file://, etcd:// or etcds://"
        ))
        .hint(format!("did you mean {}?", meant(&shown))),
        error => Failure::usage(error.to_string())
            .hint("stores are file:///path/store.db, etcd://host:2379,host2:2379 or etcds://host:2379"),
    })
}

/// The address that a text with an unknown scheme most likely means.
fn meant(text: &str) -> String {
    if text.contains('…') {
        return "file:///path/store.db or etcd://host:2379".to_owned();
    }
    match text.split_once("://") {
        Some(("http", members)) => format!("etcd://{members}"),
        Some(("https", members)) => format!("etcds://{members}"),
        Some(_) => "file:///path/store.db or etcd://host:2379".to_owned(),
        None if text.starts_with('/') => format!("file://{text}"),
        None if text.ends_with(".db") || text.contains('/') => {
            format!("file:///path/to/{}", text.rsplit('/').next().unwrap_or(text))
        }
        None if text == "memory" => "memory:".to_owned(),
        None => format!("etcd://{text}"),
    }
}

/// Parses `host:port` or URLs, separated by commas. Without a scheme, TLS is used if certificates are configured.
pub(crate) fn parse_endpoints(text: &str, has_tls_files: bool) -> Result<StoreUrl, Failure> {
    refuse_credentials(text)?;
    let mut security = None;
    let mut members = Vec::new();
    for endpoint in text.split(',').map(str::trim) {
        let (scheme, member) = match endpoint.split_once("://") {
            None => (None, endpoint),
            Some(("http" | "etcd", member)) => (Some(Transport::Plain), member),
            Some(("https" | "etcds", member)) => (Some(Transport::Tls), member),
            // The message does not repeat the text before `://`: it may be the end of a password.
            Some(_) => {
                return Err(Failure::usage(
                    "an endpoint has an unknown scheme: use http://, https://, etcd:// or etcds://",
                )
                .hint(
                    "endpoints are host:port, http://host:port or https://host:port, separated by commas",
                ));
            }
        };
        let implied = if has_tls_files { Transport::Tls } else { Transport::Plain };
        let this = scheme.unwrap_or(implied);
        if security.is_some_and(|others| others != this) {
            return Err(Failure::usage("some endpoints use TLS and some do not")
                .hint("use http:// or https:// for all of them"));
        }
        security = Some(this);
        members.push(member.trim_end_matches('/'));
    }
    let scheme = match security {
        Some(Transport::Tls) => "etcds",
        Some(Transport::Plain) | None => "etcd",
    };
    parse_url(&format!("{scheme}://{}", members.join(",")))
}

/// Refuses an address with a user. The message does not repeat the text, which contains a password.
fn refuse_credentials(text: &str) -> Result<(), Failure> {
    if !text.starts_with("file:") && text.contains('@') {
        return Err(Failure::usage("an address must not carry a user or a password")
            .hint("give them with --user and --password-file"));
    }
    Ok(())
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_become_one_address() {
        for (text, has_tls_files, url) in [
            ("127.0.0.1:2379", false, "etcd://127.0.0.1:2379"),
            ("a", false, "etcd://a:2379"),
            ("a:1, b:2", false, "etcd://a:1,b:2"),
            ("http://a:1,http://b:2/", false, "etcd://a:1,b:2"),
            ("https://a:1", false, "etcds://a:1"),
            ("a:1", true, "etcds://a:1"),
            ("http://a:1", true, "etcd://a:1"),
            ("etcds://a:1,b:2", true, "etcds://a:1,b:2"),
            ("[::1]:2379", false, "etcd://[::1]:2379"),
        ] {
            let parsed = parse_endpoints(text, has_tls_files).map(|url| url.to_string());
            assert_eq!(parsed, Ok(url.to_owned()), "{text}");
        }
    }

    #[test]
    fn invalid_endpoints_are_refused_without_repeating_passwords() {
        for text in ["", ",", "a:1,", "ftp://a:1", "https://a:1,http://b:1", "a:x", "http://u:canary@a:1"] {
            let failure = parse_endpoints(text, false).unwrap_err();
            assert!(!format!("{failure:?}").contains("canary"), "{failure:?}");
        }
        let texts = [
            "etcd://u:canary@a:1",
            "etcd://u:canary%40a:1",
            "http://u:canary",
            "u:canary",
            "redis://:canary%40a",
            "canary:x://a",
            "http://a:1?password=canary",
            "file:u:canary@a",
        ];
        for text in texts {
            for outcome in [parse_url(text), parse_endpoints(text, false)] {
                let failure = outcome.unwrap_err();
                assert!(!format!("{failure:?}").contains("canary"), "{text}: {failure:?}");
            }
        }
    }
}
