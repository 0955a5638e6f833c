//! Addresses of stores: `memory:`, `file:///path`, `etcd://a:2379,b:2379`, `etcds://…`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use thiserror::Error;

/// Which store is meant.
#[derive(Clone, PartialEq, Eq, Debug)]
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
        security: Security,
    },
}

/// Whether a connection is encrypted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Security {
    /// In the clear: on loopback, or where the network is trusted.
    Plain,
    /// By TLS.
    Tls,
}

/// Why a text is not the address of a store.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum BadStoreUrl {
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
}

/// The port that etcd listens on unless told otherwise.
const ETCD_PORT: u16 = 2379;

impl FromStr for StoreUrl {
    type Err = BadStoreUrl;

    fn from_str(text: &str) -> Result<StoreUrl, BadStoreUrl> {
        if text == "memory:" {
            return Ok(StoreUrl::Memory);
        }
        if let Some(path) = text.strip_prefix("file://") {
            if !path.starts_with('/') || path.ends_with('/') {
                return Err(BadStoreUrl::RelativePath(path.to_owned()));
            }
            return Ok(StoreUrl::File(PathBuf::from(path)));
        }
        if let Some(path) = text.strip_prefix("file:") {
            return Err(BadStoreUrl::RelativePath(path.to_owned()));
        }
        let (security, members) = match (text.strip_prefix("etcd://"), text.strip_prefix("etcds://")) {
            (Some(members), _) => (Security::Plain, members),
            (None, Some(members)) => (Security::Tls, members),
            (None, None) => return Err(BadStoreUrl::UnknownScheme(text.to_owned())),
        };
        let members = members.trim_end_matches('/');
        if members.is_empty() {
            return Err(BadStoreUrl::NoEndpoint);
        }
        let endpoints = members.split(',').map(parse_endpoint).collect::<Result<_, _>>()?;
        Ok(StoreUrl::Etcd { endpoints, security })
    }
}

/// `host`, `host:port`, `1.2.3.4:port` or `[::1]:port`; the port is etcd's own if none is given.
fn parse_endpoint(text: &str) -> Result<String, BadStoreUrl> {
    let bad = || BadStoreUrl::BadEndpoint(text.to_owned());
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
            StoreUrl::Etcd { endpoints, security: Security::Plain } => {
                write!(f, "etcd://{}", endpoints.join(","))
            }
            StoreUrl::Etcd { endpoints, security: Security::Tls } => {
                write!(f, "etcds://{}", endpoints.join(","))
            }
        }
    }
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_named_by_its_scheme() {
        let plain = |members: &[&str]| StoreUrl::Etcd {
            endpoints: members.iter().map(|&member| member.to_owned()).collect(),
            security: Security::Plain,
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
        assert!(matches!(secure, StoreUrl::Etcd { security: Security::Tls, .. }));
    }

    #[test]
    fn what_names_no_store_is_refused_with_a_hint() {
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
            assert!(matches!(refused, Err(BadStoreUrl::RelativePath(_))), "{text}: {refused:?}");
        }
    }
}
