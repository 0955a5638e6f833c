//! Real processes on a real store while faults hit them, and checkers for the histories that they
//! record.
//!
//! The simulation (`tenure-sim`) runs thousands of seeds in virtual time; this rig makes one run on
//! the machine: processes that are killed and stopped, an etcd of three members that die,
//! connections that break in the middle of a reply. Each client writes what it does and sees into
//! its history, and the checks use only histories.
//!
//! Read top to bottom: the options, random numbers, the history that each process writes, the
//! ledger that the locks protect, the probe that measures what a link carries, the client, the
//! checks, and the rig that connects them.

pub mod options;

pub mod rng;

pub mod history;

pub mod ledger;

pub mod probe;

pub mod client;

pub mod check;

pub mod rig;
