//! What an operator sees of a session: its log lines, its metrics, its health.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};
use tracing_subscriber::fmt::MakeWriter;

use super::flaky::{Flaky, Weather};
use super::*;

/// The log of this thread.
#[derive(Clone, Default)]
pub(super) struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    pub(super) fn begin() -> (Log, tracing::subscriber::DefaultGuard) {
        let log = Log::default();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::DEBUG)
            .with_ansi(false)
            .without_time()
            .with_writer(log.clone());
        (log, tracing::subscriber::set_default(subscriber.finish()))
    }

    /// The lines of sessions that hold this text.
    pub(super) fn lines(&self, text: &str) -> Vec<String> {
        let bytes = self.0.lock().unwrap().clone();
        let lines = String::from_utf8(bytes).unwrap();
        let of_sessions = lines.lines().filter(|line| line.contains("tenure::session"));
        of_sessions.filter(|line| line.contains(text)).map(str::to_owned).collect()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Log;

    fn make_writer(&'a self) -> Log {
        self.clone()
    }
}

/// The attempts that a number of warnings report.
fn attempts(lines: &[String]) -> Vec<u32> {
    let number = |line: &String| {
        let (_, rest) = line.split_once("attempt=").expect("a warning names the attempt");
        rest.split(' ').next().unwrap().parse().unwrap()
    };
    lines.iter().map(number).collect()
}

const FAILS: &str = "WARN tenure::session::events: store request failed";

