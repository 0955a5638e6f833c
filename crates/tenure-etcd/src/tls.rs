//! TLS by rustls: from the configuration to a socket whose other end is who it should be.

use std::fmt;
use std::io;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, InvalidDnsNameError, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};

use crate::config::Tls;

/// The name of HTTP/2 when both sides agree on a protocol.
const HTTP2: &[u8] = b"h2";

/// Whom we trust, who we are, and whom we expect.
#[derive(Clone)]
pub(crate) struct Trust {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

/// A configuration that no handshake can begin with.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TrustError {
    #[error("the certificate authorities are not in PEM")]
    Authorities(#[source] pem::Error),
    #[error("this machine has no certificate authorities of its own; name one")]
    NoAuthorities,
    #[error("the client certificate is not in PEM")]
    Certificate(#[source] pem::Error),
    #[error("the key of the client certificate is not in PEM")]
    Key,
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

impl Trust {
    /// Reads the configuration, for a server that is called `host` unless the configuration says otherwise.
    pub(crate) fn new(tls: &Tls, host: &str) -> Result<Self, TrustError> {
        let provider =
            CryptoProvider::get_default().cloned().unwrap_or_else(|| Arc::new(ring::default_provider()));
        let trusting = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(TrustError::Protocol)?
            .with_root_certificates(authorities(tls)?);
        let mut config = match &tls.identity {
            None => trusting.with_no_client_auth(),
            Some(identity) => {
                let chain = certificates(&identity.certificate_pem).map_err(TrustError::Certificate)?;
                let key = PrivateKeyDer::from_pem_slice(identity.key_pem.reveal().as_bytes())
                    // Why is not said: it might show a line of the key.
                    .map_err(|_| TrustError::Key)?;
                trusting.with_client_auth_cert(chain, key).map_err(TrustError::Identity)?
            }
        };
        config.alpn_protocols = vec![HTTP2.to_vec()];
        let name = tls.server_name.as_deref().unwrap_or(host).to_owned();
        let name = ServerName::try_from(name.clone()).map_err(|source| TrustError::Name { name, source })?;
        Ok(Self { config: Arc::new(config), name })
    }

    /// The handshake. Its errors say in words what was wrong with a certificate.
    pub(crate) async fn greet(&self, socket: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let socket = TlsConnector::from(Arc::clone(&self.config)).connect(self.name.clone(), socket).await?;
        if socket.get_ref().1.alpn_protocol() == Some(HTTP2) {
            Ok(socket)
        } else {
            Err(io::Error::other("the server does not speak HTTP/2"))
        }
    }
}

/// The given authorities and no others; the machine's own when none are given.
fn authorities(tls: &Tls) -> Result<RootCertStore, TrustError> {
    let found = match &tls.ca_pem {
        Some(pem) => certificates(pem).map_err(TrustError::Authorities)?,
        None => {
            let own = rustls_native_certs::load_native_certs();
            if !own.errors.is_empty() {
                tracing::debug!(errors = ?own.errors, "certificate authorities left out");
            }
            if own.certs.is_empty() {
                return Err(TrustError::NoAuthorities);
            }
            own.certs
        }
    };
    let mut roots = RootCertStore::empty();
    // Trust stores hold old certificates that nobody can read any more; the others count.
    roots.add_parsable_certificates(found);
    Ok(roots)
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, pem::Error> {
    CertificateDer::pem_slice_iter(pem).collect()
}

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trust").field("name", &self.name).finish_non_exhaustive()
    }
}
