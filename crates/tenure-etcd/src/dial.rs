//! One connection, made once: TCP, TLS, HTTP/2.
//!
//! tonic's channel reconnects by itself when it is used after a break. That would hide two things we must
//! know: how often anybody connects, and whether a request ever left. So the channel gets a socket that is
//! already open, exactly once; when it asks for another it is told [`Spent`], which proves that the request
//! it had in hand was never sent.

use std::error::Error as StdError;
use std::future::{Ready, ready};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tonic::codegen::Service;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};

use crate::config::{Config, Tls};
use crate::error::{Cause, Error, Invalid};

/// Where etcd listens when an address names no port.
const PORT_DEFAULT: u16 = 2379;

/// etcd closes connections that are pinged more often than every five seconds. Only connections with a
/// stream or a call under way are pinged: with pings on an idle one etcd closed it after 24 s.
const HTTP2_PING_EVERY: Duration = Duration::from_secs(6);

/// A ping unanswered this long means that the peer is gone.
const HTTP2_PING_PATIENCE: Duration = Duration::from_secs(2);

/// Everything needed to connect to one address.
#[derive(Clone, Debug)]
pub(crate) struct Dialer {
    /// For people: scheme, host and port.
    pub(crate) address: String,
    host: String,
    port: u16,
    endpoint: Endpoint,
}

/// Why there is no connection. In every case nothing was sent.
#[derive(Clone, Debug)]
pub(crate) enum DialError {
    /// The address, the network or the other side.
    Unreachable(Cause),
    /// TLS: trying again will not help before somebody changes a certificate.
    Untrusted(Cause),
}

impl Dialer {
    /// Reads an address as given in the configuration.
    pub(crate) fn parse(text: &str, config: &Config) -> Result<Self, Error> {
        let wrong = |why: &str| Error::Invalid(Invalid::Config(format!("endpoint {text:?}: {why}")));
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
        let port = uri.port_u16().unwrap_or(PORT_DEFAULT);
        let address = format!("{}://{host}:{port}", if secure { "https" } else { "http" });
        let mut endpoint = Endpoint::from_shared(address.clone())
            .map_err(|error| wrong(&explain(&error)))?
            .user_agent(concat!("tenure-etcd/", env!("CARGO_PKG_VERSION")))
            .map_err(|error| wrong(&explain(&error)))?
            .http2_keep_alive_interval(HTTP2_PING_EVERY)
            .keep_alive_timeout(HTTP2_PING_PATIENCE);
        if secure {
            let tls = config.tls.clone().unwrap_or_default();
            endpoint = endpoint.tls_config(tls_config(&tls)).map_err(|error| wrong(&explain(&error)))?;
        }
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        Ok(Self { address, host, port, endpoint })
    }

    /// Whether it speaks TLS.
    pub(crate) fn is_secure(&self) -> bool {
        self.address.starts_with("https:")
    }

    /// Connects, within the time given.
    pub(crate) async fn dial(&self, within: Duration) -> Result<Channel, DialError> {
        match tokio::time::timeout(within, self.connect()).await {
            Ok(outcome) => outcome,
            Err(_) => Err(self.unreachable(format!("no connection within {within:?}"))),
        }
    }

    async fn connect(&self) -> Result<Channel, DialError> {
        let socket = TcpStream::connect((self.host.as_str(), self.port))
            .await
            .map_err(|error| self.unreachable(error.to_string()))?;
        socket.set_nodelay(true).map_err(|error| self.unreachable(error.to_string()))?;
        self.endpoint.connect_with_connector(Handover(Some(socket))).await.map_err(|error| {
            let text = explain(&error);
            if is_certificate_trouble(&error) {
                DialError::Untrusted(Cause::at(&self.address, text))
            } else {
                self.unreachable(text)
            }
        })
    }

    fn unreachable(&self, text: String) -> DialError {
        DialError::Unreachable(Cause::at(&self.address, text))
    }
}

fn tls_config(tls: &Tls) -> ClientTlsConfig {
    let mut config = match &tls.ca_pem {
        Some(pem) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem)),
        None => ClientTlsConfig::new().with_native_roots(),
    };
    if let Some(certificate) = &tls.identity {
        let identity =
            tonic::transport::Identity::from_pem(&certificate.certificate_pem, certificate.key_pem.reveal());
        config = config.identity(identity);
    }
    match &tls.server_name {
        Some(name) => config.domain_name(name),
        None => config,
    }
}

/// Hands over one open socket, once.
struct Handover(Option<TcpStream>);

impl Service<http::Uri> for Handover {
    type Response = TokioIo<TcpStream>;
    type Error = Spent;
    type Future = Ready<Result<Self::Response, Spent>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Spent>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Uri) -> Self::Future {
        ready(self.0.take().map(TokioIo::new).ok_or(Spent))
    }
}

/// The connection is gone and the channel had nothing to send the request on.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the connection is gone")]
pub(crate) struct Spent;

/// Whether an error proves that its request was never sent.
pub(crate) fn is_unsent(error: &(dyn StdError + 'static)) -> bool {
    chain(error).any(<dyn StdError>::is::<Spent>)
}

/// The whole chain of an error in one line, without repeating what a link took over from the next.
pub(crate) fn explain(error: &(dyn StdError + 'static)) -> String {
    let mut text = String::new();
    for link in chain(error) {
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

/// rustls is not named in our manifest, so its errors are known by their words.
fn is_certificate_trouble(error: &(dyn StdError + 'static)) -> bool {
    let text = explain(error).to_ascii_lowercase();
    ["certificate", "unknownissuer", "handshakefailure", "badsignature", "received fatal alert"]
        .iter()
        .any(|word| text.contains(word))
}

fn chain<'a>(error: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |error| (*error).source())
}

#[cfg(test)]
mod tests {
    use super::Dialer;
    use crate::config::{Config, Tls};

    fn address(text: &str, config: &Config) -> Result<String, String> {
        Dialer::parse(text, config).map(|dialer| dialer.address).map_err(|error| error.to_string())
    }

    #[test]
    fn addresses_are_read_with_and_without_scheme_and_port() {
        let plain = Config::new(["x"]);
        let secure = Config::new(["x"]).with_tls(Tls::new().with_ca_pem(""));
        assert_eq!(address("a:1", &plain).unwrap(), "http://a:1");
        assert_eq!(address("a", &plain).unwrap(), "http://a:2379");
        assert_eq!(address("[::1]:7", &plain).unwrap(), "http://[::1]:7");
        assert_eq!(address("a:1", &secure).unwrap(), "https://a:1");
        assert_eq!(address("http://a:1/", &secure).unwrap(), "http://a:1");
    }

    #[test]
    fn an_address_that_cannot_work_is_refused_without_showing_a_password() {
        let config = Config::new(["x"]);
        for bad in ["", "ftp://a", "http://", "a:1/path", "a:1?x=y", "a b"] {
            assert!(address(bad, &config).is_err(), "{bad:?} was taken");
        }
        let text = address("http://ann:canary@a:1", &config).unwrap_err();
        assert!(!text.contains("canary"), "{text}");
    }
}
