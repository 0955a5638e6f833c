//! `tenure doctor`: checks configuration, connection, server and clock, and prints a line for each with what to do next.
//!
//! It only reads and never writes to the store.

mod etcd;
mod file;

use std::time::{Duration, Instant};

use serde::Serialize;
use tenure::clock::{BootClock, Clock};
use tenure::store::{Get, Store, StoreUrl};

use crate::cli::Global;
use crate::config;
use crate::connect::{self, ConnectSettings};
use crate::failure::{Code, Failure};
use crate::output::{Output, TextStyle};

/// The result of a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum CheckState {
    Ok,
    Warn,
    Fail,
}

/// A check with its result.
#[derive(Serialize, Debug)]
struct DoctorCheck {
    name: &'static str,
    state: CheckState,
    detail: String,
    /// What to do next.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
    #[serde(skip)]
    code: Option<Code>,
}

impl DoctorCheck {
    fn ok(name: &'static str, detail: impl Into<String>) -> DoctorCheck {
        DoctorCheck { name, state: CheckState::Ok, detail: detail.into(), next: None, code: None }
    }

    fn warn(name: &'static str, detail: impl Into<String>, next: impl Into<String>) -> DoctorCheck {
        DoctorCheck {
            name,
            state: CheckState::Warn,
            detail: detail.into(),
            next: Some(next.into()),
            code: None,
        }
    }

    fn fail(name: &'static str, failure: Failure) -> DoctorCheck {
        let Failure { code, message, hint } = failure;
        DoctorCheck { name, state: CheckState::Fail, detail: message, next: hint, code: Some(code) }
    }
}

/// Runs all checks. Fails with the code of the first failed one.
pub(crate) async fn run(global: &Global, output: &Output) -> Result<(), Failure> {
    let mut checks = vec![clock()];
    match connect::decide(global) {
        Ok(settings) => check_store(&settings, output, &mut checks).await,
        Err(failure) => checks.push(DoctorCheck::fail("config", failure)),
    }
    report(&checks, output)?;
    match checks.iter().find_map(|check| check.code) {
        None => Ok(()),
        Some(code) => {
            let count = checks.iter().filter(|check| check.state == CheckState::Fail).count();
            Err(Failure::new(code, format!("{count} of {} checks failed", checks.len())))
        }
    }
}

async fn check_store(settings: &ConnectSettings, output: &Output, checks: &mut Vec<DoctorCheck>) {
    for shown in config::setting_rows(settings) {
        checks.push(DoctorCheck::ok("config", shown.to_string()));
    }
    for note in &settings.notes {
        checks.push(DoctorCheck::warn(
            "config",
            note,
            "`tenure config show` prints the source of each value",
        ));
    }
    let url = match &settings.store {
        Ok(store) => &store.value,
        Err(failure) => return checks.push(DoctorCheck::fail("config", failure.clone())),
    };
    match url {
        StoreUrl::Memory => {}
        StoreUrl::File(path) => {
            checks.extend(file::checks(path));
            // Opening the store would create the file.
            if !path.exists() {
                return;
            }
        }
        StoreUrl::Etcd { endpoints, security } => {
            return etcd::check(url, endpoints, *security, settings, checks).await;
        }
    }
    if checks.iter().any(|check| check.state == CheckState::Fail) {
        return;
    }
    // The notes are reported as checks already.
    let quiet = ConnectSettings { notes: Vec::new(), ..settings.clone() };
    match connect::open(&quiet, output).await {
        Ok(store) => {
            checks.push(engine(&store));
            let read = || async {
                store.get(Get::key("/tenure/doctor")).await?;
                Ok(())
            };
            checks.push(round_trip(read).await);
            store.close().await;
        }
        Err(failure) => checks.push(DoctorCheck::fail("connection", failure)),
    }
}

fn engine(store: &Store) -> DoctorCheck {
    let info = store.info();
    let limits = &info.limits;
    DoctorCheck::ok(
        "engine",
        format!(
            "{} store {}, survives {:?}, shared by {:?}, TTL from {:?}",
            info.kind, info.id, info.durable, info.reach, limits.ttl_min
        ),
    )
}

/// The default TTL of sessions.
const TTL: Duration = Duration::from_secs(15);

/// A session renews three times per TTL. From this round trip on, a few slow replies in a row could lose the lease.
const ROUND_TRIP_SLOW: Duration = Duration::from_millis(500);

/// The number of measurements: enough for a median that one slow reply does not change.
const ROUNDS: usize = 7;

/// Compares the median round trip with what a session needs.
async fn round_trip<F, Fut>(read: F) -> DoctorCheck
where
    F: Fn() -> Fut,
    Fut: Future<Output = Result<(), Failure>>,
{
    let mut took = Vec::new();
    for _ in 0..ROUNDS {
        let before = Instant::now();
        if let Err(failure) = read().await {
            return DoctorCheck::fail("connection", failure);
        }
        took.push(before.elapsed());
    }
    took.sort();
    let median = took[ROUNDS / 2];
    let detail = format!(
        "a read takes {:.2} ms (median of {ROUNDS}); a session of {} s renews every {} s",
        median.as_secs_f64() * 1e3,
        TTL.as_secs(),
        TTL.as_secs() / 3
    );
    if median < ROUND_TRIP_SLOW {
        return DoctorCheck::ok("connection", detail);
    }
    DoctorCheck::warn("connection", detail, "use a longer --ttl, or a nearer store")
}

/// Checks the clock: leases run on during suspend, so validity must be measured with a clock that counts it.
fn clock() -> DoctorCheck {
    let now = BootClock.now().since_origin();
    if cfg!(target_os = "linux") {
        return DoctorCheck::ok(
            "clock",
            format!("CLOCK_BOOTTIME, {} s since boot; it counts suspend", now.as_secs()),
        );
    }
    DoctorCheck::warn(
        "clock",
        "the monotonic clock, which may not count suspend",
        "do not suspend a host that holds locks",
    )
}

fn report(checks: &[DoctorCheck], output: &Output) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct DoctorReport<'a> {
        schema: &'static str,
        ok: bool,
        checks: &'a [DoctorCheck],
    }
    if output.is_json {
        let ok = checks.iter().all(|check| check.state != CheckState::Fail);
        return output.object(&DoctorReport { schema: "tenure.doctor/v1", ok, checks });
    }
    for check in checks {
        let label = match check.state {
            CheckState::Ok => output.toned(TextStyle::Good, "ok  "),
            CheckState::Warn => output.toned(TextStyle::Doubtful, "warn"),
            CheckState::Fail => output.toned(TextStyle::Bad, "fail"),
        };
        let next = check.next.as_ref().map(|next| format!("; next: {next}")).unwrap_or_default();
        let text = format!("{:<10}  {}{next}", check.name, check.detail).replace('\n', " ");
        output.text(&format!("{label}  {}\n", crate::output::escape_controls(text.as_bytes())))?;
    }
    Ok(())
}
