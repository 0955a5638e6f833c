//! The vocabulary and the pure machines of Tenure.
//!
//! Nothing here reads a clock, opens a file, rolls dice or waits: every machine is told what happened and
//! what time it is, and answers with what must be done. That is what lets a bug be shown in a ten-line test
//! and lets the simulator try a million schedules.
//!
//! Read top to bottom: what tests can break on purpose ([`sabotage`]) and repeat ([`rng`]), then the words ([`time`], [`id`], [`revision`], [`layout`], [`record`]), then what can be asked of a store
//! ([`kv`], [`txn`], [`lease`], [`change`], [`error`]), then the store itself as a machine
//! ([`keyspace`]) and what a follower of it was told ([`snapshot`]), who is there ([`presence`]) and who is meant ([`rendezvous`]), then how to
//! wait, hold, keep registered and own one key alone ([`backoff`], [`keepalive`], [`session`], [`exclusive_key`]), then how to wait in a [`queue`], and what a holder shows: its [`fence`],
//! how to lead on a storage that knows no leases ([`ttl`]), and last the work itself: what a node can
//! be told ([`command`]), one [`task`]'s life, who takes which ([`balance`]), which tasks there are ([`board`]), everything that
//! one [`worker`] decides, and what [`client`]s send, with an [`audit`] trail of what they take away; and what happened in a namespace,
//! folded from its history ([`events`]), its state at one revision ([`cluster`]), and what runs [`once`] per period.

pub mod sabotage;

pub mod rng;

pub mod time;

pub mod id;

pub mod revision;

pub mod layout;

pub mod record;

pub mod kv;

pub mod txn;

pub mod lease;

pub mod change;

pub mod limits;

pub mod chunk;

pub mod multi_get;

pub mod error;
pub mod exchange;

pub mod keyspace;

pub mod snapshot;

pub mod presence;

pub mod rendezvous;

pub mod backoff;

pub mod keepalive;

pub mod loss;

pub mod session;

pub mod exclusive_key;

pub mod queue;

pub mod fence;

pub mod audit;

pub mod vacancy;

pub mod ttl;

pub mod command;

pub mod task;

pub mod balance;

pub mod board;

pub mod worker;

pub mod client;

pub mod events;

pub mod cluster;

pub mod once;

#[cfg(test)]
mod fuzz;
