//! A virtual world in which the real sessions, locks, elections, TTL elections and nodes meet every fault, from one seed.
//!
//! A [`run`] begins with some processes. They work with the public parts of the library while
//! faults hit them as the schedule decides. Then faults end, all processes settle, release what
//! they hold, and leave. The [`history`] records everything, the store keeps a record of its own
//! ([`audit`]), and afterwards each [`invariant`] reads both. Time is virtual, so that a run takes
//! milliseconds, and one seed decides everything, so that a run can be replayed.

pub mod rng;

pub mod history;

pub mod held;

pub mod audit;

pub mod processes;

pub mod fault;

pub mod workload;

pub mod run;

pub mod invariant;
