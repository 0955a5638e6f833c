//! One namespace with tasks in it, and nodes that begin all at once.
//!
//! Every node is frozen before it joins. When all of them have seen everything they are unfrozen in one transaction: that is the word to go, and
//! whatever was to be listed or connected is done by then, on both sides of the comparison.

use std::time::{Duration, Instant};

use bytes::Bytes;
use tenure::session::Session;
use tenure::store::{Op, Selection, Store, Txn};
use tenure::{NewTask, Tenure};
use tenure_core::id::{Namespace, NodeId, TaskId};
use tenure_core::layout::{Key, Layout};
use tenure_core::record::{OwnerRecord, Record};

use super::TaskStore;
use crate::failure::BenchFailure;
use crate::workload::wrong;

/// A namespace of its own.
pub(super) struct TaskContext {
    pub(super) namespace: Namespace,
    pub(super) layout: Layout,
    pub(super) store: Store,
    tenure: Tenure,
}

impl TaskContext {
    pub(super) async fn open(place: &TaskStore, name: &str) -> Result<TaskContext, BenchFailure> {
        let namespace = Namespace::parse(&format!("{}/{name}", place.root));
        let namespace = namespace.map_err(|error| wrong(error.to_string()))?;
        let store = place.open().await?;
        let session = Session::open(store.clone()).map_err(|error| wrong(error.to_string()))?;
        let tenure = Tenure::on_session(&session, &namespace).map_err(|error| wrong(error.to_string()))?;
        Ok(TaskContext { layout: Layout::new(&namespace), namespace, store, tenure })
    }

    /// Submits this many tasks; returns how long that took.
    pub(super) async fn submit(&self, count: usize) -> Result<Duration, BenchFailure> {
        let tasks = (0..count).map(|n| Ok(NewTask::new("").id(task_id(n)?)));
        let tasks = tasks.collect::<Result<Vec<NewTask>, BenchFailure>>()?;
        let begin = Instant::now();
        for submitted in self.tenure.submit_all(tasks).await {
            submitted.map_err(|error| wrong(format!("a task was not submitted: {error}")))?;
        }
        Ok(begin.elapsed())
    }

    /// Keeps these nodes from claiming.
    pub(super) async fn freeze(&self, nodes: &[NodeId]) -> Result<(), BenchFailure> {
        let puts = nodes.iter().map(|node| Op::put(self.frozen(node), r#"{"v":1}"#)).collect();
        self.store.txn(Txn { then: puts, ..Txn::default() }).await?;
        Ok(())
    }

    /// Lets all of them begin, at one revision.
    pub(super) async fn unfreeze(&self, nodes: &[NodeId]) -> Result<(), BenchFailure> {
        let deletes = nodes.iter().map(|node| Op::delete(self.frozen(node))).collect();
        self.store.txn(Txn { then: deletes, ..Txn::default() }).await?;
        Ok(())
    }

    fn frozen(&self, node: &NodeId) -> Bytes {
        self.layout.encode(&Key::Frozen(node.clone()))
    }

    /// The owner of each task that has one.
    pub(super) async fn owners(&self) -> Result<Vec<(TaskId, NodeId)>, BenchFailure> {
        let page = self.store.list(self.layout.tasks()).await?;
        let owner = |pair: tenure::store::KeyValue| match self.layout.parse(&pair.key) {
            Some(Key::TaskOwner(task)) => Some((task, OwnerRecord::decode(&pair.value).ok()?.node)),
            Some(_) | None => None,
        };
        Ok(page.pairs.into_iter().filter_map(owner).collect())
    }

    /// Deletes everything.
    pub(super) async fn clear(self) -> Result<(), BenchFailure> {
        self.store.delete(Selection::prefix(format!("/{}/", self.namespace))).await?;
        Ok(())
    }
}

pub(super) fn task_id(n: usize) -> Result<TaskId, BenchFailure> {
    TaskId::parse(&format!("task-{n:06}")).map_err(|error| wrong(error.to_string()))
}

pub(super) fn node_ids(count: usize) -> Result<Vec<NodeId>, BenchFailure> {
    let id = |n| NodeId::parse(&format!("node-{n}")).map_err(|error| wrong(error.to_string()));
    (0..count).map(id).collect()
}
