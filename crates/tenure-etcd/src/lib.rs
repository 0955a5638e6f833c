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
mod choice;
mod classify;
mod client;
mod clock;
mod config;
mod connection;
mod dial;
mod endpoints;
mod error;
mod identity;
mod keepalive;
mod kv;
mod lease;
mod member;
mod message;
mod permission;
mod probe;
mod pulse;
mod secret;
mod stream;
mod tls;
mod version;
mod watch;
mod wire;

pub use client::Client;
pub use clock::boot_time;
pub use config::{ClientCertificate, Config, DefectLog, Tls, User};
pub use error::{Access, Cause, Denied, Error, Invalid, KeyRange, Replaced, TlsFailure};
pub use keepalive::Renewal;
pub use kv::{
    Compare, Delete, DeleteReply, KeyValue, Op, OpReply, Order, Put, Range, RangeReply, Relation, Target,
    Txn, TxnReply,
};
pub use lease::{Grant, LeaseView};
pub use member::{Alarm, Member, Status};
pub use secret::Secret;
pub use version::{Defect, Version, known_defects};
pub use watch::{Event, WatchError, WatchFrom, WatchItem, WatchSpec, Watcher};
