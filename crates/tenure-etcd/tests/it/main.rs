//! The client against real etcd, whole and broken.
//!
//! `TENURE_ETCD_BIN` chooses the server, so that every line of etcd runs the same claims.

#![allow(clippy::unwrap_used, reason = "a test may fail anywhere, with the place and the error")]

mod access;
mod failover;
mod identity;
mod keepalive;
mod observe;
mod outcome;
mod quiet;
mod round_trip;
mod tls;
mod watch;

use std::time::Duration;

use bytes::Bytes;
use tenure_etcd::{Client, Config, Op, Put, Range, Txn};
use tenure_fixture::Etcd;

/// A client that stays with all members of the fixture.
async fn connect(etcd: &Etcd) -> Client {
    Client::connect(Config::new(etcd.client_urls())).await.expect("a healthy etcd takes connections")
}

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn put(key: &str, value: &str) -> Put {
    Put { key: bytes(key), value: bytes(value), ..Put::default() }
}

fn get(key: &str) -> Range {
    Range { key: bytes(key), ..Range::default() }
}

/// A transaction that does one thing.
fn just(op: Op) -> Txn {
    Txn { then: vec![op], ..Txn::default() }
}

/// Every wait of a test has an end.
async fn within<T>(limit: Duration, what: &str, wait: impl Future<Output = T>) -> T {
    match tokio::time::timeout(limit, wait).await {
        Ok(value) => value,
        Err(_) => panic!("{what} took longer than {limit:?}"),
    }
}
