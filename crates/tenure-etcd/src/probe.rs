//! What answers at an address without a usable connection: a server with TLS, one without, or no
//! etcd at all.
//!
//! A TLS server that reads plain text, and a plain server that reads a handshake, only close the
//! connection. "Connection reset" does not lead a user to the scheme of the address, so the other
//! protocol is tried once.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};

/// The beginning of every HTTP/2 connection, with empty settings.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// Enough to distinguish a settings frame from a line of text.
const REPLY_BYTES: usize = 64;

/// What a server sends after the beginning of HTTP/2 without TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Plain {
    /// HTTP/2, as etcd does.
    Http2,
    /// Something else, by its first bytes.
    Other(String),
    /// Nothing.
    Silent,
}

/// Begins HTTP/2 without TLS and reads the first bytes of the reply.
pub(crate) async fn plain(host: &str, port: u16, within: Duration) -> Plain {
    let asking = async {
        let mut socket = TcpStream::connect((host, port)).await?;
        socket.write_all(PREFACE).await?;
        let mut answer = vec![0; REPLY_BYTES];
        let read = socket.read(&mut answer).await?;
        answer.truncate(read);
        std::io::Result::Ok(answer)
    };
    match timeout(within, asking).await {
        Ok(Ok(answer)) => parse_reply(&answer),
        Ok(Err(_)) | Err(_) => Plain::Silent,
    }
}

/// Whether TLS answers a handshake, be it with an untrusted certificate or with an alert.
pub(crate) async fn speaks_tls(host: &str, port: u16, within: Duration) -> bool {
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map(|config| config.with_root_certificates(RootCertStore::empty()).with_no_client_auth());
    let (Ok(config), Ok(name)) = (config, ServerName::try_from(host.to_owned())) else { return false };
    let asking = async {
        let socket = TcpStream::connect((host, port)).await?;
        TlsConnector::from(Arc::new(config)).connect(name, socket).await
    };
    match timeout(within, asking).await {
        Ok(Ok(_)) => true,
        Ok(Err(error)) => matches!(
            rustls_error(&error),
            Some(rustls::Error::InvalidCertificate(_) | rustls::Error::AlertReceived(_))
        ),
        Err(_) => false,
    }
}

/// The error of the TLS library inside an error of a socket.
pub(crate) fn rustls_error(error: &std::io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

/// A frame is its length in three bytes, then its kind; the first one of a server has its settings.
fn parse_reply(answer: &[u8]) -> Plain {
    const SETTINGS: u8 = 4;
    match answer {
        [] => Plain::Silent,
        [0, 0, _, SETTINGS, ..] => Plain::Http2,
        // The first line that a server sends, such as `-ERR`, `SSH-2.0` or `HTTP/1.1 400`.
        other => {
            let text: String = other
                .iter()
                .take_while(|byte| (b' '..=b'~').contains(byte))
                .map(|byte| char::from(*byte))
                .collect();
            Plain::Other(text)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_bytes_identify_server() {
        for (answer, plain) in [
            (&b""[..], Plain::Silent),
            (b"\0\0\x06\x04\0\0\0\0\0", Plain::Http2),
            (b"-ERR unknown command 'PRI'\r\n", Plain::Other("-ERR unknown command 'PRI'".to_owned())),
            (b"\x15\x03\x01", Plain::Other(String::new())),
        ] {
            assert_eq!(parse_reply(answer), plain);
        }
    }
}
