//! Public behaviour of the stores, in one binary: what every engine does, and that the checks of it can fail.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too: a panic is how they fail")]

mod audit;
mod client;
mod conformance;
mod controls;
mod differential;
mod election;
mod equivalence;
mod etcd;
mod examples;
mod faults;
mod feed;
mod file;
mod front_door;
mod history;
mod leaks;
mod lock;
mod membership;
mod node;
mod once;
mod service;
mod session;
mod testing;
mod tokio_clock;
mod ttl;
mod twisted;
