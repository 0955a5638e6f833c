//! What clients send: tasks, commands, and what takes them away; each as a protocol with the store.
//!
//! A client holds nothing: no lease, no session. So every protocol here reads what is there, writes under the condition that it is still so,
//! and starts again if another client was faster.
//!
//! **Invariant** (G6): an ambiguous request is resolved by what it has stored: the nonce of a
//! submission, the id of a command, the create revision of a task, the revision or the history of a
//! state. Where that is not certain, the result is *unknown*.

mod command;
mod delete;
mod forget;
mod keys;
mod listing;
mod node_command;
mod read;
mod retry;
mod submit;
mod write;

use crate::error::{Cause, StoreError};
use crate::id::NodeId;
use crate::record::Timestamp;

pub use command::{ReplacedCommand, SendCommand, SendCommandError};
pub use delete::{DeleteError, DeleteTask, Deleted};
pub use forget::{ForgetError, ForgetTask};
pub use keys::{TaskFound, TaskKeys, attempts_and_props};
pub use listing::{ReadAllStates, TaskStates, read_states, state_keys};
pub use node_command::{SendNodeCommand, SendNodeCommandError, unfreeze_absent};
pub use read::{CommandReadback, ReadCommandReply, ReadEffort, ReadTask};
pub use retry::{RetryError, RetryTask};
pub use submit::{InvalidText, PROPS_BYTES_MAX, SubmitTaskError, SubmitTasks, TaskSpec, check_texts};
pub use write::{Settled, TaskExchange, TaskWrite};

/// How often a client reads again because another one changed what it was about to change. Each turn means that another client got through,
/// so this many in a row mean that the task is contended.
const TRIES_MAX: usize = 8;

/// How many lost replies are settled by reading. Each may take as long as a request may; after these it is better to report that it is not known.
const LOST_MAX: usize = 2;

/// The client that sends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Origin {
    /// What others see as the sender of its commands.
    pub name: NodeId,
    /// When it sends, by its clock.
    pub at: Timestamp,
}

/// Other clients changed it again and again: nothing was done.
fn contended() -> StoreError {
    StoreError::Busy(Cause::new("other clients change it all the time"))
}

#[cfg(test)]
mod tests;
