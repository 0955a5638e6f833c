//! What a worker says while it works: trouble to people, everything to programs.

use std::net::SocketAddr;

use serde::Serialize;
use tenure::clock::wall_time;
use tenure::hold::LossReason;
use tenure::worker::WorkerEvent;
use tenure_core::record::FrozenRecord;

use crate::output::Output;

/// What `--json` lines carry as `schema`.
const SCHEMA: &str = "tenure.worker/v1";

/// How a worker tells.
pub(super) struct WorkerOutput<'a> {
    pub(super) node: &'a str,
    pub(super) quiet: bool,
    pub(super) output: &'a Output,
}

/// One event. stdout belongs to the tasks, so it goes to stderr.
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
    /// What people have to know even if they do not look at events.
    #[serde(skip)]
    trouble: Option<String>,
    /// What they want to know unless they asked for quiet.
    #[serde(skip)]
    news: Option<String>,
}

impl WorkerOutput<'_> {
    /// The node takes tasks.
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

    /// Something that people should know, in words.
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

    /// Somebody told the worker to end.
    pub(super) fn ending(&self, tasks: usize, is_now: bool) {
        if self.output.is_json {
            let event = if is_now { "stopping" } else { "leaving" };
            return self.line(WorkerLine { event, tasks: Some(tasks), ..WorkerLine::default() });
        }
        if !self.quiet {
            self.output.note(&if is_now {
                format!("stopping {tasks} tasks now")
            } else {
                format!("stopping {tasks} tasks and leaving; a second signal stops them at once")
            });
        }
    }

    /// The node is gone.
    pub(super) fn left(&self) {
        if self.output.is_json {
            return self.line(WorkerLine { event: "left", ..WorkerLine::default() });
        }
        if !self.quiet {
            self.output.note(&format!("node '{}' has left", self.node));
        }
    }

    /// Something happened in the worker.
    pub(super) fn event(&self, event: &WorkerEvent) {
        if let WorkerEvent::Lagged(missed) = event {
            return self.remark(&format!("{missed} events were missed"));
        }
        let line = line_of(event);
        if self.output.is_json {
            return self.line(line);
        }
        if let Some(text) = line.trouble.or(line.news.filter(|_| !self.quiet)) {
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
            trouble: reason.as_ref().map(|reason| format!("'{task}' is given up: {reason}")),
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
            trouble: loss(*why).map(|how| format!("'{task}' was lost: {how}")),
            ..none()
        },
        WorkerEvent::SetAside { task, why } => WorkerLine {
            event: "set_aside",
            task: Some(task.as_str()),
            reason: Some(why.clone()),
            trouble: Some(format!("'{task}' cannot be run: {why}")),
            ..none()
        },
        WorkerEvent::CommandSetAside { key } => WorkerLine {
            event: "command_set_aside",
            reason: Some(key.clone()),
            trouble: Some(format!(
                "the command under {key} is not handled: its name is not one segment of 1 to 256 bytes without control characters"
            )),
            ..none()
        },
        WorkerEvent::LateClaimReleased { task, token } => WorkerLine {
            event: "given_back",
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
            trouble: Some(format!(
                "'{task}' does not end, not even when it is killed; it is not released before it does"
            )),
            ..none()
        },
        WorkerEvent::WriteRefused { task, why } => WorkerLine {
            event: "save_refused",
            task: Some(task.as_str()),
            reason: Some(why.clone()),
            trouble: Some(format!("what became of '{task}' cannot be stored: {why}")),
            ..none()
        },
        WorkerEvent::Balanced { parting, .. } => {
            WorkerLine { event: "balanced", tasks: Some(*parting), ..none() }
        }
        WorkerEvent::NodeCommandHandled { why, .. } => {
            WorkerLine { event: "order_handled", reason: why.clone(), ..none() }
        }
        WorkerEvent::Frozen => {
            WorkerLine { event: "frozen", news: Some("frozen: no new tasks are taken".to_owned()), ..none() }
        }
        WorkerEvent::Unfrozen => WorkerLine {
            event: "unfrozen",
            news: Some("unfrozen: tasks are taken again".to_owned()),
            ..none()
        },
        WorkerEvent::Draining { left } => WorkerLine {
            event: "draining",
            tasks: Some(*left),
            news: Some(format!("draining: {left} tasks are left")),
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

/// How a task was lost; none if somebody deleted it, which is no trouble.
fn loss(why: LossReason) -> Option<&'static str> {
    match why {
        LossReason::Lapsed => Some("its lease could not be renewed in time"),
        LossReason::MembershipLost => Some("the node's own key is gone from the store"),
        LossReason::Replaced => Some("its claim is gone from the store"),
        LossReason::Deleted => None,
        LossReason::Revoked => Some("the store has ended its lease"),
        LossReason::Closed => Some("its session was closed"),
        _ => Some("its claim is over"),
    }
}
