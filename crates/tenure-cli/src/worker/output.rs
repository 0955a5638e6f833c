//! The reports of a worker on stderr: problems as notes, and every event as an object with `--json`.

use std::net::SocketAddr;

use serde::Serialize;
use tenure::clock::wall_time;
use tenure::hold::LossReason;
use tenure::worker::WorkerEvent;
use tenure_core::record::FrozenRecord;

use crate::output::Output;

/// The `schema` of JSON lines.
const SCHEMA: &str = "tenure.worker/v1";

/// Writes the reports of a worker.
pub(super) struct WorkerOutput<'a> {
    pub(super) node: &'a str,
    pub(super) quiet: bool,
    pub(super) output: &'a Output,
}

/// One event. Written to stderr, because stdout belongs to the tasks.
#[derive(Serialize, Default)]
struct WorkerLine<'a> {
    schema: &'static str,
    at: String,
    node: &'a str,
    event: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tasks: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    http: Option<String>,
    /// A note about a problem, printed even with `--quiet`.
    #[serde(skip)]
    problem: Option<String>,
    /// A note about a change of state.
    #[serde(skip)]
    note: Option<String>,
}

impl WorkerOutput<'_> {
    /// Reports that the worker has joined.
    pub(super) fn joined(&self, http: Option<SocketAddr>, frozen: Option<&FrozenRecord>) {
        if self.output.is_json {
            let http = http.map(|address| address.to_string());
            let reason = frozen.map(ToString::to_string);
            return self.line(WorkerLine { event: "joined", http, reason, ..WorkerLine::default() });
        }
        if !self.quiet {
            let pages = http.map(|address| format!(", http://{address}/metrics")).unwrap_or_default();
            let node = self.node;
            self.output.note(&match frozen {
                None => format!("node '{node}' takes tasks{pages}"),
                Some(frozen) => format!(
                    "node '{node}' takes no tasks: {frozen}; `tenure node unfreeze {node}` ends that{pages}"
                ),
            });
        }
    }

    /// Prints a note about a task.
    pub(super) fn remark(&self, text: &str) {
        if self.output.is_json {
            return self.line(WorkerLine {
                event: "remark",
                reason: Some(text.to_owned()),
                ..WorkerLine::default()
            });
        }
        self.output.note(text);
    }

    /// Reports a signal that ends the worker.
    pub(super) fn ending(&self, tasks: usize, is_now: bool) {
        if self.output.is_json {
            let event = if is_now { "stopping" } else { "leaving" };
            return self.line(WorkerLine { event, tasks: Some(tasks), ..WorkerLine::default() });
        }
        if !self.quiet {
            self.output.note(&if is_now {
                format!("stopping {tasks} tasks now")
            } else {
                format!("stopping {tasks} tasks and leaving; a second signal kills them")
            });
        }
    }

    /// Reports that the worker has left.
    pub(super) fn left(&self) {
        if self.output.is_json {
            return self.line(WorkerLine { event: "left", ..WorkerLine::default() });
        }
        if !self.quiet {
            self.output.note(&format!("node '{}' has left", self.node));
        }
    }

    /// Reports an event of the worker.
    pub(super) fn event(&self, event: &WorkerEvent) {
        if let WorkerEvent::Lagged(missed) = event {
            return self.remark(&format!("{missed} events were missed"));
        }
        let line = line_of(event);
        if self.output.is_json {
            return self.line(line);
        }
        if let Some(text) = line.problem.or(line.note.filter(|_| !self.quiet)) {
            self.output.note(&text);
        }
    }

    fn line(&self, line: WorkerLine<'_>) {
        let at = wall_time().to_string();
        self.output.note_object(&WorkerLine { schema: SCHEMA, at, node: self.node, ..line });
    }
}

