//! Elections on any storage that can insert, swap and delete by comparison, with a TTL.
//!
//! Where etcd or a file is at hand, locks and elections on create revisions are fairer and say more. This is for everything else:
//! a Redis that is there anyway, a table of a database, a vendor's key-value service. Whoever implements [`TtlStorage`] has
//! leader election with all the care that it needs, and a [`conformance`] kit that tells whether the storage deserves it.
//!
//! ```
//! use std::time::Duration;
//! use tenure::clock::BootClock;
//! use tenure::ttl::{AcquireError, Elections, Memory};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let storage = Memory::new(BootClock);
//! let here = Elections::new(storage.clone(), BootClock);
//! let there = Elections::new(storage, BootClock);
//!
//! let boss = here.acquire("reports".to_owned(), "web-1".to_owned(), Duration::from_secs(15)).await?;
//! assert!(boss.is_valid() && boss.token().is_some());
//!
//! let second = there.acquire("reports".to_owned(), "web-2".to_owned(), Duration::from_secs(15)).await;
//! assert!(matches!(second, Err(AcquireError::Held)));
//!
//! boss.release().await?;
//! let second = there.acquire("reports".to_owned(), "web-2".to_owned(), Duration::from_secs(15)).await?;
//! # drop(second);
//! # Ok(())
//! # }
//! ```
//!
//! # Guarantees
//!
//! * A leader stops believing before the storage can agree to another: validity counts from when the last acknowledged request was
//!   *sent*, ends a margin before the TTL does, and ends on time while the storage hangs, on a clock that counts suspend.
//! * Renewal happens every quarter of the duration and is tried again inside the validity that is left. A storage that holds another
//!   value ends the leadership at once.
//! * A lost answer is settled by comparing, never taken for a yes or a no: what is stored carries a nonce of its own for
//!   each acquisition, as `v1:<nonce>:<value>` (see [`Value`]).
//! * Two electors that go by the same name by mistake do not both lead, and nobody deletes what is not theirs.
//! * A release withdraws permission, stops the work, waits for it, and deletes then. Work that does not stop in time keeps the key until it lapses.
//!
//! # Not guaranteed
//!
//! * Mutual exclusion of *effects*: a write that is under way when validity ends may arrive later. Only a resource that checks the
//!   [`Leadership::token`] can refuse it, so only a storage that fences can give that; [`Options::strict`] insists on one.
//! * More than the storage gives: a replicated Redis that fails over can lose what it acknowledged, and then two lead.
//! * Fairness: whoever asks first after the key is free leads.
//! * That an insert which was lost on its way, and arrives after all, is undone: it stays for its TTL, and nobody believes in it.
//!
//! # Cancellation
//!
//! Dropping an acquire gives back what it may have taken; dropping a [`Leadership`] releases it, and dropping the last [`Elections`] closes
//! it, all in the background.
//!
//! # Errors
//!
//! [`AcquireError`] and [`ReleaseError`] say what to do next; [`LossReason`] says why a leadership is over.

mod driver;
mod elections;
mod leadership;
mod stamp;
mod storage;
mod term;

pub mod memory;

pub mod over_store;

#[cfg(feature = "redis")]
pub mod redis;

#[cfg(feature = "conformance")]
pub mod conformance;

pub use crate::hold::{LossReason, Lost};
pub use elections::{AcquireError, CannotFence, Elections, Key, LeftBehind, Options, ReleaseError};
pub use leadership::Leadership;
pub use memory::Memory;
pub use over_store::StoreStorage;
#[cfg(feature = "redis")]
pub use redis::Redis;
pub use stamp::{Nonce, Value};
pub use storage::{Capabilities, Freed, StorageError, TtlStorage, refuse_zero};