#[tokio::test(start_paused = true)]
async fn outage_logs_each_doubling_and_recovery() {
    let (log, _guard) = Log::begin();
    let (flaky, store, session) = Flaky::session();
    session.register_raw("/r/a", "secret").await.unwrap();
    flaky.turn(Weather::Down);
    tokio::time::sleep(Duration::from_secs(90)).await;
    assert!(session.health().failing_for.unwrap() > Duration::from_secs(80));
    let warned = attempts(&log.lines(FAILS));
    let doublings: Vec<u32> = (0..warned.len()).map(|n| 1 << n).collect();
    assert_eq!(warned, doublings);
    assert!(warned.len() >= 4, "{warned:?}");
    flaky.turn(Weather::Works);
    wait_for_keys(&store, 1, Duration::from_secs(10)).await;
    session.synced().await;
    let recovered = log.lines("session recovered");
    assert_eq!(recovered.len(), 1);
    for field in ["INFO", "lease=", "keys=1", "incarnation=2", "attempts=", "after="] {
        assert!(recovered[0].contains(field), "{} lacks {field}", recovered[0]);
    }
    for field in ["WARN", "lease=", "keys=1", "next=", "error=", "what=Renewal"] {
        assert!(log.lines(FAILS)[0].contains(field), "{} lacks {field}", log.lines(FAILS)[0]);
    }
    assert_eq!(log.lines("lease lost").len(), 1);
    assert_eq!(log.lines("secret").len(), 0, "values are never in the log");
    assert!(session.health().failing_for.is_none());
    session.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn failed_puts_log_each_doubling() {
    let (log, _guard) = Log::begin();
    let (flaky, _store, session) = Flaky::session();
    session.register_raw("/r/a", "v").await.unwrap();
    flaky.turn(Weather::Full);
    let answer = session.register_raw("/r/b", "v").timeout(Duration::from_secs(60)).await;
    assert!(matches!(answer, Err(RegisterError::Timeout { .. })), "{answer:?}");
    let warned = log.lines(FAILS);
    let doublings: Vec<u32> = (0..warned.len()).map(|n| 1 << n).collect();
    assert_eq!(attempts(&warned), doublings);
    assert!(warned.len() >= 4 && warned.iter().all(|line| line.contains("what=Put")), "{warned:?}");
    let health = session.health();
    assert!(matches!(health.state, SessionState::Live { incarnation: 1 }), "{health:?}");
    assert!(health.failing_for.unwrap() > Duration::from_secs(50) && health.keys == 2 && health.leases == 1);
    flaky.turn(Weather::Works);
    session.synced().await;
    assert_eq!(log.lines("session recovered").len(), 1);
    session.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn healthy_session_logs_only_its_lease() {
    let (log, _guard) = Log::begin();
    let (_, _store, session) = Flaky::session();
    session.register_raw("/r/a", "v").await.unwrap();
    tokio::time::sleep(Duration::from_secs(600)).await;
    session.close().await.unwrap();
    assert_eq!((log.lines("").len(), log.lines("lease granted").len()), (1, 1), "{:?}", log.lines(""));
}

/// Everything that was counted, by name and labels.
#[derive(Clone, Default)]
struct Counted(Arc<Mutex<BTreeMap<String, Vec<f64>>>>);

struct Cell(Counted, String);

impl Cell {
    fn add(&self, value: f64) {
        self.0.0.lock().unwrap().entry(self.1.clone()).or_default().push(value);
    }
}

impl CounterFn for Cell {
    fn increment(&self, value: u64) {
        self.add(f64::from(u32::try_from(value).unwrap()));
    }

    fn absolute(&self, _: u64) {
        unreachable!("no counter is set")
    }
}

impl GaugeFn for Cell {
    fn increment(&self, value: f64) {
        self.add(value);
    }

    fn decrement(&self, value: f64) {
        self.add(-value);
    }

    fn set(&self, _: f64) {
        unreachable!("sessions share their gauge")
    }
}

impl HistogramFn for Cell {
    fn record(&self, value: f64) {
        self.add(value);
    }
}

impl Counted {
    fn cell(&self, key: &Key) -> Arc<Cell> {
        let labels: Vec<String> =
            key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        Arc::new(Cell(self.clone(), format!("{}{{{}}}", key.name(), labels.join(","))))
    }

    fn values(&self, name: &str) -> Vec<f64> {
        self.0.lock().unwrap().get(name).cloned().unwrap_or_default()
    }

    fn sum(&self, name: &str) -> f64 {
        self.values(name).iter().sum()
    }
}

impl Recorder for Counted {
    fn describe_counter(&self, _: KeyName, unit: Option<Unit>, text: SharedString) {
        assert!(unit.is_some() && !text.is_empty());
    }

    fn describe_gauge(&self, _: KeyName, unit: Option<Unit>, text: SharedString) {
        assert!(unit.is_some() && !text.is_empty());
    }

    fn describe_histogram(&self, _: KeyName, unit: Option<Unit>, text: SharedString) {
        assert!(unit.is_some() && !text.is_empty());
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.cell(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.cell(key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.cell(key))
    }
}

/// `increase()` of a series without an earlier sample is 0, so a first loss would not be seen.
#[tokio::test(start_paused = true)]
async fn opened_session_registers_every_series_with_zero() {
    let counted = Counted::default();
    let _guard = metrics::set_default_local_recorder(&counted);
    let session = Session::open(Store::memory()).unwrap();
    for series in [
        "tenure_lease_grants_total{result=ok}",
        "tenure_lease_grants_total{result=error}",
        "tenure_lease_renewals_total{result=ok}",
        "tenure_lease_renewals_total{result=gone}",
        "tenure_lease_renewals_total{result=error}",
        "tenure_lease_lost_total{reason=lapsed}",
        "tenure_lease_lost_total{reason=revoked}",
        "tenure_session_recoveries_total{}",
        "tenure_session_retries_total{}",
        "tenure_registered_keys{}",
    ] {
        assert_eq!(counted.values(series), [0.0], "{series}");
    }
    drop(session);
}

#[tokio::test(start_paused = true)]
async fn what_a_session_goes_through_is_counted() {
    let counted = Counted::default();
    let _guard = metrics::set_default_local_recorder(&counted);
    tenure::session::describe_metrics();
    let (flaky, store, session) = Flaky::session();
    session.register_raw("/r/a", "v").await.unwrap();
    session.register_raw("/r/b", "v").await.unwrap();
    assert_eq!(counted.sum("tenure_lease_grants_total{result=ok}"), 1.0);
    tokio::time::sleep(Duration::from_secs(61)).await;
    assert_eq!(counted.sum("tenure_lease_renewals_total{result=ok}"), 12.0, "one every third of the TTL");
    let remained = counted.values("tenure_lease_remaining_seconds{}");
    assert!(remained.len() == 12 && remained.iter().all(|left| (9.0..9.5).contains(left)), "{remained:?}");
    flaky.turn(Weather::Down);
    tokio::time::sleep(Duration::from_secs(60)).await;
    flaky.turn(Weather::Works);
    wait_for_keys(&store, 2, Duration::from_secs(10)).await;
    session.synced().await;
    assert_eq!(counted.sum("tenure_lease_lost_total{reason=lapsed}"), 1.0);
    assert_eq!(counted.sum("tenure_lease_grants_total{result=ok}"), 2.0);
    assert_eq!(counted.sum("tenure_session_recoveries_total{}"), 1.0);
    let failed = counted.sum("tenure_lease_renewals_total{result=error}")
        + counted.sum("tenure_lease_grants_total{result=error}");
    assert!(failed > 6.0, "{failed}");
    assert_eq!(counted.sum("tenure_session_retries_total{}"), failed);
    store.revoke(session.lease_id().unwrap()).await.unwrap();
    session.state().wait_for(|state| matches!(state, SessionState::Live { incarnation: 3 })).await.unwrap();
    session.synced().await;
    assert_eq!(counted.sum("tenure_lease_lost_total{reason=revoked}"), 1.0);
    assert_eq!(counted.sum("tenure_registered_keys{}"), 2.0);
    session.close().await.unwrap();
    assert_eq!(counted.sum("tenure_registered_keys{}"), 0.0);
}
