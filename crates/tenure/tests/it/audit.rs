//! Audit records: destructive calls leave their author, reason and time in the same transaction.

use std::time::Duration;

use tenure::NewTask;
use tenure::Tenure;
use tenure::audit::{AUDIT_KEEP, AuditAction, AuditRecord};
use tenure::lock::Locks;
use tenure::session::Session;
use tenure::store::Store;
use tenure::testing::World;
use tenure_core::id::{LockName, Namespace, TaskId};
use tenure_core::layout::Layout;
use tenure_core::record::Record;
use tenure_core::task::TaskMessage;
use tenure_fixture::Etcd;

use crate::client::tenure_on;

fn namespace() -> Namespace {
    Namespace::parse("t").unwrap()
}

async fn audits(store: &Store) -> Vec<AuditRecord> {
    let mut page = store.list(Layout::new(&namespace()).audit()).await.unwrap();
    // Ids of one millisecond are in no order.
    page.pairs.sort_by_key(|pair| pair.created);
    page.pairs.iter().map(|pair| AuditRecord::decode(&pair.value).unwrap()).collect()
}

async fn every_destructive_call_is_recorded(store: Store) {
    let session = Session::open(store.clone()).unwrap();
    let locks = Locks::new(&session, &namespace());
    let held = locks.lock("x").await.unwrap();
    let name = LockName::parse("x").unwrap();
    let holder = locks.get(&name).await.unwrap().holders.remove(0);
    assert!(locks.break_hold(&name, &holder, "it hangs").await.unwrap());
    assert!(!locks.break_hold(&name, &holder, "again").await.unwrap());
    let client = Tenure::on_session(&session, namespace()).unwrap();
    let task = TaskId::parse("job").unwrap();
    client.submit(NewTask::new("").id(&task)).await.unwrap();
    client
        .task(&task)
        .command(TaskMessage::Kill { reason: Some("wrong input".into()) })
        .no_reply()
        .await
        .unwrap();
    client.task(&task).command(TaskMessage::Pause).no_reply().await.unwrap();
    client.task(&task).delete().reason("not needed").await.unwrap();
    let found = audits(&store).await;
    let summary: Vec<(AuditAction, &str, &str)> =
        found.iter().map(|audit| (audit.action, audit.target.as_str(), audit.reason.as_str())).collect();
    assert_eq!(
        summary,
        [
            (AuditAction::BreakLock, "x", "it hangs"),
            (AuditAction::KillTask, "job", "wrong input"),
            (AuditAction::DeleteTask, "job", "not needed"),
        ]
    );
    assert_eq!(found[0].token, Some(held.token()));
    for audit in &found {
        assert_eq!(audit.by, tenure::identity::current());
        assert!(audit.at.0 > 0, "{audit:?}");
    }
}

#[tokio::test]
async fn every_destructive_call_is_recorded_on_memory() {
    every_destructive_call_is_recorded(Store::memory()).await;
}

#[tokio::test]
async fn every_destructive_call_is_recorded_on_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("file://{}/store.db", folder.path().display());
    every_destructive_call_is_recorded(Store::open(&url.parse().unwrap()).await.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_destructive_call_is_recorded_on_etcd() {
    let etcd = Etcd::start();
    let url = format!("etcd://{}", etcd.endpoints());
    every_destructive_call_is_recorded(Store::open(&url.parse().unwrap()).await.unwrap()).await;
}

/// The trail does not grow for ever: a write of a record deletes those that are older than a week.
#[tokio::test(start_paused = true)]
async fn old_audit_records_are_deleted() {
    let world = World::seeded(1);
    let store = world.process("a").store();
    let client = tenure_on(&store, &namespace());
    let mut kept = Vec::new();
    for (n, step) in [Duration::ZERO, Duration::from_secs(60), AUDIT_KEEP].into_iter().enumerate() {
        world.step_wall_clock(i64::try_from(step.as_millis()).unwrap());
        let task = TaskId::parse(&format!("job-{n}")).unwrap();
        client.submit(NewTask::new("").id(&task)).await.unwrap();
        client.task(&task).delete().await.unwrap();
        kept.push(audits(&store).await.into_iter().map(|audit| audit.target).collect::<Vec<_>>());
    }
    assert_eq!(kept, [vec!["job-0"], vec!["job-0", "job-1"], vec!["job-1", "job-2"]]);
}
