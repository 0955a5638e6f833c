//! A thin etcd v3 client: hand-written messages, failover, multiplexed watches and keep-alives.
//!
//! It knows nothing of Tenure. Its promise is an honest outcome for every request: applied, not applied, or
//! nobody knows; and that one dead member out of three costs a moment, never an error.
//!
//! Reading order: [`Client`] is the handle; `call` turns one request into tries and one outcome; `classify`
//! says what a failure means; `endpoints` keeps the connections, on the advice of the pure `choice`;
//! `identity` notices a store that was swapped. No type of tonic or prost shows in a signature, so that
//! either can be replaced.

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
