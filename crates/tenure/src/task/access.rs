//! What every request about tasks and nodes needs: the store, the clock, the keys of the namespace and the name of the sender.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure_core::client::{Origin, ReadEffort, ReadTask, TaskFound, TaskKeys};
use tenure_core::exchange::Exchange;
use tenure_core::id::{CommandId, CommandIds, Namespace, NodeId, TaskId};
use tenure_core::layout::Layout;

use crate::audit::{self, AuditAction, AuditEntry, AuditRecord};
use crate::clock::{Clock, wall_time};
use crate::identity::Identity;
use crate::retry;
use crate::rng;
use crate::store::{Store, StoreError};

/// The sender of requests about tasks and nodes of one namespace. It holds nothing in the store: no lease and no key.
#[derive(Clone)]
pub(crate) struct TaskAccess {
    pub(super) store: Store,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) layout: Layout,
    namespace: Namespace,
    sender: NodeId,
    identity: Arc<Identity>,
    ids: Arc<Mutex<CommandIds>>,
}

impl TaskAccess {
    pub(crate) fn new(
        store: &Store,
        clock: &Arc<dyn Clock>,
        namespace: &Namespace,
        (sender, identity): (Option<NodeId>, Identity),
    ) -> TaskAccess {
        // A host name that is no node id must not prevent commands.
        let named = || NodeId::parse(&identity.name()).ok();
        let sender = sender.or_else(named).unwrap_or_else(|| NodeId::parse("client").expect("a valid name"));
        TaskAccess {
            store: store.clone(),
            clock: clock.clone(),
            layout: Layout::new(namespace),
            namespace: namespace.clone(),
            sender,
            identity: Arc::new(identity),
            ids: Arc::default(),
        }
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The audit record of an action on a task.
    pub(super) fn audit(&self, action: AuditAction, task: &TaskId, reason: &str) -> AuditEntry {
        let record = AuditRecord {
            action,
            target: task.to_string(),
            by: (*self.identity).clone(),
            reason: reason.to_owned(),
            ..AuditRecord::default()
        };
        audit::entry(&self.layout, record)
    }

    /// The sender in the records that are written now.
    pub(super) fn origin(&self) -> Origin {
        Origin { name: self.sender.clone(), at: wall_time() }
    }

    pub(super) async fn run<E: Exchange>(&self, operation: &'static str, exchange: &mut E) -> E::Output {
        retry::run(operation, &self.store, &self.clock, exchange).await
    }

    /// Everything about a task but its props, at one revision.
    pub(super) async fn read(&self, task: &TaskId, effort: ReadEffort) -> Result<TaskFound, StoreError> {
        let keys = TaskKeys::of(&self.layout, task);
        self.run("task read", &mut ReadTask { keys, effort }).await
    }

    pub(super) fn next_command_id(&self) -> CommandId {
        let random = rng::nonce().to_be_bytes();
        self.ids.lock().unwrap_or_else(PoisonError::into_inner).next(wall_time(), random)
    }

    /// Bounds work by a timeout on the clock of the session; none if the timeout elapsed first.
    pub(super) async fn within<T>(
        &self,
        timeout: Option<Duration>,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        let Some(timeout) = timeout else { return Some(work.await) };
        let elapsed = self.clock.sleep_until(self.clock.now() + timeout);
        tokio::select! {
            // Work that is done when the timeout elapses has its result.
            biased;
            done = work => Some(done),
            () = elapsed => None,
        }
    }
}

impl fmt::Debug for TaskAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TaskAccess({} as {})", self.namespace, self.sender)
    }
}
