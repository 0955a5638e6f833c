//! The HTTP endpoint of a worker: `/healthz`, `/readyz` and `/metrics`.
//!
//! It implements the minimum of HTTP: one request per connection, no request body, no keep-alive.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tenure::worker::WorkerStatus;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use super::metrics::Metrics;
use super::pending::{Admission, PendingConnections};
use crate::failure::{Code, Failure};

/// A probe sends a few hundred bytes; a longer request is not one of a probe.
const REQUEST_BYTES_MAX: usize = 8 * 1_024;

/// How long a request may take to arrive: a probe sends it with its first packet. Longer, and idle connections stay longer; shorter, and a probe from
/// a busy machine is cut off.
const REQUEST_WITHIN: Duration = Duration::from_secs(2);

/// How long a response may take to be read.
const RESPONSE_WITHIN: Duration = Duration::from_secs(5);

/// How many responses with metrics are written at the same time. Health and readiness are not counted: they must be answered however many scrape.
const SCRAPES_MAX: usize = 8;

/// The sources of the pages.
#[derive(Clone)]
pub(super) struct HttpPages {
    pub(super) status: watch::Receiver<WorkerStatus>,
    /// Whether the worker is shutting down or draining.
    pub(super) is_leaving: watch::Receiver<bool>,
    pub(super) metrics: Metrics,
}

/// Binds the address, so that an invalid one is reported before a task is claimed.
pub(super) async fn bind(address: &str) -> Result<TcpListener, Failure> {
    let hint = "use an address like --http 127.0.0.1:9464";
    if !address.contains(':') {
        return Err(Failure::usage(format!("--http {address} has no port, or no address")).hint(hint));
    }
    TcpListener::bind(address).await.map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            Failure::new(Code::Conflict, format!("--http {address}: another process listens there"))
                .hint(hint)
        }
        _ => Failure::usage(format!("--http {address}: {error}")).hint(hint),
    })
}

/// The bound address, with the port that the kernel chose for port 0.
pub(super) fn address_of(listener: &TcpListener) -> Option<SocketAddr> {
    listener.local_addr().ok()
}

/// Serves until it is dropped. Accepting never waits for connections that are open: one that sends no request gives way to a newer one.
pub(super) async fn serve(listener: TcpListener, pages: HttpPages) {
    let mut pending = PendingConnections::default();
    let scrapes = Arc::new(Semaphore::new(SCRAPES_MAX));
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            biased;
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                let evicted = pending.admit(peer.ip());
                connections.spawn(connection(stream, pages.clone(), scrapes.clone(), evicted));
            }
            Err(error) => {
                // Most often out of descriptors; a pause lets other connections close.
                tracing::warn!(%error, "connection not accepted");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

/// Serves one connection. A client that leaves, or is late, needs no response.
async fn connection(
    mut stream: TcpStream,
    pages: HttpPages,
    scrapes: Arc<Semaphore>,
    mut admission: Admission,
) {
    let request = tokio::select! {
        biased;
        () = admission.evicted() => return,
        request = tokio::time::timeout(REQUEST_WITHIN, read_request(&mut stream)) => request,
    };
    let Ok(Ok(request)) = request else { return };
    // A connection with a request does not count as idle.
    drop(admission);
    let _scrape = match RequestTarget::of(&request) {
        RequestTarget::Metrics => scrapes.acquire_owned().await.ok(),
        RequestTarget::Other => None,
    };
    let _ = tokio::time::timeout(RESPONSE_WITHIN, respond(&mut stream, &pages, &request)).await;
}

/// Whether a request counts towards the limit of concurrent scrapes.
enum RequestTarget {
    Metrics,
    Other,
}

impl RequestTarget {
    fn of(request: &str) -> RequestTarget {
        let target = request.split(' ').nth(1).unwrap_or_default();
        if target.starts_with("/metrics") { RequestTarget::Metrics } else { RequestTarget::Other }
    }
}

async fn read_request(stream: &mut TcpStream) -> std::io::Result<String> {
    let mut request = Vec::new();
    let mut chunk = [0; 1_024];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") && request.len() < REQUEST_BYTES_MAX {
        match stream.read(&mut chunk).await? {
            0 => break,
            len => request.extend_from_slice(&chunk[..len]),
        }
    }
    Ok(String::from_utf8_lossy(&request).into_owned())
}