fn line_of(event: &WorkerEvent) -> WorkerLine<'_> {
    let none = WorkerLine::default;
    match event {
        WorkerEvent::Claimed { task, token } => WorkerLine {
            event: "claimed",
            task: Some(task.as_str()),
            token: Some(token.to_string()),
            ..none()
        },
        WorkerEvent::Started { task, token, attempt } => WorkerLine {
            event: "started",
            task: Some(task.as_str()),
            token: Some(token.to_string()),
            attempt: Some(*attempt),
            ..none()
        },
        WorkerEvent::StateChanged { task, from, to } => WorkerLine {
            event: "moved",
            task: Some(task.as_str()),
            from: Some(from.as_str()),
            to: Some(to.as_str()),
            ..none()
        },
        WorkerEvent::Ended { task, state, reason } => WorkerLine {
            event: "ended",
            task: Some(task.as_str()),
            to: Some(state.as_str()),
            reason: reason.clone(),
            problem: reason
                .as_ref()
                .map(|reason| format!("'{task}' has ended as {}: {reason}", state.as_str())),
            ..none()
        },
        WorkerEvent::Forgotten { task, ended } => WorkerLine {
            event: "forgotten",
            task: Some(task.as_str()),
            reason: Some(format!("it ended at {ended}")),
            ..none()
        },
        WorkerEvent::Released { task, why } => WorkerLine {
            event: "released",
            task: Some(task.as_str()),
            reason: Some(why.as_str().to_owned()),
            ..none()
        },
        WorkerEvent::Lost { task, token, why } => WorkerLine {
            event: "lost",
            task: Some(task.as_str()),
            token: Some(token.to_string()),
            reason: Some(why.as_str().to_owned()),
            problem: loss(*why).map(|how| format!("'{task}' was lost: {how}")),
            ..none()
        },
        WorkerEvent::SetAside { task, why } => WorkerLine {
            event: "set_aside",
            task: Some(task.as_str()),
            reason: Some(why.clone()),
            problem: Some(format!("'{task}' cannot be run: {why}")),
            ..none()
        },
        WorkerEvent::CommandSetAside { key } => WorkerLine {
            event: "command_set_aside",
            reason: Some(key.clone()),
            problem: Some(format!(
                "the command under {key} is not handled: its name is not one segment of 1 to 256 bytes without control characters"
            )),
            ..none()
        },
        WorkerEvent::LateClaimReleased { task, token } => WorkerLine {
            event: "late_claim_released",
            task: Some(task.as_str()),
            token: Some(token.to_string()),
            ..none()
        },
        WorkerEvent::CommandHandled { task, why, .. } => {
            WorkerLine { event: "command_handled", task: Some(task.as_str()), reason: why.clone(), ..none() }
        }
        WorkerEvent::Stuck { task, token } => WorkerLine {
            event: "stuck",
            task: Some(task.as_str()),
            token: Some(token.to_string()),
            problem: Some(format!(
                "'{task}' does not end although it was killed; it is released when it ends"
            )),
            ..none()
        },
        WorkerEvent::WriteRefused { task, why } => WorkerLine {
            event: "save_refused",
            task: Some(task.as_str()),
            reason: Some(why.clone()),
            problem: Some(format!("the outcome of '{task}' was not stored: {why}")),
            ..none()
        },
        WorkerEvent::Balanced { parting, .. } => {
            WorkerLine { event: "balanced", tasks: Some(*parting), ..none() }
        }
        WorkerEvent::NodeCommandHandled { why, .. } => {
            WorkerLine { event: "order_handled", reason: why.clone(), ..none() }
        }
        WorkerEvent::Frozen => WorkerLine {
            event: "frozen",
            note: Some("frozen: no new tasks are claimed".to_owned()),
            ..none()
        },
        WorkerEvent::Unfrozen => WorkerLine {
            event: "unfrozen",
            note: Some("unfrozen: tasks are claimed again".to_owned()),
            ..none()
        },
        WorkerEvent::Draining { left } => WorkerLine {
            event: "draining",
            tasks: Some(*left),
            note: Some(format!("draining: {left} tasks are left")),
            ..none()
        },
        WorkerEvent::Drained => WorkerLine { event: "drained", ..none() },
        WorkerEvent::Lagged(missed) => {
            WorkerLine { event: "lagged", reason: Some(missed.to_string()), ..none() }
        }
        WorkerEvent::ShuttingDown { left } => {
            WorkerLine { event: "shutting_down", tasks: Some(*left), ..none() }
        }
    }
}

/// How a task was lost; `None` for a deleted task, which is no problem.
fn loss(why: LossReason) -> Option<&'static str> {
    match why {
        LossReason::Lapsed => Some("its lease could not be renewed in time"),
        LossReason::MembershipLost => Some("the node's own key was deleted from the store"),
        LossReason::Replaced => Some("its claim was deleted from the store"),
        LossReason::Deleted => None,
        LossReason::Revoked => Some("the store has ended its lease"),
        LossReason::Closed => Some("its session was closed"),
        _ => Some("its claim has ended"),
    }
}
