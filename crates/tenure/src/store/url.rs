//! Addresses of stores: `memory:`, `file:///path`, `etcd://a:2379,b:2379`, `etcds://…`.
//!
//! **Invariant**: neither an error nor `Display` nor `Debug` repeats a part of an address that may be a password.

mod redact;

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use thiserror::Error;

use redact::redact;

/// Which store is meant.
#[derive(Clone, PartialEq, Eq)]
pub enum StoreUrl {
    /// One inside this process.
    Memory,
    /// One in a file that the processes of this machine share.
    File(PathBuf),
    /// An etcd cluster.
    Etcd {
        /// Its members, as `host:port`.
        endpoints: Vec<String>,
        /// Whether TLS is spoken.
        security: Transport,
    },
}

/// Whether a connection is encrypted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transport {
    /// In the clear: on loopback, or where the network is trusted.
    Plain,
    /// By TLS.
    Tls,
}

/// Why a text is not the address of a store. What may be a password in the text is replaced by `…`.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum InvalidStoreUrl {
    /// No such scheme.
    #[error(
        "unknown store {0:?}; use memory:, file:///path, etcd://host:2379,host2:2379 or etcds://host:2379"
    )]
    UnknownScheme(String),
    /// A file is named by its whole path.
    #[error("a file store needs an absolute path, as in file:///var/lib/app/tenure.db: {0:?}")]
    RelativePath(String),
    /// An etcd cluster has at least one member.
    #[error("an etcd store needs at least one host:port, as in etcd://127.0.0.1:2379")]
    NoEndpoint,
    /// A member is named by host and port.
    #[error("not a host:port: {0:?}")]
    BadEndpoint(String),
    /// An address is shown in listings and logs, so it carries no user and no password.
    #[error("an address must not carry a user or a password; set them apart from the address")]
    Credentials,
}

/// etcd's default port.
const ETCD_PORT: u16 = 2379;

impl FromStr for StoreUrl {
    type Err = InvalidStoreUrl;

    fn from_str(text: &str) -> Result<StoreUrl, InvalidStoreUrl> {
        if text == "memory:" {
            return Ok(StoreUrl::Memory);
        }
        if let Some(path) = text.strip_prefix("file:") {
            let path = path.strip_prefix("//").ok_or_else(|| InvalidStoreUrl::RelativePath(redact(path)))?;
            if !path.starts_with('/') || path.ends_with('/') {
                return Err(InvalidStoreUrl::RelativePath(redact(path)));
            }
            return Ok(StoreUrl::File(PathBuf::from(path)));
        }
        // Before the members are split: a password may contain a comma.
        if text.contains('@') {
            return Err(InvalidStoreUrl::Credentials);
        }
        let (security, members) = match (text.strip_prefix("etcd://"), text.strip_prefix("etcds://")) {
            (Some(members), _) => (Transport::Plain, members),
            (None, Some(members)) => (Transport::Tls, members),
            (None, None) => return Err(InvalidStoreUrl::UnknownScheme(redact(text))),
        };
        let members = members.trim_end_matches('/');
        if members.is_empty() {
            return Err(InvalidStoreUrl::NoEndpoint);
        }
        let endpoints = members.split(',').map(parse_endpoint).collect::<Result<_, _>>()?;
        Ok(StoreUrl::Etcd { endpoints, security })
    }
}

/// `host`, `host:port`, `1.2.3.4:port` or `[::1]:port`; the port is etcd's own if none is given.
fn parse_endpoint(text: &str) -> Result<String, InvalidStoreUrl> {
    let bad = || InvalidStoreUrl::BadEndpoint(redact(text));
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (address, after) = rest.split_once(']').ok_or_else(bad)?;
            address.parse::<std::net::Ipv6Addr>().map_err(|_| bad())?;
            (format!("[{address}]"), after.strip_prefix(':'))
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host.to_owned(), Some(port)),
            None => (text.to_owned(), None),
        },
    };
    let name = host.trim_matches(['[', ']']);
    let readable = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':');
    if name.is_empty() || !name.chars().all(readable) {
        return Err(bad());
    }
    let port = port.map_or(Ok(ETCD_PORT), |port| port.parse::<u16>().map_err(|_| bad()))?;
    if port == 0 {
        return Err(bad());
    }
    Ok(format!("{host}:{port}"))
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreUrl::Memory => write!(f, "memory:"),
            StoreUrl::File(path) => write!(f, "file://{}", path.display()),
            StoreUrl::Etcd { endpoints, security: Transport::Plain } => {
                write!(f, "etcd://{}", shown(endpoints))
            }
            StoreUrl::Etcd { endpoints, security: Transport::Tls } => {
                write!(f, "etcds://{}", shown(endpoints))
            }
        }
    }
}

/// As `Display`: endpoints that were not parsed may hold anything.
impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreUrl({self})")
    }
}

