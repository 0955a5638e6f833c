//! A namespace at one revision.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tenure::election::Elections;
use tenure::member::Members;
use tenure::session::Session;
use tenure::snapshot::{ClusterPart, SnapshotRequest};
use tenure::store::memory::MemoryEngine;
use tenure::store::{Engine, Get, Op, OpReply, Page, Revision, Store, StoreError, Txn, TxnReply, ValueMode};
use tenure_core::id::{NodeId, TaskId};

use super::{locks, namespace, submit};
use crate::membership::on_every_engine;
use crate::twisted::{Twist, Twisted};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn snapshot_has_every_part_at_one_revision() {
    on_every_engine(claims::snapshot_has_every_part_at_one_revision).await;
}

mod claims {
    use super::*;

    pub(super) async fn snapshot_has_every_part_at_one_revision(store: Store) {
        let empty = SnapshotRequest::new(&store, &namespace()).await.unwrap();
        assert!(empty.members.is_empty() && empty.locks.is_empty() && empty.tasks.is_empty());

        let session = Session::open(store.clone()).unwrap();
        let members = Members::new(store.clone(), &namespace());
        let membership = members.join(&session, "w").await.unwrap();
        let locks = locks(&store);
        let guard = locks.lock("deploy").await.unwrap();
        let elections = Elections::new(&session, &namespace()).identity("me");
        let term = elections.election("boss").campaign().value("here").await.unwrap();
        for (task, owner) in [("x", Some(r#"{"node":"w"}"#)), ("y", None), ("z", Some("not json"))] {
            submit(&store, task).await;
            if let Some(owner) = owner {
                store.put(format!("/t/tasks/{task}/owner"), owner).await.unwrap();
            }
        }
        store.put("/t/frozen/away", "{}").await.unwrap();
        store.put("/t/state/x", r#"{"state":"paused"}"#).await.unwrap();
        store.put("/t/state/ended", r#"{"state":"completed"}"#).await.unwrap();

        let snapshot = SnapshotRequest::new(&store, &namespace()).await.unwrap();
        assert_eq!(snapshot.members.members()[0].token, membership.token().unwrap());
        assert_eq!(snapshot.frozen.keys().map(NodeId::as_str).collect::<Vec<_>>(), ["away"]);
        assert_eq!(snapshot.locks[0].holders[0].token, guard.token());
        assert_eq!(snapshot.elections[0].leader.as_ref().unwrap().token, term.token());
        assert_eq!((snapshot.tasks.len(), snapshot.owners.len()), (3, 2));
        assert_eq!(snapshot.owned().into_values().collect::<Vec<_>>(), [1]);
        let state = |id: &str| snapshot.state_of(&TaskId::parse(id).unwrap()).unwrap().state.kind();
        assert_eq!((state("x").as_str(), state("y").as_str()), ("paused", "runnable"));
        assert_eq!(snapshot.states.len(), 1, "the state of a task that has ended is not read");

        // The past, as far as the history reaches.
        let then = snapshot.revision;
        guard.release().await.unwrap();
        let now = SnapshotRequest::new(&store, &namespace()).parts([ClusterPart::Locks]).await.unwrap();
        assert!(now.locks.is_empty() && now.tasks.is_empty() && now.revision > then);
        let past =
            SnapshotRequest::new(&store, &namespace()).parts([ClusterPart::Locks]).at(then).await.unwrap();
        assert_eq!((past.locks.clone(), past.revision), (snapshot.locks, then));
        store.compact(now.revision).await.unwrap();
        let gone = SnapshotRequest::new(&store, &namespace()).parts([ClusterPart::Locks]).at(then).await;
        assert!(matches!(gone, Err(StoreError::Compacted { .. })), "{gone:?}");
    }
}

/// Notes which keys were returned with their values.
#[derive(Clone, Default)]
struct Noted(Arc<Mutex<Vec<String>>>);

impl Noted {
    fn note(&self, page: &Page) {
        let keys = page.pairs.iter().map(|pair| String::from_utf8_lossy(&pair.key).into_owned());
        self.0.lock().unwrap().extend(keys);
    }
}

impl Twist for Noted {
    async fn get(&self, memory: &MemoryEngine, get: Get) -> Result<Page, StoreError> {
        let values = get.values;
        let page = Engine::get(memory, get).await?;
        if values != ValueMode::Omitted {
            self.note(&page);
        }
        Ok(page)
    }

    async fn txn(&self, memory: &MemoryEngine, txn: Txn) -> Result<TxnReply, StoreError> {
        let reply = Engine::txn(memory, txn).await?;
        for result in &reply.results {
            if let OpReply::Get(page) = result {
                self.note(page);
            }
        }
        Ok(reply)
    }
}

/// `node ls` shows how many tasks a node has: it read what was submitted with each of them, and their props.
#[tokio::test]
async fn only_selected_parts_are_read() {
    let memory = MemoryEngine::new();
    let store = Store::new(memory.clone());
    store.put("/t/nodes/w", "{}").await.unwrap();
    submit(&store, "x").await;
    store.put("/t/tasks/x/props", "large").await.unwrap();
    store.put("/t/tasks/x/owner", r#"{"node":"w"}"#).await.unwrap();
    store.put("/t/elections/e/1-0000000000000001", "{}").await.unwrap();
    let read = async |parts: &[ClusterPart]| {
        let noted = Noted::default();
        let twisted = Twisted::store(memory.clone(), noted.clone());
        let snapshot = SnapshotRequest::new(&twisted, &namespace()).parts(parts.iter().copied());
        let snapshot = snapshot.await.unwrap();
        (snapshot, std::mem::take(&mut *noted.0.lock().unwrap()))
    };
    assert_eq!(read(&[ClusterPart::Members]).await.1, ["/t/nodes/w"]);
    assert_eq!(read(&[ClusterPart::Elections]).await.1, ["/t/elections/e/1-0000000000000001"]);
    let (snapshot, keys) = read(&[ClusterPart::Members, ClusterPart::Owners]).await;
    assert_eq!(keys, ["/t/nodes/w", "/t/tasks/x/owner"]);
    assert_eq!(snapshot.owned().into_values().collect::<Vec<_>>(), [1]);
}

/// Another client puts a task before every read, and from the third read on the history up to then is compacted, once.
struct Busy {
    reads: AtomicUsize,
    compacts: AtomicBool,
}

impl Twist for Busy {
    async fn get(&self, memory: &MemoryEngine, get: Get) -> Result<Page, StoreError> {
        let read = self.reads.fetch_add(1, Ordering::Relaxed);
        let put = Op::put(format!("/t/tasks/late-{read}"), "{}");
        let revision = Engine::txn(memory, Txn::from(put)).await?.revision;
        if read == 2 && self.compacts.swap(false, Ordering::Relaxed) {
            Engine::compact(memory, revision).await?;
        }
        Engine::get(memory, get).await
    }
}

#[tokio::test]
async fn snapshot_pages_share_revision_and_restart_after_compaction() {
    for compacts in [false, true] {
        let memory = MemoryEngine::new();
        let ops = (0..2_500).map(|n| Op::put(format!("/t/tasks/task-{n:04}"), "{}"));
        Store::new(memory.clone()).apply_all(ops).await.unwrap();
        let busy = Busy { reads: AtomicUsize::new(0), compacts: AtomicBool::new(compacts) };
        let store = Twisted::store(memory, busy);
        let request = SnapshotRequest::new(&store, &namespace()).parts([ClusterPart::Tasks]);
        let snapshot = request.clone().await.unwrap();
        // The keys that were there at its revision, and none that was put while it was read.
        let late = snapshot.tasks.tasks().filter(|(id, _)| id.as_str().starts_with("late-")).count();
        assert_eq!(late, if compacts { 4 } else { 1 }, "compacts: {compacts}");
        assert_eq!(snapshot.tasks.len(), 2_500 + late);
        let past = request.at(Revision(2)).await;
        assert_eq!(matches!(past, Err(StoreError::Compacted { .. })), compacts, "{compacts}");
    }
}
