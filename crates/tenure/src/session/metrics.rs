//! The metrics of sessions, through the `metrics` facade: each name, its unit and its meaning.
//!
//! The table in docs/leases.md has the same content for readers of graphs.

use std::sync::Once;
use std::time::Duration;

use metrics::{Unit, counter, gauge, histogram};
use tenure_core::loss::LossReason;

use crate::store::{Grant, Renewal, StoreError};

const GRANTS: &str = "tenure_lease_grants_total";
const RENEWALS: &str = "tenure_lease_renewals_total";
const LOST: &str = "tenure_lease_lost_total";
const REMAINING: &str = "tenure_lease_remaining_seconds";
const RECOVERIES: &str = "tenure_session_recoveries_total";
const RETRIES: &str = "tenure_session_retries_total";
const KEYS: &str = "tenure_registered_keys";

/// Describes the metrics of sessions to the recorder. The first session does it too; a program that installs a recorder later calls it
/// again.
pub fn describe_metrics() {
    metrics::describe_counter!(GRANTS, Unit::Count, "Requests for leases, by result: ok or error.");
    metrics::describe_counter!(RENEWALS, Unit::Count, "Renewals of leases, by result: ok, gone or error.");
    metrics::describe_counter!(
        LOST,
        Unit::Count,
        "Leases that could not be kept, by reason: lapsed or gone."
    );
    metrics::describe_histogram!(
        REMAINING,
        Unit::Seconds,
        "How long a lease was still valid when its renewal was acknowledged; near zero means that a loss is near."
    );
    metrics::describe_counter!(
        RECOVERIES,
        Unit::Count,
        "Times that all keys were stored again after an outage."
    );
    metrics::describe_counter!(RETRIES, Unit::Count, "Failures after which a session retries.");
    metrics::describe_gauge!(KEYS, Unit::Count, "Keys that the sessions of this process keep registered.");
}

/// Describes and registers every series, for the recorder that is installed when a session is opened.
///
/// A counter that first appears with its first loss has no earlier sample: `increase()` then reports 0 for that loss.
pub(super) fn register() {
    static ONCE: Once = Once::new();
    ONCE.call_once(describe_metrics);
    for result in ["ok", "error"] {
        counter!(GRANTS, "result" => result).increment(0);
    }
    for result in ["ok", "gone", "error"] {
        counter!(RENEWALS, "result" => result).increment(0);
    }
    for why in [LossReason::Lapsed, LossReason::Revoked] {
        counter!(LOST, "reason" => why.as_str()).increment(0);
    }
    counter!(RECOVERIES).increment(0);
    counter!(RETRIES).increment(0);
    gauge!(KEYS).increment(0.0);
    let _ = histogram!(REMAINING);
}

pub(super) fn granted(answer: &Result<Grant, StoreError>) {
    counter!(GRANTS, "result" => if answer.is_ok() { "ok" } else { "error" }).increment(1);
}

pub(super) fn renewed(answer: &Result<Renewal, StoreError>) {
    let result = match answer {
        Ok(Renewal::Renewed { .. }) => "ok",
        Ok(Renewal::Gone) | Err(StoreError::LeaseNotFound) => "gone",
        Err(_) => "error",
    };
    counter!(RENEWALS, "result" => result).increment(1);
}

pub(super) fn remained(remained: Duration) {
    histogram!(REMAINING).record(remained);
}

pub(super) fn lost(why: LossReason) {
    counter!(LOST, "reason" => why.as_str()).increment(1);
}

pub(super) fn recovered() {
    counter!(RECOVERIES).increment(1);
}

pub(super) fn retried() {
    counter!(RETRIES).increment(1);
}

/// The share of one session in the number of keys of the process.
#[derive(Default)]
pub(super) struct KeyGauge {
    reported: u32,
}

impl KeyGauge {
    pub(super) fn set(&mut self, keys: usize) {
        let keys = u32::try_from(keys).unwrap_or(u32::MAX);
        if keys != self.reported {
            gauge!(KEYS).increment(f64::from(keys) - f64::from(self.reported));
            self.reported = keys;
        }
    }
}
