//! What the locks protect: counters outside of the store, in the rig's own memory, that refuse older tokens than they have seen.
//!
//! Every request carries a token, reads too: a holder that was allowed to read may rely on the
//! value until a later holder has read. A client without tokens (`etcdctl lock`, and a lock that is
//! broken on purpose) is always allowed, and the resulting violations are counted.
//!
//! The ledger is no part of what is tested and is hit by no fault: it is the witness.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

use tenure::store::Revision;
use tenure_core::fence::FenceVerifier;
use tenure_core::revision::Token;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt};

use crate::history::{Stamp, now};

/// The counters, and the service around them. Its threads end with their connections.
#[derive(Clone, Debug)]
pub struct Ledger {
    addr: SocketAddr,
    inner: Arc<Mutex<LedgerState>>,
}

#[derive(Debug, Default)]
struct LedgerState {
    verifier: FenceVerifier,
    values: BTreeMap<String, u64>,
    entries: Vec<LedgerEntry>,
}

/// One request to the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerEntry {
    /// When.
    pub at: Stamp,
    /// Of which counter.
    pub line: String,
    /// Under which token; none is let in always.
    pub token: Option<i64>,
    /// What is written; none for a read.
    pub write: Option<u64>,
    /// What the counter was before.
    pub before: u64,
    /// Whether it was let in.
    pub admitted: bool,
}

impl Ledger {
    /// Begins to serve at an address of this machine.
    ///
    /// # Panics
    ///
    /// If no port is free there.
    pub fn start(at: Ipv4Addr) -> Ledger {
        let listener = TcpListener::bind((at, 0)).expect("the address has a free port");
        let addr = listener.local_addr().expect("a bound socket has an address");
        let ledger = Ledger { addr, inner: Arc::default() };
        let serving = ledger.clone();
        // Lives as long as the rig's process, which runs once.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let serving = serving.clone();
                std::thread::spawn(move || serving.serve(stream));
            }
        });
        ledger
    }

    /// Where it is.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// All requests, in the order in which the ledger handled them.
    pub fn entries(&self) -> Vec<LedgerEntry> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).entries.clone()
    }

    fn serve(&self, stream: TcpStream) {
        let Ok(mut answers) = stream.try_clone() else { return };
        for line in BufReader::new(stream).lines() {
            // The client has disconnected.
            let Ok(line) = line else { return };
            let answer = self.reply(&line);
            if answers.write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    }

    /// `read LINE TOKEN` and `write LINE TOKEN VALUE`, where a token may be `-`.
    fn reply(&self, request: &str) -> String {
        let words: Vec<&str> = request.split(' ').collect();
        let (line, token, write) = match words.as_slice() {
            ["read", line, token] => (*line, *token, None),
            ["write", line, token, value] => match value.parse::<u64>() {
                Ok(value) => (*line, *token, Some(value)),
                Err(_) => return "bad\n".to_owned(),
            },
            _ => return "bad\n".to_owned(),
        };
        let token = token.parse::<i64>().ok();
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.request(line, token, write)
    }
}

impl LedgerState {
    fn request(&mut self, line: &str, token: Option<i64>, write: Option<u64>) -> String {
        let admitted = token.is_none_or(|token| self.verifier.admit(line, Token(Revision(token))).is_ok());
        let value = self.values.entry(line.to_owned()).or_default();
        let before = *value;
        if let (true, Some(write)) = (admitted, write) {
            *value = write;
        }
        self.entries.push(LedgerEntry { at: now(), line: line.to_owned(), token, write, before, admitted });
        if admitted { format!("ok {before}\n") } else { "stale\n".to_owned() }
    }
}

/// A line to the ledger.
#[derive(Debug)]
pub struct LedgerClient {
    stream: tokio::io::BufReader<tokio::net::TcpStream>,
}

/// The reply of the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LedgerReply {
    /// It is done; what the counter was before.
    Ok(u64),
    /// A later token was here before.
    Stale,
}

impl LedgerClient {
    /// Connects.
    ///
    /// # Errors
    ///
    /// The error of the socket.
    pub async fn to(addr: SocketAddr) -> std::io::Result<LedgerClient> {
        let stream = tokio::net::TcpStream::connect(addr).await?;
        stream.set_nodelay(true)?;
        Ok(LedgerClient { stream: tokio::io::BufReader::new(stream) })
    }

    /// Reads a counter.
    ///
    /// # Errors
    ///
    /// The error of the socket.
    pub async fn read(&mut self, line: &str, token: Option<i64>) -> std::io::Result<LedgerReply> {
        self.request(format!("read {line} {}\n", token_text(token))).await
    }

    /// Writes it.
    ///
    /// # Errors
    ///
    /// The error of the socket.
    pub async fn write(
        &mut self,
        line: &str,
        token: Option<i64>,
        value: u64,
    ) -> std::io::Result<LedgerReply> {
        self.request(format!("write {line} {} {value}\n", token_text(token))).await
    }

    async fn request(&mut self, request: String) -> std::io::Result<LedgerReply> {
        self.stream.get_mut().write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        self.stream.read_line(&mut answer).await?;
        match answer.trim_end().split_once(' ') {
            Some(("ok", value)) => value.parse().map(LedgerReply::Ok).map_err(std::io::Error::other),
            None if answer == "stale\n" => Ok(LedgerReply::Stale),
            Some(_) | None => Err(std::io::Error::other(format!("the ledger replied {answer:?}"))),
        }
    }
}

fn token_text(token: Option<i64>) -> String {
    token.map_or_else(|| "-".to_owned(), |token| token.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_reader_fences_earlier_writer() {
        let mut inner = LedgerState::default();
        assert_eq!(inner.request("a", Some(5), None), "ok 0\n");
        assert_eq!(inner.request("a", Some(6), None), "ok 0\n");
        assert_eq!(inner.request("a", Some(5), Some(1)), "stale\n");
        assert_eq!(inner.request("a", Some(6), Some(1)), "ok 0\n");
        assert_eq!(inner.request("b", Some(5), Some(1)), "ok 0\n", "counters do not know each other");
        assert_eq!(inner.request("a", None, Some(1)), "ok 1\n", "no client without a token is refused");
        let admitted: Vec<bool> = inner.entries.iter().map(|entry| entry.admitted).collect();
        assert_eq!(admitted, [true, true, false, true, true, true]);
    }
}
