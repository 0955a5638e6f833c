//! The metrics of workers, through the `metrics` facade: every name with its unit and meaning.
//!
//! The table in docs/claims.md has the same metrics for operators.

use std::sync::Once;

use metrics::{Unit, counter, gauge};
use tenure_core::id::NodeId;
use tenure_core::loss::LossReason;
use tenure_core::task::TaskState;
use tenure_core::worker::{HandlerEnd, ReleaseReason, WorkerEvent, WorkerInput};

const TASKS: &str = "tenure_node_tasks";
const TRIES: &str = "tenure_node_claim_tries_total";
const CLAIMS: &str = "tenure_node_claims_total";
const STARTS: &str = "tenure_node_starts_total";
const FAULTS: &str = "tenure_node_faults_total";
const MOVES: &str = "tenure_node_moves_total";
const ENDS: &str = "tenure_node_ends_total";
const RELEASES: &str = "tenure_node_releases_total";
const LOST: &str = "tenure_node_lost_total";

/// Registers the units and meanings of worker metrics with the recorder. The first worker does it too; call this if a recorder is installed later.
pub fn describe_metrics() {
    metrics::describe_gauge!(TASKS, Unit::Count, "Tasks that the worker owns.");
    metrics::describe_counter!(TRIES, Unit::Count, "Claims that were sent, won or not.");
    metrics::describe_counter!(CLAIMS, Unit::Count, "Claims that were won.");
    metrics::describe_counter!(STARTS, Unit::Count, "Runs of handlers that were started.");
    metrics::describe_counter!(FAULTS, Unit::Count, "Runs of handlers that failed or panicked.");
    metrics::describe_counter!(MOVES, Unit::Count, "Changes of the state of a task, by the new state.");
    metrics::describe_counter!(ENDS, Unit::Count, "Tasks that ended here, by state.");
    metrics::describe_counter!(RELEASES, Unit::Count, "Tasks that were released, by reason.");
    metrics::describe_counter!(LOST, Unit::Count, "Claims that were lost, by reason.");
}

/// The metrics of one worker.
pub(super) struct WorkerMetrics {
    node: String,
    /// The last value of the gauge.
    tasks: usize,
}

impl WorkerMetrics {
    pub(super) fn new(node: &NodeId) -> WorkerMetrics {
        static ONCE: Once = Once::new();
        ONCE.call_once(describe_metrics);
        let node = node.to_string();
        // Every series exists from the start: `increase()` reports 0 for the first count of a series without an earlier sample.
        gauge!(TASKS, "node" => node.clone()).set(0.0);
        for name in [TRIES, CLAIMS, STARTS, FAULTS] {
            counter!(name, "node" => node.clone()).absolute(0);
        }
        for state in TaskState::ALL {
            counter!(MOVES, "node" => node.clone(), "to" => state.as_str()).absolute(0);
            if state.is_terminal() {
                counter!(ENDS, "node" => node.clone(), "state" => state.as_str()).absolute(0);
            }
        }
        for reason in ReleaseReason::ALL {
            counter!(RELEASES, "node" => node.clone(), "reason" => reason.as_str()).absolute(0);
        }
        // A worker does not lose what it releases itself.
        for reason in LossReason::ALL.into_iter().filter(|reason| *reason != LossReason::Released) {
            counter!(LOST, "node" => node.clone(), "reason" => reason.as_str()).absolute(0);
        }
        WorkerMetrics { node, tasks: 0 }
    }

    pub(super) fn owns(&mut self, tasks: usize) {
        if self.tasks != tasks {
            self.tasks = tasks;
            gauge!(TASKS, "node" => self.node.clone())
                .set(f64::from(u32::try_from(tasks).unwrap_or(u32::MAX)));
        }
    }

    pub(super) fn sent_claims(&self, claims: usize) {
        counter!(TRIES, "node" => self.node.clone()).increment(u64::try_from(claims).unwrap_or(u64::MAX));
    }

    pub(super) fn handled(&self, event: &WorkerInput) {
        if let WorkerInput::HandlerEnded {
            outcome: HandlerEnd::Fault(_) | HandlerEnd::FaultDecided { .. },
            ..
        } = event
        {
            counter!(FAULTS, "node" => self.node.clone()).increment(1);
        }
    }

    pub(super) fn count(&self, notice: &WorkerEvent) {
        let node = || self.node.clone();
        match notice {
            WorkerEvent::Claimed { .. } => counter!(CLAIMS, "node" => node()).increment(1),
            WorkerEvent::Started { .. } => counter!(STARTS, "node" => node()).increment(1),
            WorkerEvent::StateChanged { to, .. } => {
                counter!(MOVES, "node" => node(), "to" => to.as_str()).increment(1);
            }
            WorkerEvent::Ended { state, .. } => {
                counter!(ENDS, "node" => node(), "state" => state.as_str()).increment(1);
            }
            WorkerEvent::Released { why, .. } => {
                counter!(RELEASES, "node" => node(), "reason" => why.as_str()).increment(1);
            }
            WorkerEvent::Lost { why, .. } => {
                counter!(LOST, "node" => node(), "reason" => why.as_str()).increment(1);
            }
            WorkerEvent::Forgotten { .. }
            | WorkerEvent::SetAside { .. }
            | WorkerEvent::CommandSetAside { .. }
            | WorkerEvent::LateClaimReleased { .. }
            | WorkerEvent::CommandHandled { .. }
            | WorkerEvent::Stuck { .. }
            | WorkerEvent::WriteRefused { .. }
            | WorkerEvent::Balanced { .. }
            | WorkerEvent::NodeCommandHandled { .. }
            | WorkerEvent::Frozen
            | WorkerEvent::Unfrozen
            | WorkerEvent::Draining { .. }
            | WorkerEvent::Drained
            | WorkerEvent::Lagged(_)
            | WorkerEvent::ShuttingDown { .. } => {}
        }
    }
}
