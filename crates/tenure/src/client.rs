//! Work from the outside: submit it, look at it, tell it something, wait for its end.
//!
//! A client holds nothing: it needs no session, and what it wrote stays when it goes.

mod answer;
mod command;
mod listing;
mod remove;
mod submit;
mod wait;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use tenure_core::client::{Origin, ReadEffort, ReadTask, TaskFound, TaskKeys};
use tenure_core::exchange::Exchange;
use tenure_core::id::{CommandId, CommandIds, Namespace, NodeId, TaskId};
use tenure_core::layout::Layout;

use crate::audit::{self, AuditAction, AuditEntry, AuditRecord};
use crate::clock::{BootClock, Clock, wall_time};
use crate::identity::{self, Identity};
use crate::member::{MemberSnapshot, Members};
use crate::retry;
use crate::rng;
use crate::store::{Store, StoreError};

pub use answer::{Handled, Sent, WaitCommandError};
pub use listing::{Listing, TaskDossier, TaskFilter, TaskView};
pub use submit::new_task_ids;
pub use tenure_core::client::{
    CommandError, DeleteError, Deleted, ForgetError, InvalidProps, InvalidText, NewTask, NodeCommandError,
    PROPS_BYTES_MAX, ReplacedCommand, RetryError, SubmitError, Submitted,
};
pub use wait::{Ended, Ends, WaitTaskError};

/// The tasks and nodes of a namespace, for whoever gives them work. Cheap to clone.
///
/// ```
/// use tenure::client::{Client, NewTask, Submitted};
/// use tenure::{Namespace, TaskId};
/// use tenure::client::TaskState;
/// use tenure::store::Store;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let client = Client::new(Store::memory(), &Namespace::parse("shop")?);
///
/// let mail = NewTask::new(TaskId::parse("mail-1")?).kind("mail").props_text(r#"{"to":"a@example.org"}"#)?;
/// assert_eq!(client.submit(mail).await?, Submitted::Accepted);
///
/// let task = client.get(&TaskId::parse("mail-1")?).await?.expect("it was submitted");
/// assert_eq!(task.state_kind(), Some(TaskState::Runnable));
/// # Ok(())
/// # }
/// ```
///
/// # Guarantees
///
/// * A task is submitted once: an id that is there is refused, and a lost answer is settled by a nonce that the submission wrote.
/// * Nothing done to one task touches another, whatever their names.
/// * A listing is one picture: tasks, owners and states as they were at one revision.
/// * The sender of a command is told what came of it, also if another command replaced it before anybody had read it.
///
/// # Not guaranteed
///
/// * That anybody runs the task: that takes a node.
/// * That a task runs exactly once. We do not claim that; it runs at least once, and its owners' tokens tell them apart.
///
/// # Cancellation
///
/// Dropping a future leaves it open whether its last request is done, as [`StoreError::Ambiguous`] does; it is done whole or not at all.
#[derive(Clone)]
pub struct Client {
    store: Store,
    clock: Arc<dyn Clock>,
    namespace: Namespace,
    layout: Layout,
    name: NodeId,
    identity: Arc<Identity>,
    reason: Arc<str>,
    ids: Arc<Mutex<CommandIds>>,
}

impl Client {
    /// The tasks and nodes of a namespace. Asks nothing of the store yet.
    pub fn new(store: Store, namespace: &Namespace) -> Client {
        Client {
            store,
            clock: Arc::new(BootClock),
            namespace: namespace.clone(),
            layout: Layout::new(namespace),
            name: NodeId::parse(&identity::current().name())
                .unwrap_or_else(|_| NodeId::parse("client").expect("a name")),
            identity: Arc::new(identity::current()),
            reason: "".into(),
            ids: Arc::default(),
        }
    }

    /// The clock on which it waits before it sends a request again; [`BootClock`] otherwise. In a `testing::World`, that of its participant.
    #[must_use]
    pub fn clock(mut self, clock: impl Clock) -> Client {
        self.clock = Arc::new(clock);
        self
    }

    /// What others see as the sender of its commands; host and process id otherwise.
    #[must_use]
    pub fn named(mut self, name: NodeId) -> Client {
        self.name = name;
        self
    }

    /// The identity in its audit records; [`identity::current`] otherwise.
    #[must_use]
    pub fn identity(mut self, identity: Identity) -> Client {
        self.identity = Arc::new(identity);
        self
    }

    /// Why it does what it does, for its [audit records](crate::audit): `client.because("wrong input").delete(&task)`.
    #[must_use]
    pub fn because(mut self, reason: &str) -> Client {
        self.reason = reason.into();
        self
    }

    /// The audit record of something that this client does to a task.
    fn audit(&self, action: AuditAction, task: &TaskId, reason: Option<&str>) -> AuditEntry {
        let record = AuditRecord {
            action,
            target: task.to_string(),
            by: (*self.identity).clone(),
            reason: reason.unwrap_or(&self.reason).to_owned(),
            ..AuditRecord::default()
        };
        audit::entry(&self.layout, record)
    }

    /// The store it asks.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// All nodes that are alive, at one revision.
    pub async fn nodes(&self) -> Result<MemberSnapshot, StoreError> {
        Members::new(self.store.clone(), &self.namespace).list().await
    }

    /// What it is in the records that it writes now.
    fn origin(&self) -> Origin {
        Origin { name: self.name.clone(), at: wall_time() }
    }

    async fn run<E: Exchange>(&self, operation: &'static str, exchange: &mut E) -> E::Output {
        retry::run(operation, &self.store, &self.clock, exchange).await
    }

    /// Everything about a task but its props, at one revision.
    async fn read(&self, task: &TaskId, effort: ReadEffort) -> Result<TaskFound, StoreError> {
        let keys = TaskKeys::of(&self.layout, task);
        self.run("task read", &mut ReadTask { keys, effort }).await
    }

    fn next_command_id(&self) -> CommandId {
        let random = rng::nonce().to_be_bytes();
        self.ids.lock().unwrap_or_else(PoisonError::into_inner).next(wall_time(), random)
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({} as {} in {:?})", self.namespace, self.name, self.store)
    }
}