/// Endpoints as they are, except those that [`parse_endpoint`] would refuse.
fn shown(endpoints: &[String]) -> String {
    let one = |text: &String| parse_endpoint(text).map_or_else(|_| redact(text), |_| text.clone());
    endpoints.iter().map(one).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn store_is_named_by_its_scheme() {
        let plain = |members: &[&str]| StoreUrl::Etcd {
            endpoints: members.iter().map(|&member| member.to_owned()).collect(),
            security: Transport::Plain,
        };
        for (text, url) in [
            ("memory:", StoreUrl::Memory),
            ("file:///var/lib/app/t.db", StoreUrl::File("/var/lib/app/t.db".into())),
            ("etcd://a:1,b:2", plain(&["a:1", "b:2"])),
            ("etcd://a", plain(&["a:2379"])),
            ("etcd://[::1]:2379/", plain(&["[::1]:2379"])),
        ] {
            assert_eq!(text.parse::<StoreUrl>().as_ref(), Ok(&url), "{text}");
            assert_eq!(url.to_string().parse::<StoreUrl>().as_ref(), Ok(&url), "{text}");
        }
        let secure = "etcds://a:1".parse::<StoreUrl>().unwrap();
        assert!(matches!(secure, StoreUrl::Etcd { security: Transport::Tls, .. }));
    }

    #[test]
    fn file_without_slashes_is_a_relative_path() {
        for text in ["file:x.db", "file:./x.db", "file:/x.db", "file://x.db"] {
            let bad = text.parse::<StoreUrl>().unwrap_err();
            assert!(matches!(&bad, InvalidStoreUrl::RelativePath(_)), "{text}: {bad}");
            assert!(bad.to_string().contains("x.db"), "{bad}");
        }
    }

    /// The error repeated the whole address, and callers print errors and write them to logs.
    #[test]
    fn password_in_an_address_is_never_shown() {
        for text in [
            "etcd://ann:canary@h:2379",
            "etcds://ann:canary@h:2379,b:2379",
            "etcd://a:1,ann:canary@h:2379",
            "etcd://ann:can,canary@h:2379",
            "etcd://ann:canary/x@h:2379",
            "etcd://ann:canary?x@h",
            "etcd://ann:canary#x@h",
            "etcd://:canary@h",
            "etcd://ann:canary%40h:2379",
            "etcd://ann%3Acanary%40h:2379",
            "etcd://ann:canary%2540h",
            "etcd://ann:canary",
            "etcd://ann:canary,h:2379",
            "etcd://ann:canary＠h:2379",
            "etcd://[ann:canary@h]:1",
            "etcd://[ann:canary",
            "etcd://h:2379/?user=ann&password=canary",
            "etcd://h:2379?password=canary",
            "etcd://h:2379#canary=x",
            "etcd://h user=ann password=canary",
            "ETCD://ann:canary@h",
            "etcd:ann:canary@h",
            "etcd:/ann:canary@h",
            "http://ann:canary@h:2379",
            "redis://:canary@h",
            "redis://:canary%40h",
            "postgres://ann:canary@h/db",
            "ann:canary@h:2379",
            "ann:canary",
            "host=h password=canary",
            "file://ann:canary@h/x.db",
            "file:ann:canary@x.db",
            "file://h/x?password=canary",
            "canary:x://h",
            " etcd://ann:canary@h",
            "\"etcd://ann:canary@h\"",
        ] {
            let bad = text.parse::<StoreUrl>().unwrap_err();
            let shown = format!("{bad} {bad:?} {bad:#?}");
            assert!(!shown.contains("canary"), "{text}: {shown}");
        }
        // Built without the parser, as a caller may.
        let endpoints = vec!["ann:canary@h:1".to_owned(), "b:2".to_owned(), "[::1]:3".to_owned()];
        let url = StoreUrl::Etcd { endpoints, security: Transport::Plain };
        assert_eq!(url.to_string(), "etcd://…,b:2,[::1]:3");
        assert!(!format!("{url:?} {url:#?}").contains("canary"));
    }

    #[test]
    fn invalid_address_is_refused_with_hint() {
        for text in [
            "",
            "memory",
            "redis://a",
            "file://relative",
            "file://",
            "file:///dir/",
            "etcd://",
            "etcd://a:",
            "etcd://a:x",
            "etcd://a:0",
            "etcd://a:1,,b:2",
            "etcd://a:99999",
            "etcd://a b:1",
            "etcd://[::1",
            "etcd://user:pw@a:1",
        ] {
            assert!(text.parse::<StoreUrl>().is_err(), "{text}");
        }
        for text in ["file:x.db", "file:./x.db", "file://x.db", "file:"] {
            let refused = text.parse::<StoreUrl>();
            assert!(matches!(refused, Err(InvalidStoreUrl::RelativePath(_))), "{text}: {refused:?}");
        }
    }
}
