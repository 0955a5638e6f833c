//! The etcd v3 protocol messages in plain Rust: only those that are used, without a build script.
//!
//! Field numbers are facts of the protocol; the tests against real etcd prove them. These types
//! stay inside the crate, so that tonic and prost can be replaced without a change for users.

pub(crate) mod auth;
pub(crate) mod cluster;
pub(crate) mod header;
pub(crate) mod keepalive;
pub(crate) mod kv;
pub(crate) mod lease;
pub(crate) mod watch;
