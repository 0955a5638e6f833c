//! One connection, made once: TCP, TLS, HTTP/2.

use std::error::Error as StdError;
use std::time::Duration;

use tokio::net::TcpStream;

use crate::config::Config;
use crate::error::{Cause, Error, Invalid, TlsFailure};
use crate::http2::{Http2Channel, Owner, Socket};
use crate::probe::{self, Plain};
use crate::secret::redact;
use crate::tls::TlsConnect;

/// Where etcd listens when an address names no port.
const PORT_DEFAULT: u16 = 2379;

/// Everything needed to connect to one address.
#[derive(Clone, Debug)]
pub(crate) struct Dialer {
    /// For people: scheme, host and port.
    pub(crate) address: String,
    host: String,
    port: u16,
    /// The authority that requests carry.
    origin: http::Uri,
    /// Present where TLS is spoken.
    trust: Option<TlsConnect>,
}

/// Why there is no connection. In every case nothing was sent.
#[derive(Clone, Debug)]
pub(crate) enum DialError {
    /// The address, the network or the other side.
    Unreachable(Cause),
    /// TLS: trying again will not help before a certificate or the address changes.
    Tls(TlsFailure),
    /// The handshake broke off without a reason: perhaps the server does not speak TLS.
    BrokeOff(String),
}

impl Dialer {
    /// Reads an address as given in the configuration.
    pub(crate) fn parse(text: &str, config: &Config) -> Result<Self, Error> {
        let wrong =
            |why: &str| Error::Invalid(Invalid::Config(format!("endpoint {:?}: {why}", redact(text))));
        if text.contains('@') {
            return Err(Error::Invalid(Invalid::Config(
                "an endpoint carries a user; give user and password separately".to_owned(),
            )));
        }
        let with_scheme = if text.contains("://") {
            text.to_owned()
        } else {
            format!("{}://{text}", if config.tls.is_some() { "https" } else { "http" })
        };
        let uri: http::Uri = with_scheme.parse().map_err(|_| wrong("not host:port nor a URL"))?;
        let secure = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            Some(_) | None => return Err(wrong("only http and https are spoken")),
        };
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(wrong("an address has no path"));
        }
        let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(|| wrong("the host is missing"))?;
        // `port_u16` has no value for a port that is missing and for one that is no number.
        let behind_host = uri.authority().and_then(|authority| authority.as_str().strip_prefix(host));
        let port = match (uri.port_u16(), behind_host) {
            (Some(port), _) => port,
            (None, None | Some("")) => PORT_DEFAULT,
            (None, Some(_)) => return Err(wrong("the port is not a number from 1 to 65535")),
        };
        let address = format!("{}://{host}:{port}", if secure { "https" } else { "http" });
        let origin = address.parse().map_err(|_| wrong("not host:port nor a URL"))?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let trust = if secure {
            let tls = config.tls.clone().unwrap_or_default();
            Some(TlsConnect::new(&tls, &host).map_err(|error| wrong(&explain(&error)))?)
        } else {
            None
        };
        Ok(Self { address, host, port, origin, trust })
    }

    /// Connects, within the time given.
    pub(crate) async fn dial(&self, within: Duration, owner: Owner<'_>) -> Result<Http2Channel, DialError> {
        match tokio::time::timeout(within, self.connect(owner)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(self.unreachable(format!("no connection within {within:?}"))),
        }
    }

    async fn connect(&self, owner: Owner<'_>) -> Result<Http2Channel, DialError> {
        let socket = TcpStream::connect((self.host.as_str(), self.port)).await.map_err(|error| {
            let cause = Cause::at(&self.address, error.to_string());
            let is_refused = error.kind() == std::io::ErrorKind::ConnectionRefused;
            DialError::Unreachable(if is_refused { cause.refused() } else { cause })
        })?;
        socket.set_nodelay(true).map_err(|error| self.unreachable(error.to_string()))?;
        let socket: Box<dyn Socket> = match &self.trust {
            None => Box::new(socket),
            Some(trust) => Box::new(trust.handshake(socket).await?),
        };
        Http2Channel::open(socket, self.origin.clone(), owner)
            .await
            .map_err(|error| DialError::BrokeOff(explain(&error)))
    }

    /// Why a connection broke before its first reply, as far as its handshake showed it.
    pub(crate) fn refusal(&self, text: &str) -> Option<DialError> {
        self.trust.as_ref()?.refusal(text).map(DialError::Tls)
    }

    /// The same, as far as the server shows it to a connection in the clear; none if [`Dialer::probe_tls`] may find more.
    pub(crate) async fn probe_plain(&self, text: &str, within: Duration) -> Option<DialError> {
        if let Some(failure) = self.probe_refusal(within).await {
            return Some(DialError::Tls(failure));
        }
        match (probe::plain(&self.host, self.port, within).await, &self.trust) {
            (Plain::Http2, Some(_)) => Some(DialError::Tls(TlsFailure::ServerIsPlain)),
            (Plain::Other(reply), None) => {
                let text = format!(
                    "the server does not speak HTTP/2 and may not be etcd; it answered {reply:?} ({text})"
                );
                Some(DialError::Unreachable(Cause::at(&self.address, text).refused()))
            }
            (Plain::Silent, None) => None,
            (Plain::Http2, None) | (Plain::Other(_) | Plain::Silent, Some(_)) => {
                Some(self.unreachable(text.to_owned()))
            }
        }
    }

    /// The same, of a server that closes the connection because of the client's certificate.
    async fn probe_refusal(&self, within: Duration) -> Option<TlsFailure> {
        let trust = self.trust.as_ref()?;
        let probing = async {
            let socket = TcpStream::connect((self.host.as_str(), self.port)).await.ok()?;
            trust.listen_for_refusal(socket).await
        };
        tokio::time::timeout(within, probing).await.ok().flatten()
    }

    /// The same, of a server that closes connections in the clear.
    pub(crate) async fn probe_tls(&self, text: &str, within: Duration) -> DialError {
        if probe::speaks_tls(&self.host, self.port, within).await {
            DialError::Tls(TlsFailure::ServerIsTls)
        } else {
            self.unreachable(text.to_owned())
        }
    }

    fn unreachable(&self, text: String) -> DialError {
        DialError::Unreachable(Cause::at(&self.address, text))
    }
}

