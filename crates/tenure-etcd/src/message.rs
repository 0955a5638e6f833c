//! The etcd v3 wire messages, written by hand: only what we use, no build script.
//!
//! Field numbers are facts of the protocol; the tests against real etcd prove them.
//! These types stay inside the crate, so that tonic and prost can be replaced without a word to anybody.

pub(crate) mod auth;
pub(crate) mod cluster;
pub(crate) mod header;
pub(crate) mod keepalive;
pub(crate) mod kv;
pub(crate) mod lease;
pub(crate) mod watch;
