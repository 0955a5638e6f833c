//! Real processes on a real store while faults hit them, and checkers for what they tell afterwards.
//!
//! The simulation (`tenure-sim`) plays thousands of days in virtual time; this rig plays one on the machine: processes that are killed and
//! stopped, an etcd of three members that die, connections that vanish in the middle of an answer.
//! What a client does and sees it writes into its history, and only histories are believed.
//!
//! Read top to bottom: the options, chance, the history that everybody writes, the ledger that the locks protect, the probe that sees what a link carries, the client, the checks, and
//! the rig that brings them together.

pub mod options;

pub mod rng;

pub mod history;

pub mod ledger;

pub mod probe;

pub mod client;

pub mod check;

pub mod rig;
