//! How to reach a cluster: addresses, TLS, user, and how long to wait.

use std::time::Duration;

use crate::error::{Error, Invalid};
use crate::secret::{Secret, redact};

/// Everything a [`Client`](crate::Client) needs to know. Its `Debug` shows no secret, also none that was written into an endpoint.
#[derive(Clone)]
#[non_exhaustive]
pub struct Config {
    /// Members, as `host:port`, `http://host:port` or `https://host:port`; without a scheme TLS decides.
    pub endpoints: Vec<String>,
    /// TLS settings. Required when an endpoint begins with `https`.
    pub tls: Option<Tls>,
    /// The user to sign in as.
    pub user: Option<User>,
    /// How long a member may stay silent: after half of it a read asks another member too, after all of it a
    /// write has the member checked; a check without a reply for so long means that it is left. A sign-in may take
    /// longer while the member replies to checks.
    pub per_try: Duration,
    /// How long a call may take, all tries together.
    pub deadline: Duration,
    /// How long one attempt to connect may take, TLS included.
    pub connect_timeout: Duration,
    /// A watch stream that is silent for this long is sent a request that a live server answers at
    /// once.
    pub watch_ask_after: Duration,
    /// A watch stream that stays silent for this long after that request is abandoned for another
    /// member.
    pub watch_answer_within: Duration,
    /// The server's `--max-request-bytes`: larger requests are refused here, with both numbers.
    pub request_bytes_max: usize,
    /// The server's `--max-txn-ops`.
    pub txn_ops_max: usize,
    /// Whether a server with known defects is logged.
    pub defect_log: DefectLog,
}

/// Whether a server with known defects is logged as a warning, once for each client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DefectLog {
    /// It is.
    #[default]
    Warn,
    /// The owner of the client reports it, by [`Client::server_defects`](crate::Client::server_defects).
    Off,
}

/// One second: a paused member costs a read no more than this. Halved, a busy server looks dead;
/// doubled, a read that meets a paused member and then an election is slower than two seconds.
const PER_TRY: Duration = Duration::from_secs(1);

/// Five seconds: longer than an election with default timers, shorter than the TTL of a default
/// lease.
const DEADLINE: Duration = Duration::from_secs(5);

/// A member that vanished is abandoned within twice this. Halved, a pause of the server's garbage
/// collector or disk moves every watch; doubled, a lock is handed over ten seconds late.
const WATCH_PATIENCE: Duration = Duration::from_millis(2_500);

/// etcd's default for `--max-request-bytes`.
const REQUEST_BYTES_MAX: usize = 1_572_864;

/// etcd's default for `--max-txn-ops`.
const TXN_OPS_MAX: usize = 128;

impl Config {
    /// A configuration with the default waits, no TLS and no user.
    pub fn new<I, S>(endpoints: I) -> Self
    where
        I: IntoIterator<Item = S>,
        S: Into<String>,
    {
        Self {
            endpoints: endpoints.into_iter().map(Into::into).collect(),
            tls: None,
            user: None,
            per_try: PER_TRY,
            deadline: DEADLINE,
            connect_timeout: PER_TRY,
            watch_ask_after: WATCH_PATIENCE,
            watch_answer_within: WATCH_PATIENCE,
            request_bytes_max: REQUEST_BYTES_MAX,
            txn_ops_max: TXN_OPS_MAX,
            defect_log: DefectLog::default(),
        }
    }

    /// Signs in with a name and a password.
    #[must_use]
    pub fn with_user(mut self, name: impl Into<String>, password: Secret) -> Self {
        self.user = Some(User { name: name.into(), password });
        self
    }

    /// Uses TLS.
    #[must_use]
    pub fn with_tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Waits this long in all for each call.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Refuses settings that cannot work before anything is tried.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let wrong = |text: String| Err(Error::Invalid(Invalid::Config(text)));
        if self.endpoints.is_empty() {
            return wrong("no endpoint was given; at least one host:port is needed".to_owned());
        }
        for (name, value) in [
            ("per_try", self.per_try),
            ("deadline", self.deadline),
            ("connect_timeout", self.connect_timeout),
            ("watch_ask_after", self.watch_ask_after),
            ("watch_answer_within", self.watch_answer_within),
        ] {
            if value.is_zero() {
                return wrong(format!("{name} is zero; every wait needs a length"));
            }
        }
        if self.per_try > self.deadline {
            return wrong(format!(
                "one try ({:?}) may take longer than the whole call ({:?})",
                self.per_try, self.deadline
            ));
        }
        Ok(())
    }
}

impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let endpoints: Vec<String> = self.endpoints.iter().map(|endpoint| redact(endpoint)).collect();
        f.debug_struct("Config")
            .field("endpoints", &endpoints)
            .field("tls", &self.tls)
            .field("user", &self.user)
            .field("per_try", &self.per_try)
            .field("deadline", &self.deadline)
            .field("connect_timeout", &self.connect_timeout)
            .finish_non_exhaustive()
    }
}

/// TLS by rustls: the trusted authorities and the client's own certificate.
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct Tls {
    /// Authorities in PEM; the machine's own trust store when none is given.
    pub ca_pem: Option<Vec<u8>>,
    /// The client's certificate and its key.
    pub identity: Option<ClientCertificate>,
    /// The name the server's certificate must carry, when it differs from the address.
    pub server_name: Option<String>,
}

impl Tls {
    /// Trusts the machine's own authorities.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Trusts these authorities and no others.
    #[must_use]
    pub fn with_ca_pem(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.ca_pem = Some(pem.into());
        self
    }

    /// Shows this certificate to the server.
    #[must_use]
    pub fn with_identity(mut self, certificate_pem: impl Into<Vec<u8>>, key_pem: Secret) -> Self {
        self.identity = Some(ClientCertificate { certificate_pem: certificate_pem.into(), key_pem });
        self
    }

    /// Expects this name in the server's certificate.
    #[must_use]
    pub fn with_server_name(mut self, name: impl Into<String>) -> Self {
        self.server_name = Some(name.into());
        self
    }
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls")
            .field("ca", &self.ca_pem.is_some())
            .field("identity", &self.identity.is_some())
            .field("server_name", &self.server_name)
            .finish()
    }
}

/// A client certificate with its key, both in PEM.
#[derive(Clone, Debug)]
pub struct ClientCertificate {
    /// The certificate, with its chain if it has one.
    pub certificate_pem: Vec<u8>,
    /// The key, which is never shown.
    pub key_pem: Secret,
}

/// A name and a password at the server.
#[derive(Clone, Debug)]
pub struct User {
    /// The user's name.
    pub name: String,
    /// The password, which is never shown.
    pub password: Secret,
}

#[cfg(test)]
mod tests {
    use super::{Config, Tls};
    use crate::secret::Secret;

    #[test]
    fn config_debug_hides_secrets() {
        let config = Config::new(["a:2379", "http://ann:canary@b:2379", "ann:canary%40b"])
            .with_user("ann", Secret::new("canary-password"))
            .with_tls(Tls::new().with_identity("certificate", Secret::new("canary-key")));
        let shown = format!("{config:?} {config:#?}");
        assert!(!shown.contains("canary"), "{shown}");
        assert!(shown.contains("ann") && shown.contains("a:2379"), "{shown}");
    }

    #[test]
    fn invalid_config_is_refused_with_its_numbers() {
        assert!(Config::new(Vec::<String>::new()).check().is_err());
        let mut config = Config::new(["a:2379"]);
        config.deadline = std::time::Duration::from_millis(10);
        let text = config.check().unwrap_err().to_string();
        assert!(text.contains("10ms") && text.contains("1s"), "{text}");
    }
}
