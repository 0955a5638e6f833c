//! The queues of this process: drives `core::queue` for every name, on one session.
//!
//! | file | one thing |
//! |---|---|
//! | `driver` | [`QueueDriver`]: its task, and the fast path that does without a switch to it |
//! | `local_queues` | one machine and its waiters per name |
//! | `requests` | sends what the machines want, and records when holds began |
//! | `watches` | the keys that are watched: own keys, predecessors, whole queues |
//! | `waiter` | one waiter, as its caller and as its driver see it |
//! | `queue_hold` | a waiter that holds, and its release |
//! | `acquire` | waits with a deadline until a waiter holds, and reports why not |
//!
//! Requests of different names that wait while others are in flight travel together; an idle driver sends at once. Two keys of one name
//! never share a request, because they would share a create revision and neither would be the older one.

mod acquire;
mod driver;
mod local_queues;
mod queue_hold;
mod requests;
mod waiter;
mod watches;

pub use acquire::QueuePosition;
pub(crate) use acquire::{AcquireOptions, QueueError, QueuedHook, WaitPolicy};
pub(crate) use driver::QueueDriver;
pub(crate) use queue_hold::QueueHold;
pub(crate) use waiter::{QueueArrival, WaiterEnd, WaiterHandle, WaiterStatus};
