//! Leader election on any storage that can insert, swap and delete by comparison, with a TTL.
//!
//! On etcd or a file, [`Tenure::election`](crate::Tenure::election) is fairer and has more operations. This module is for other storages:
//! a Redis that is in use already, a database table, a vendor's key-value service. An implementation of [`TtlStorage`] gets leader election;
//! the `conformance` suite checks the implementation.
//!
//! ```
//! use std::time::Duration;
//! use tenure::BootClock;
//! use tenure::ttl::{MemoryStorage, TtlCampaignError, TtlElections};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let storage = MemoryStorage::<String, String>::new(BootClock);
//! let (web_1, web_2) = (TtlElections::new(storage.clone()), TtlElections::new(storage));
//!
//! let term = web_1.election("reports").campaign("web-1").ttl(Duration::from_secs(15)).await?;
//! assert!(term.is_valid() && term.token().is_some());
//!
//! let second = web_2.election("reports").campaign("web-2").try_now().await;
//! assert!(matches!(second, Err(TtlCampaignError::Held { .. })));
//!
//! term.release().await?;
//! let term = web_2.election("reports").campaign("web-2").try_now().await?;
//! # drop(term);
//! # Ok(())
//! # }
//! ```
//!
//! # Guarantees
//!
//! * A term ends locally before the storage can give the key to another candidate. Validity counts from the *send* time of the last
//!   acknowledged request, ends a margin before the TTL, and ends on time while the storage hangs, on a clock that counts suspend.
//! * A renewal is sent every quarter of the TTL and repeated within the validity that is left. Another stored value ends the term at once.
//! * A lost reply is settled by a comparison, never assumed: each campaign stores its own nonce, as `v1:<nonce>:<value>` (see [`TtlValue`]).
//! * Two candidates with the same value by mistake do not both lead, and neither deletes the key of the other.
//! * A release ends validity, stops the work, waits for it, and deletes the key then. Work that does not stop in time keeps the key until it
//!   expires.
//!
//! # Not guaranteed
//!
//! * Mutual exclusion of *effects*: a write in flight when validity ends may arrive later. Only a resource that checks
//!   [`TtlTerm::token`] can refuse it; [`TtlElectionsBuilder::require_fencing`] refuses storages without tokens.
//! * More than the storage guarantees: a replicated Redis that fails over can lose acknowledged writes, and then two candidates lead.
//! * Fairness: the first candidate that inserts after the key is free leads.
//! * That a late insert is undone: a request that was taken for lost and is applied later keeps the key for its TTL, without a leader.
//!
//! # Cancellation
//!
//! Dropping a campaign deletes what it may have stored; dropping a [`TtlTerm`] releases it, and dropping the last [`TtlElections`] closes
//! them, all in the background.
//!
//! # Errors
//!
//! [`TtlCampaignError`] and [`ReleaseError`](crate::ReleaseError); [`LossReason`](crate::LossReason) explains how a term ended.

mod driver;
mod election;
mod elections;
mod memory;
#[cfg(feature = "redis")]
mod redis;
mod storage;
mod store_storage;
mod term;
mod term_state;
mod value;

#[cfg(feature = "conformance")]
pub mod conformance;

pub use election::{TtlCampaign, TtlCampaignError, TtlElection};
pub use elections::{TtlElections, TtlElectionsBuilder};
pub use memory::MemoryStorage;
#[cfg(feature = "redis")]
pub use redis::RedisStorage;
pub use storage::{Capabilities, KeyFreed, StorageError, TtlStorage};
pub use store_storage::StoreStorage;
pub use term::TtlTerm;
pub use value::{Nonce, TtlValue};
