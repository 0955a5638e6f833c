//! Coordination for programs on several machines: locks, elections, members, services and tasks on one store.
//!
//! ```
//! use std::time::Duration;
//! use tenure::Tenure;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> tenure::Result<()> {
//! let tenure = Tenure::connect("memory:").await?; // or file:///path/store.db, or etcd://a:2379,b:2379
//!
//! let guard = tenure.lock("deploy").timeout(Duration::from_secs(60)).await?;
//! let deployed = guard.run(async { "deployed" }).await?; // dropped if the lock is lost
//! assert_eq!(deployed, "deployed");
//! println!("token {}", guard.token()); // show it to what you write to
//!
//! guard.release().await?;
//! tenure.close().await?;
//! # Ok(())
//! # }
//! ```
//!
//! [`Tenure`] is the entry point: locks, elections, members, services and tasks of a namespace, on one session. It uses the modules below.
//!
//! All of them use one narrow [`store`]: a revisioned key space with leases, transactions and watches, on
//! three engines: memory, a file shared by the processes of one machine, and etcd.
//!
//! The modules, each on top of the ones before it:
//!
//! | module | contents |
//! |---|---|
//! | [`clock`], [`identity`] | injected time; the identity of this process |
//! | [`store`], [`feed`] | the store and its engines; a listing followed by a watch |
//! | [`hold`], [`fence`] | validity and fencing tokens |
//! | [`session`] | leases, and keys that stay registered |
//! | [`presence`], [`member`], [`service`] | the live nodes and service instances |
//! | [`lock`], [`election`], [`once`] | queues of one holder, and runs once per period |
//! | [`ttl`] | elections on any storage with TTLs |
//! | [`task`], [`worker`] | tasks that clients submit, their handlers, and the workers that claim them |
//! | [`events`], [`snapshot`] | the history of a namespace, and its state at one revision |
//! | `conformance`, `testing` | suites for engines and storages; virtual time with faults |

pub mod clock;

mod rng;

pub mod identity;

pub mod audit;

mod ordered_watch;

pub mod hold;

/// Conditions and verifiers that refuse writes of earlier holders.
pub mod fence {
    pub use tenure_core::fence::{Fence, FenceVerifier, StaleToken};
}

pub mod store;

pub mod feed;

pub mod session;

pub mod presence;

mod exclusive_key;

pub mod member;

pub mod service;

mod retry;

mod closing;

mod driver;

mod queue;

pub mod lock;

pub mod election;

pub mod ttl;

pub mod events;

pub mod snapshot;

pub mod once;

pub mod task;

pub mod worker;

mod id;

mod error;

mod tenure;

#[cfg(feature = "conformance")]
pub mod conformance;

#[cfg(feature = "testing")]
pub mod testing;

pub use self::tenure::{Close, Source, Tenure, TenureBuilder};
pub use clock::{BootClock, Clock};
pub use election::{Campaign, CampaignError, Candidate, Election, LeadError, Leader, Term};
pub use error::{CloseError, ConnectError, Error, ErrorClass, Result};
pub use hold::{CommitError, Hold, LossReason, Lost, ReleaseError, Validity};
pub use id::{IntoId, IntoIdentity};
pub use identity::Identity;
pub use lock::{Barrier, BarrierError, Guard, LockError, LockRequest, RwLock, Semaphore};
pub use member::{Join, JoinError, Members, Membership};
pub use service::{Picker, Service};
pub use session::{Health, RegisterError, Registration, Session};
pub use store::{Revision, Store, StoreError};
pub use task::{NewTask, Outcome, SubmitError, Task, TaskError};
pub use worker::{Worker, WorkerBuilder};

pub use tenure_core::backoff::Backoff;
pub use tenure_core::fence::Fence;
pub use tenure_core::id::{
    ElectionName, InstanceId, InvalidName, LockName, Namespace, NodeId, RegistryKey, ServiceName, TaskId,
};
pub use tenure_core::revision::Token;
pub use tenure_core::time::Moment;

#[cfg(doctest)]
mod guides;