/// The whole chain of an error in one line, without repeating what a link took over from the next.
pub(crate) fn explain(error: &(dyn StdError + 'static)) -> String {
    let mut text = String::new();
    for link in std::iter::successors(Some(error), |error| (*error).source()) {
        let link = link.to_string();
        if !text.contains(&link) {
            if !text.is_empty() {
                text.push_str(": ");
            }
            text.push_str(&link);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::Dialer;
    use crate::config::{Config, Tls};

    fn address(text: &str, config: &Config) -> Result<String, String> {
        Dialer::parse(text, config).map(|dialer| dialer.address).map_err(|error| error.to_string())
    }

    #[test]
    fn addresses_parse_with_optional_scheme_and_port() {
        let plain = Config::new(["x"]);
        let secure = Config::new(["x"]).with_tls(Tls::new().with_ca_pem(""));
        assert_eq!(address("a:1", &plain).unwrap(), "http://a:1");
        assert_eq!(address("a", &plain).unwrap(), "http://a:2379");
        assert_eq!(address("[::1]:7", &plain).unwrap(), "http://[::1]:7");
        assert_eq!(address("a:1", &secure).unwrap(), "https://a:1");
        assert_eq!(address("http://a:1/", &secure).unwrap(), "http://a:1");
    }

    #[test]
    fn invalid_address_error_hides_password() {
        let config = Config::new(["x"]);
        for bad in ["", "ftp://a", "http://", "a:1/path", "a:1?x=y", "a b"] {
            assert!(address(bad, &config).is_err(), "{bad:?} was taken");
        }
        for secret in
            ["http://ann:canary@a:1", "ann:canary", "http://ann:canary%40a", "a:1/canary", "a:1?x=canary"]
        {
            let text = address(secret, &config).unwrap_err();
            assert!(!text.contains("canary"), "{text}");
        }
    }
}
