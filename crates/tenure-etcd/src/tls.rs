//! TLS by rustls: from the configuration to a socket with a verified peer.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::client::ResolvesClientCert;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, InvalidDnsNameError, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore, SignatureScheme};

use crate::config::Tls;
use crate::dial::DialError;
use crate::error::TlsFailure;
use crate::probe::rustls_error;

/// The name of HTTP/2 when both sides agree on a protocol.
const HTTP2: &[u8] = b"h2";

/// The trusted authorities, the client's certificate, and the expected server name.
#[derive(Clone)]
pub(crate) struct TlsConnect {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
    has_identity: bool,
    /// Whether a server requested a client certificate.
    requested: Arc<AtomicBool>,
}

/// A configuration that no handshake can begin with.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsConfigError {
    #[error("the certificate authorities are not in PEM")]
    Authorities(#[source] pem::Error),
    #[error("this machine has no certificate authorities of its own; name one")]
    NoAuthorities,
    #[error("the client certificate is not in PEM")]
    Certificate(#[source] pem::Error),
    #[error("the key of the client certificate is not in PEM")]
    Key,
    #[error("the client certificate and its key do not belong together")]
    KeyMismatch,
    #[error("the client certificate cannot be used")]
    Identity(#[source] rustls::Error),
    #[error("TLS cannot be spoken")]
    Protocol(#[source] rustls::Error),
    #[error("{name:?} is no name a certificate could carry")]
    Name {
        name: String,
        #[source]
        source: InvalidDnsNameError,
    },
}

impl TlsConnect {
    /// Reads the configuration, for a server called `host` unless the configuration names another.
    pub(crate) fn new(tls: &Tls, host: &str) -> Result<Self, TlsConfigError> {
        let provider =
            CryptoProvider::get_default().cloned().unwrap_or_else(|| Arc::new(ring::default_provider()));
        let trusting = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(TlsConfigError::Protocol)?
            .with_root_certificates(authorities(tls)?);
        let requested = Arc::new(AtomicBool::new(false));
        let mut config = match &tls.identity {
            None => {
                let shown = CertificateResolver { identity: None, requested: Arc::clone(&requested) };
                trusting.with_client_cert_resolver(Arc::new(shown))
            }
            Some(identity) => {
                let chain = certificates(&identity.certificate_pem).map_err(TlsConfigError::Certificate)?;
                let key = PrivateKeyDer::from_pem_slice(identity.key_pem.reveal().as_bytes())
                    // The cause is left out: it might show a line of the key.
                    .map_err(|_| TlsConfigError::Key)?;
                let identity =
                    CertifiedKey::from_der(chain, key, &provider).map_err(|error| match error {
                        rustls::Error::InconsistentKeys(_) => TlsConfigError::KeyMismatch,
                        error => TlsConfigError::Identity(error),
                    })?;
                let shown = CertificateResolver {
                    identity: Some(Arc::new(identity)),
                    requested: Arc::clone(&requested),
                };
                trusting.with_client_cert_resolver(Arc::new(shown))
            }
        };
        config.alpn_protocols = vec![HTTP2.to_vec()];
        let name = tls.server_name.as_deref().unwrap_or(host).to_owned();
        let name =
            ServerName::try_from(name.clone()).map_err(|source| TlsConfigError::Name { name, source })?;
        Ok(Self { config: Arc::new(config), name, has_identity: tls.identity.is_some(), requested })
    }

    /// Performs the handshake. Its errors name what was wrong with a certificate.
    pub(crate) async fn handshake(&self, socket: TcpStream) -> Result<TlsStream<TcpStream>, DialError> {
        let connecting = TlsConnector::from(Arc::clone(&self.config)).connect(self.name.clone(), socket);
        let socket = connecting.await.map_err(|error| self.failed(&error))?;
        if socket.get_ref().1.alpn_protocol() == Some(HTTP2) {
            Ok(socket)
        } else {
            Err(DialError::Tls(TlsFailure::Other("the server speaks TLS, but not HTTP/2".to_owned())))
        }
    }

    /// Why the server may have closed a connection right after the handshake: the client's side
    /// completes it before the server has read the client's certificate.
    pub(crate) fn refusal(&self, text: &str) -> Option<TlsFailure> {
        if !self.requested.load(Ordering::Relaxed) {
            return None;
        }
        if !self.has_identity {
            return Some(TlsFailure::NoClientCertificate);
        }
        // The alert is wrapped by HTTP/2 and known by its text alone.
        text.contains("alert").then(|| TlsFailure::ClientCertificateRefused(text.to_owned()))
    }

    /// Repeats the handshake and reads, without writing: a request that meets a closed socket would
    /// destroy an alert in flight.
    pub(crate) async fn listen_for_refusal(&self, socket: TcpStream) -> Option<TlsFailure> {
        if !(self.has_identity && self.requested.load(Ordering::Relaxed)) {
            return None;
        }
        let connecting = TlsConnector::from(Arc::clone(&self.config)).connect(self.name.clone(), socket);
        let mut socket = connecting.await.ok()?;
        match socket.read(&mut [0]).await {
            Ok(_) => None,
            Err(error) => match rustls_error(&error) {
                Some(rustls::Error::AlertReceived(alert)) => {
                    Some(TlsFailure::ClientCertificateRefused(format!("alert {alert:?}")))
                }
                _ => None,
            },
        }
    }

    fn failed(&self, error: &io::Error) -> DialError {
        use rustls::{CertificateError, Error};
        let failure = match rustls_error(error) {
            Some(Error::InvalidCertificate(certificate)) => match certificate {
                CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                    TlsFailure::UnknownAuthority(certificate.to_string())
                }
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                    TlsFailure::WrongName(certificate.to_string())
                }
                CertificateError::ExpiredContext { time, not_after } => {
                    let since = time.as_secs().saturating_sub(not_after.as_secs());
                    TlsFailure::NotValidNow(format!("it expired {} ago", roughly(since)))
                }
                CertificateError::NotValidYetContext { time, not_before } => {
                    let until = not_before.as_secs().saturating_sub(time.as_secs());
                    TlsFailure::NotValidNow(format!("it becomes valid in {}", roughly(until)))
                }
                other => TlsFailure::Other(format!("the server's certificate is refused: {other}")),
            },
            Some(Error::AlertReceived(alert)) => match self.refusal("alert") {
                Some(TlsFailure::NoClientCertificate) => TlsFailure::NoClientCertificate,
                Some(_) => TlsFailure::ClientCertificateRefused(format!("alert {alert:?}")),
                None => TlsFailure::Other(format!("the server ended the handshake with the alert {alert:?}")),
            },
            // Bytes that are no TLS, or a connection that was closed.
            Some(Error::InvalidMessage(_)) | None => return DialError::BrokeOff(error.to_string()),
            Some(other) => TlsFailure::Other(other.to_string()),
        };
        DialError::Tls(failure)
    }
}

/// A duration in the unit that a reader compares with a calendar.
fn roughly(seconds: u64) -> String {
    match seconds {
        0..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// Presents the configured certificate, or none, and records that a server requested one.
#[derive(Debug)]
struct CertificateResolver {
    identity: Option<Arc<CertifiedKey>>,
    requested: Arc<AtomicBool>,
}

impl ResolvesClientCert for CertificateResolver {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.requested.store(true, Ordering::Relaxed);
        self.identity.clone()
    }

    fn has_certs(&self) -> bool {
        self.identity.is_some()
    }
}

/// The given authorities and no others; the machine's own when none are given.
fn authorities(tls: &Tls) -> Result<RootCertStore, TlsConfigError> {
    let found = match &tls.ca_pem {
        Some(pem) => certificates(pem).map_err(TlsConfigError::Authorities)?,
        None => {
            let own = rustls_native_certs::load_native_certs();
            if !own.errors.is_empty() {
                tracing::debug!(errors = ?own.errors, "certificate authorities left out");
            }
            if own.certs.is_empty() {
                return Err(TlsConfigError::NoAuthorities);
            }
            own.certs
        }
    };
    let mut roots = RootCertStore::empty();
    // Trust stores hold old certificates that cannot be parsed any more; the others count.
    roots.add_parsable_certificates(found);
    Ok(roots)
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, pem::Error> {
    CertificateDer::pem_slice_iter(pem).collect()
}

impl fmt::Debug for TlsConnect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsConnect").field("name", &self.name).finish_non_exhaustive()
    }
}