async fn respond(stream: &mut TcpStream, pages: &HttpPages, request: &str) -> std::io::Result<()> {
    let HttpPage { status, kind, body } = pages.page(request.lines().next().unwrap_or_default());
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\nCache-Control: no-store\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    if !request.starts_with("HEAD ") {
        stream.write_all(body.as_bytes()).await?;
    }
    stream.shutdown().await
}

struct HttpPage {
    status: &'static str,
    kind: &'static str,
    body: String,
}

const PLAIN: &str = "text/plain; charset=utf-8";

impl HttpPages {
    fn page(&self, request: &str) -> HttpPage {
        let plain = |status, body: &str| HttpPage { status, kind: PLAIN, body: format!("{body}\n") };
        let mut parts = request.split(' ');
        let (method, target) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        if !parts.next().is_some_and(|version| version.starts_with("HTTP/1.")) {
            return plain("400 Bad Request", "not an HTTP/1 request");
        }
        if !matches!(method, "GET" | "HEAD") {
            return plain("405 Method Not Allowed", "only GET and HEAD are supported");
        }
        match target.split('?').next().unwrap_or_default() {
            "/healthz" => plain("200 OK", "ok"),
            "/readyz" => match self.not_ready() {
                None => plain("200 OK", "ready"),
                Some(why) => plain("503 Service Unavailable", why),
            },
            "/metrics" => HttpPage {
                status: "200 OK",
                kind: "text/plain; version=0.0.4; charset=utf-8",
                body: self.metrics.page(),
            },
            _ => plain("404 Not Found", "the pages are /healthz, /readyz and /metrics"),
        }
    }

    fn not_ready(&self) -> Option<&'static str> {
        if *self.is_leaving.borrow() {
            return Some("the worker is leaving");
        }
        (!self.status.borrow().is_member).then_some("the worker is not a member")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_served_and_other_requests_refused() {
        let (sender, status_receiver) = watch::channel(WorkerStatus { tasks: 0, peers: 0, is_member: true });
        let (leaving, is_leaving) = watch::channel(false);
        let pages = HttpPages { status: status_receiver, is_leaving, metrics: Metrics::default() };
        let status = |request: &str| pages.page(request).status;
        assert_eq!(status("GET /healthz HTTP/1.1"), "200 OK");
        assert_eq!(status("GET /readyz?x HTTP/1.0"), "200 OK");
        assert_eq!(status("HEAD /metrics HTTP/1.1"), "200 OK");
        assert_eq!(status("GET / HTTP/1.1"), "404 Not Found");
        assert_eq!(status("POST /healthz HTTP/1.1"), "405 Method Not Allowed");
        for odd in ["", "GET", "GET /healthz", "\u{16}\u{3}\u{1}", "GET /healthz HTTP/2.0"] {
            assert_eq!(status(odd), "400 Bad Request", "{odd:?}");
        }
        sender.send_replace(WorkerStatus { tasks: 0, peers: 0, is_member: false });
        assert_eq!(status("GET /readyz HTTP/1.1"), "503 Service Unavailable");
        assert_eq!(
            status("GET /healthz HTTP/1.1"),
            "200 OK",
            "an unreachable store is no reason for a restart"
        );
        sender.send_replace(WorkerStatus { tasks: 0, peers: 0, is_member: true });
        leaving.send_replace(true);
        assert!(pages.page("GET /readyz HTTP/1.1").body.contains("leaving"));
    }
}
