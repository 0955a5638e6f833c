//! The options of an etcd for a test: members, timers, quota, tokens, TLS.
//!
//! The defaults make the fastest etcd that still behaves like one; what a test asserts about time it
//! should ask for by name.

use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use crate::Etcd;
use crate::binary::EtcdVersion;

/// Collects options; [`Builder::start`] runs them.
#[derive(Clone, Debug, Default)]
#[must_use = "nothing runs before `start`"]
pub struct Builder {
    pub(crate) members: usize,
    pub(crate) timers: Timers,
    pub(crate) durable: bool,
    pub(crate) tls: Option<Tls>,
    pub(crate) peer_wires: bool,
    hosts: Vec<Host>,
    quota_backend_bytes: Option<u64>,
    auth_token_ttl_s: Option<u32>,
    bcrypt_cost: Option<u32>,
    pub(crate) without_auth: bool,
    args: Vec<OsString>,
}

/// Heartbeat and election timers; the minimum lease TTL is 1.5 times the election timeout, rounded up to seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Timers {
    /// 10 ms and 50 ms for one member, as [`Timers::Cluster`] for more: ready in about 0.3 s, minimum TTL 1 s.
    #[default]
    Fast,
    /// 20 ms and 200 ms: the fastest that keep a leader on a loaded machine. For one member that will grow.
    Cluster,
    /// etcd's own, 100 ms and 1 s: minimum TTL 2 s.
    Default,
}

/// The server's certificate, and the authority of client certificates.
#[derive(Clone, Debug)]
pub struct Tls {
    /// The server's certificate chain, PEM.
    pub cert: PathBuf,
    /// Its key, PEM.
    pub key: PathBuf,
    /// The authority that client certificates must come from, PEM; `None` lets every client in.
    pub client_ca: Option<PathBuf>,
}

/// Where a program runs: on the loopback, or in a prepared network.
#[derive(Clone, Debug)]
pub struct Host {
    /// Its address.
    pub ip: Ipv4Addr,
    /// The words that come before a command so that it runs there; they must become the command, as `nsenter` does, or its pid is another.
    pub enter: Vec<OsString>,
}

impl Builder {
    pub(crate) fn new() -> Builder {
        Builder { members: 1, ..Builder::default() }
    }

    /// How many members; 1 by default.
    pub fn members(mut self, members: usize) -> Builder {
        assert!(members > 0, "an etcd has at least one member");
        self.members = members;
        self
    }

    /// Which timers; [`Timers::Fast`] by default.
    pub fn timers(mut self, timers: Timers) -> Builder {
        self.timers = timers;
        self
    }

    /// Members connect to each other through proxies that can be cut: see [`Etcd::cut_wire`]. Such
    /// a cluster cannot grow.
    pub fn peer_wires(mut self) -> Builder {
        self.peer_wires = true;
        self
    }

    /// Where each member runs, in their order; the others run on the loopback.
    pub fn hosts(mut self, hosts: Vec<Host>) -> Builder {
        self.hosts = hosts;
        self
    }

    pub(crate) fn host(&self, index: usize) -> Host {
        let loopback = || Host { ip: Ipv4Addr::LOCALHOST, enter: Vec::new() };
        self.hosts.get(index).cloned().unwrap_or_else(loopback)
    }

    /// Data on a real disk with real fsyncs, for measuring; otherwise in memory where there is room.
    pub fn durable(mut self) -> Builder {
        self.durable = true;
        self
    }

    /// Size of the database at which the server raises NOSPACE; 8 MiB needs about 30 puts of 500 kB.
    pub fn quota_backend_bytes(mut self, bytes: u64) -> Builder {
        self.quota_backend_bytes = Some(bytes);
        self
    }

    /// Idle seconds after which a token of the simple kind is forgotten by the server.
    pub fn auth_token_ttl_s(mut self, seconds: u32) -> Builder {
        self.auth_token_ttl_s = Some(seconds);
        self
    }

