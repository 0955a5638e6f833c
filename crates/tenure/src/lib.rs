//! Coordination for programs that run on more than one machine and must agree on who does what.
//!
//! Everything stands on one narrow [`store`]: a revisioned key space with leases, transactions and watches, on
//! three engines: memory, a file shared by the processes of one machine, and etcd.
//!
//! Read top to bottom: the [`clock`], the [`store`] and its engines, the [`feed`] that keeps a whole picture of a
//! prefix, the [`session`] that keeps keys registered, the [`roster`] of who is there with [`membership`] and [`service`] on it, the
//! [`lock`]s and [`election`]s that stand in line on it, [`ttl`] elections on any storage with TTLs, the
//! [`client`] that gives work and looks after it, the [`handler`] that runs a task and the [`node`] that claims them, the `conformance` suite that every engine passes, and the `testing` world in
//! which you can test your own loss handling.

pub mod clock;

mod dice;

pub mod identity;

pub mod audit;

mod news;

pub mod store;

pub mod feed;

pub mod session;

pub mod roster;

mod seat;

pub mod membership;

pub mod service;

mod line;

pub mod lock;

pub mod election;

pub mod ttl;

mod leftover;

pub mod client;

pub mod handler;

pub mod node;

#[cfg(feature = "conformance")]
pub mod conformance;

#[cfg(feature = "testing")]
pub mod testing;

pub use identity::Identity;

pub use tenure_core as core;

/// The README's example, compiled and run with the other examples.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
