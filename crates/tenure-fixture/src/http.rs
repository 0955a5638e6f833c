//! A minimal HTTP client, one request on one connection: enough for `/health`, `/metrics` and
//! etcd's JSON gateway.
//!
//! HTTP/1.0 on purpose: the server closes after the reply and never sends chunks, so the body is
//! whatever follows the headers.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A reply of the server, whatever its status.
#[derive(Debug)]
pub(crate) struct HttpResponse {
    pub(crate) status: u16,
    pub(crate) body: String,
}

/// Fetches a path.
pub(crate) fn get(addr: SocketAddr, path: &str, timeout: Duration) -> io::Result<HttpResponse> {
    exchange(addr, &format!("GET {path} HTTP/1.0\r\nHost: {addr}\r\n\r\n"), timeout)
}

/// Posts a JSON document, with a token of etcd's if one is given.
pub(crate) fn post(
    addr: SocketAddr,
    path: &str,
    token: Option<&str>,
    json: &str,
    timeout: Duration,
) -> io::Result<HttpResponse> {
    let length = json.len();
    let token = token.map(|token| format!("Authorization: {token}\r\n")).unwrap_or_default();
    let request = format!(
        "POST {path} HTTP/1.0\r\nHost: {addr}\r\n{token}Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{json}"
    );
    exchange(addr, &request, timeout)
}

fn exchange(addr: SocketAddr, request: &str, timeout: Duration) -> io::Result<HttpResponse> {
    let mut stream = TcpStream::connect_timeout(&addr, timeout)?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    stream.write_all(request.as_bytes())?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes)?;
    parse(&String::from_utf8_lossy(&bytes))
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the answer is not HTTP"))
}

fn parse(text: &str) -> Option<HttpResponse> {
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()?;
    Some(HttpResponse { status, body: body.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn response_parses_status_and_body() {
        let answer =
            parse("HTTP/1.0 503 Service Unavailable\r\nA: b\r\n\r\n{\"health\":\"false\"}\r\n\r\nx").unwrap();
        assert_eq!(answer.status, 503);
        assert_eq!(answer.body, "{\"health\":\"false\"}\r\n\r\nx");
        assert!(parse("HTTP/1.0 200 OK\r\ncut").is_none());
        assert!(parse("SSH-2.0\r\n\r\n").is_none());
    }
}
