//! A thin etcd v3 client: hand-written messages, failover, multiplexed watches and keep-alives.
//!
//! It has no dependency on Tenure. It guarantees a true outcome for every request: applied, not
//! applied, or unknown. One dead member out of three costs a moment, never an error.
//!
//! Reading order: [`Client`] is the handle; `call` turns one request into attempts and one outcome;
//! `classify` maps a failure to its meaning; `endpoints` keeps the connections, as the pure
//! `endpoint_selector` decides; `identity` detects that the store was replaced. No type of tonic or
//! prost appears in a public signature, so that either can be replaced.

mod call;
mod classify;
mod client;
mod clock;
mod config;
mod connection;
mod dial;
mod endpoint_selector;
mod endpoints;
mod error;
mod http2;
mod identity;
mod keepalive;
mod kv;
mod lease;
mod member;
mod message;
mod permission;
mod probe;
mod secret;
mod stream;
mod timer_tick;
mod tls;
mod version;
mod watch;

pub use client::Client;
pub use clock::boot_time;
pub use config::{ClientCertificate, Config, DefectLog, Tls, User};
pub use error::{Cause, ClusterReplaced, Denied, Error, Invalid, KeyRange, RequiredAccess, TlsFailure};
pub use keepalive::Renewal;
pub use kv::{
    Compare, CompareValue, Delete, DeleteReply, KeyValue, Op, OpReply, Put, Range, RangeOrder, RangeReply,
    Relation, Txn, TxnReply,
};
pub use lease::{Grant, LeaseView};
pub use member::{Alarm, ClusterMember, Status};
pub use secret::Secret;
pub use version::{Defect, ServerVersion, known_defects};
pub use watch::{WatchError, WatchEvent, WatchFrom, WatchItem, WatchSpec, Watcher};
