//! The vocabulary and the pure machines of Tenure.
//!
//! Nothing here reads a clock, opens a file, rolls dice or waits: every machine is told what happened and
//! what time it is, and answers with what must be done. That is what lets a bug be shown in a ten-line test
//! and lets the simulator try a million schedules.
//!
//! Read top to bottom: what tests can break on purpose ([`sabotage`]) and repeat ([`dice`]), then the words ([`time`], [`name`], [`revision`], [`layout`], [`record`]), then what can be asked of a store
//! ([`kv`], [`txn`], [`lease`], [`change`], [`error`]), then the store itself as a machine
//! ([`keyspace`]) and what a follower of it was told ([`picture`]), who is there ([`roster`]) and who is meant ([`rendezvous`]), then how to
//! wait, hold and keep registered ([`backoff`], [`hold`], [`session`]), then how to stand in [`mod@line`], and what a holder shows: its [`fence`],
//! how to lead on a storage that knows no leases ([`leadership`]), and last the work itself: what a node can
//! be told ([`command`]), one [`task`]'s life, who takes which ([`balance`]), which tasks there are ([`board`]), and everything that
//! one [`node`] decides.

pub mod sabotage;

pub mod dice;

pub mod time;

pub mod name;

pub mod revision;

pub mod layout;

pub mod record;

pub mod kv;

pub mod txn;

pub mod lease;

pub mod change;

pub mod limits;

pub mod chunk;

pub mod error;

pub mod keyspace;

pub mod picture;

pub mod roster;

pub mod rendezvous;

pub mod backoff;

pub mod hold;

pub mod session;

pub mod line;

pub mod fence;

pub mod vacancy;

pub mod leadership;

pub mod command;

pub mod task;

pub mod balance;

pub mod board;

pub mod node;

#[cfg(test)]
mod fuzz;
