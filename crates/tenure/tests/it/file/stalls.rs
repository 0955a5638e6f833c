//! Processes that are stopped while they hold the write lock: safe, bounded, and logged.

use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use tenure::store::StoreError;
use tokio::time::timeout;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use super::child::ChildProcess;
use super::{Home, PATIENCE, options};

/// S6.
#[tokio::test]
async fn stopped_lock_holder_makes_writers_busy() {
    let warnings = Warnings::collect();
    let home = Home::new();
    let store = home.store().await;
    let mut holder = ChildProcess::start("hold", &home.path());
    holder.expect("holding").await;
    holder.signal(rustix::process::Signal::STOP);
    let began = Instant::now();
    let (one, two, opened) = tokio::join!(
        timeout(PATIENCE, store.put("/a", "")),
        timeout(PATIENCE, store.grant(Duration::from_secs(1), None)),
        timeout(PATIENCE, options().open(home.path())),
    );
    let waited = began.elapsed();
    for error in [one.unwrap().unwrap_err(), two.unwrap().unwrap_err(), opened.unwrap().unwrap_err()] {
        assert!(matches!(error, StoreError::Busy(_)), "{error}");
        assert!(error.to_string().contains(&holder.pid().to_string()), "{error}");
    }
    assert!((4.9..8.0).contains(&waited.as_secs_f64()), "{waited:?}");
    let named = |line: &String| line.contains(&format!("holder_pid={}", holder.pid()));
    assert!(warnings.lines().iter().any(named), "{:?}", warnings.lines());
    // A reader is not held up, and closing does not hang.
    assert!(store.get_key("/a").await.unwrap().is_none());
    holder.signal(rustix::process::Signal::CONT);
    holder.kill().await;
    timeout(PATIENCE, store.put("/a", "")).await.unwrap().unwrap();
}

#[tokio::test]
async fn closing_behind_a_stopped_holder_does_not_hang() {
    let home = Home::new();
    let store = home.store().await;
    let mut holder = ChildProcess::start("hold", &home.path());
    holder.expect("holding").await;
    holder.signal(rustix::process::Signal::STOP);
    let write = tokio::spawn({
        let store = store.clone();
        async move { store.put("/a", "").await }
    });
    // A sleep in the kernel cannot be observed; by now the thread sleeps.
    tokio::time::sleep(Duration::from_millis(300)).await;
    timeout(PATIENCE, store.close()).await.unwrap();
    let outcome = timeout(PATIENCE, write).await.unwrap().unwrap();
    assert!(matches!(outcome, Err(StoreError::Closed | StoreError::Busy(_))), "{outcome:?}");
    drop(holder);
}

/// SQLite's own tools may open the file; they do not queue, and need not.
#[tokio::test]
async fn foreign_sqlite_writer_is_waited_for() {
    let home = Home::new();
    let store = home.store().await;
    let connection = rusqlite::Connection::open(home.path()).unwrap();
    connection.execute_batch("BEGIN IMMEDIATE").unwrap();
    let write = tokio::spawn({
        let store = store.clone();
        async move { store.put("/a", "").await }
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!write.is_finished());
    connection.execute_batch("ROLLBACK").unwrap();
    timeout(PATIENCE, write).await.unwrap().unwrap().unwrap();
}

/// What was warned of in this process, whichever thread did.
struct Warnings;

static SEEN: OnceLock<Mutex<Vec<String>>> = OnceLock::new();

impl Warnings {
    fn collect() -> Warnings {
        SEEN.get_or_init(|| {
            // Another subscriber would only make the test fail, with its lines in the output.
            let _ = tracing::subscriber::set_global_default(Warnings);
            Mutex::default()
        });
        Warnings
    }

    fn lines(&self) -> Vec<String> {
        SEEN.get().unwrap().lock().unwrap().clone()
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        if let Some(seen) = SEEN.get() {
            seen.lock().unwrap().push(line.0);
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[derive(Default)]
struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0.push_str(&format!("{}={value:?} ", field.name()));
    }
}
