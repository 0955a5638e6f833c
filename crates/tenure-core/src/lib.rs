//! The vocabulary and the state machines of Tenure.
//!
//! Nothing here reads a clock, opens a file, makes random numbers or waits. Every machine takes events
//! and the current time, and returns requests. So a bug can be shown in a ten-line test, and the
//! simulator can run a million schedules.
//!
//! Read the modules in this order:
//!
//! * test support: rules that tests can break ([`sabotage`]) and seeded random numbers ([`rng`]);
//! * the vocabulary: [`time`], [`id`], [`revision`], [`layout`], [`record`];
//! * requests to a store: [`kv`], [`txn`], [`lease`], [`change`], [`error`];
//! * the store as a machine ([`keyspace`]) and what a follower of it knows ([`snapshot`]);
//! * members ([`presence`]) and the choice among them ([`rendezvous`]);
//! * retries ([`backoff`]), validity ([`keepalive`]), registered keys ([`session`]) and keys with one
//!   owner ([`exclusive_key`]);
//! * locks and elections: [`queue`], [`fence`], and [`ttl`] for storages without leases;
//! * tasks: commands ([`command`]), the life of a [`task`], claims and releases ([`balance`]), the task
//!   table ([`board`]), all decisions of a [`worker`], the requests of [`client`]s, and the [`audit`]
//!   trail of destructive ones;
//! * a namespace as a whole: its history as [`events`], its state at one revision ([`cluster`]), and
//!   commands that run [`once`] per period.

pub mod audit;
pub mod backoff;
pub mod balance;
pub mod board;
pub mod change;
pub mod chunk;
pub mod client;
pub mod cluster;
pub mod command;
pub mod error;
pub mod events;
pub mod exchange;
pub mod exclusive_key;
pub mod fence;
pub mod id;
pub mod keepalive;
pub mod keyspace;
pub mod kv;
pub mod layout;
pub mod lease;
pub mod limits;
pub mod loss;
pub mod multi_get;
pub mod once;
pub mod presence;
pub mod queue;
pub mod record;
pub mod rendezvous;
pub mod revision;
pub mod rng;
pub mod sabotage;
pub mod session;
pub mod snapshot;
pub mod task;
pub mod time;
pub mod ttl;
pub mod txn;
pub mod vacancy;
pub mod worker;

#[cfg(test)]
mod fuzz;
