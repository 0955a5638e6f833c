//! A virtual world in which the real sessions, locks, elections, TTL elections and nodes meet every fault, from one seed.
//!
//! A [`play`] is one day: participants begin, work all day with the public parts of the library, faults hit them as a script says,
//! then faults end, everybody settles, puts down what they have, and leaves. Everything is told in a [`history`], the store keeps a
//! record of its own ([`audit`]), and afterwards each [`invariant`] reads both. Time is virtual, so that a day takes milliseconds, and
//! one seed decides everything, so that a run can be told again to the byte.

pub mod rng;

pub mod history;

pub mod held;

pub mod audit;

pub mod processes;

pub mod fault;

pub mod workload;

pub mod run;

pub mod invariant;