    /// Cost of hashing passwords; 4 is the cheapest, 10 the server's default.
    pub fn bcrypt_cost(mut self, cost: u32) -> Builder {
        self.bcrypt_cost = Some(cost);
        self
    }

    /// Leaves authentication disabled even if `TENURE_ETCD_GRANT` is set: for a test that configures users itself, or needs an open server.
    pub fn without_auth(mut self) -> Builder {
        self.without_auth = true;
        self
    }

    /// Clients must speak TLS.
    pub fn tls(mut self, tls: Tls) -> Builder {
        self.tls = Some(tls);
        self
    }

    /// One more argument for every member, passed as it is.
    pub fn arg(mut self, arg: impl Into<OsString>) -> Builder {
        self.args.push(arg.into());
        self
    }

    /// Starts the members and waits until all are healthy.
    ///
    /// # Panics
    /// If they are not within half a minute, with the end of their logs.
    pub fn start(self) -> Etcd {
        Etcd::from_builder(self)
    }

    /// Adds the arguments that all members share.
    pub(crate) fn push_args(&self, version: EtcdVersion, command: &mut Vec<OsString>) {
        let mut push = |name: &str, value: String| command.push(format!("--{name}={value}").into());
        if let Some((heartbeat_ms, election_ms)) = self.timers.millis(self.members) {
            push("heartbeat-interval", heartbeat_ms.to_string());
            push("election-timeout", election_ms.to_string());
        }
        // Otherwise growing waits five seconds after each new member.
        push("strict-reconfig-check", "false".to_owned());
        if version < (3, 5, 0) {
            push("logger", "zap".to_owned());
        } else if !self.durable {
            // A killed process keeps its page cache; only a power cut would show the difference.
            push("unsafe-no-fsync", "true".to_owned());
        }
        if let Some(bytes) = self.quota_backend_bytes {
            push("quota-backend-bytes", bytes.to_string());
        }
        if let Some(seconds) = self.auth_token_ttl_s {
            push("auth-token-ttl", seconds.to_string());
        }
        if let Some(cost) = self.bcrypt_cost.or_else(crate::grant::bcrypt_cost) {
            push("bcrypt-cost", cost.to_string());
        }
        if let Some(tls) = &self.tls {
            let mut push = |name: &str, path: &PathBuf| command.extend([name.into(), path.into()]);
            push("--cert-file", &tls.cert);
            push("--key-file", &tls.key);
            if let Some(ca) = &tls.client_ca {
                push("--trusted-ca-file", ca);
                command.push("--client-cert-auth=true".into());
            }
        }
        command.extend(self.args.iter().cloned());
    }
}

impl Timers {
    fn millis(self, members: usize) -> Option<(u32, u32)> {
        match self {
            Timers::Fast if members == 1 => Some((10, 50)),
            Timers::Fast | Timers::Cluster => Some((20, 200)),
            Timers::Default => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(builder: &Builder, version: EtcdVersion) -> Vec<String> {
        let mut command = Vec::new();
        builder.push_args(version, &mut command);
        command.iter().map(|arg| arg.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn no_fsync_depends_on_version() {
        let flag = "--unsafe-no-fsync=true".to_owned();
        assert!(!args(&Builder::new(), (3, 4, 45)).contains(&flag));
        assert!(args(&Builder::new(), (3, 5, 34)).contains(&flag));
        assert!(!args(&Builder::new().durable(), (3, 7, 2)).contains(&flag));
    }

    #[test]
    fn timers_follow_member_count() {
        assert!(args(&Builder::new(), (3, 7, 2)).contains(&"--election-timeout=50".to_owned()));
        assert!(args(&Builder::new().members(3), (3, 7, 2)).contains(&"--election-timeout=200".to_owned()));
        let default = args(&Builder::new().timers(Timers::Default), (3, 7, 2));
        assert!(!default.iter().any(|arg| arg.contains("election")), "{default:?}");
    }
}
