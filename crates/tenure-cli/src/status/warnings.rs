//! The warnings of `tenure status`.

use std::collections::BTreeMap;

use serde::Serialize;
use tenure::snapshot::ClusterSnapshot;
use tenure::task::TaskSummary;
use tenure_core::id::NodeId;
use tenure_core::record::MemberState;

use crate::task::unreadable;

/// The number of names in a warning.
const NAMED_MAX: usize = 5;

/// A warning: a state that may need an action.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(super) struct StatusWarning {
    /// A stable identifier for scripts.
    kind: &'static str,
    pub(super) message: String,
    /// What to do next.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) hint: Option<String>,
}

/// The tasks that need an owner and have none.
pub(super) fn unclaimed(tasks: &[TaskSummary]) -> impl Iterator<Item = &TaskSummary> {
    let is_unclaimed = |task: &&TaskSummary| {
        let card = task.card.as_ref().filter(|card| card.is_live() && card.owner.is_none());
        card.is_some() && task.state().is_none_or(|state| !state.is_terminal())
    };
    tasks.iter().filter(is_unclaimed)
}

pub(super) fn warnings(listing: &[TaskSummary], snapshot: &ClusterSnapshot) -> Vec<StatusWarning> {
    let mut all = Vec::new();
    let mut warn =
        |kind, message: String, hint: Option<String>| all.push(StatusWarning { kind, message, hint });
    for aside in snapshot.members.set_aside() {
        let message = format!("the record of node {} cannot be read: {}", aside.id, aside.why);
        warn("unreadable_node", message, None);
    }
    for node in snapshot.members.members() {
        if snapshot.frozen.contains_key(&node.id) {
            let hint = format!("tenure node unfreeze {}", node.id);
            warn("frozen_node", format!("node {} is frozen and claims no tasks", node.id), Some(hint));
        } else if node.record.state == MemberState::Draining {
            warn("draining_node", format!("node {} releases its tasks and leaves", node.id), None);
        }
    }
    for node in snapshot.frozen.keys().filter(|node| snapshot.members.get(node).is_none()) {
        let message =
            format!("node {node} is not alive and is frozen: it will claim no tasks when it starts again");
        warn("frozen_node", message, None);
    }
    for (node, count) in
        snapshot.pending_commands.iter().filter(|(node, _)| snapshot.members.get(node).is_none())
    {
        let message = format!("{count} commands wait for node {node}, which is not alive");
        warn("waiting_commands", message, None);
    }
    let unclaimed: Vec<&TaskSummary> = unclaimed(listing).collect();
    if !unclaimed.is_empty() {
        let claiming =
            snapshot.members.members().iter().filter(|node| snapshot.takes_tasks(&node.id)).count();
        let why = match claiming {
            0 => "no node claims tasks".to_owned(),
            1 => "one node claims tasks".to_owned(),
            count => format!("{count} nodes claim tasks"),
        };
        let message =
            format!("{} without an owner, while {why}: {}", tasks(unclaimed.len()), names(&unclaimed));
        warn("unclaimed_tasks", message, Some("tenure node ls".to_owned()));
    }
    for (node, owned) in orphans(listing, snapshot) {
        let message =
            format!("{} owned by node {node}, which is not alive: {}", tasks(owned.len()), names(&owned));
        warn(
            "absent_owner",
            message,
            Some("other nodes claim them when its lease ends; tenure lease ls".to_owned()),
        );
    }
    let broken: Vec<&TaskSummary> = listing.iter().filter(|task| !unreadable(task).is_empty()).collect();
    if let Some(first) = broken.first() {
        let message = format!("{} cannot be read completely: {}", tasks(broken.len()), names(&broken));
        warn("unreadable_tasks", message, Some(format!("tenure task show {}", first.id)));
    }
    all
}

/// Tasks with an owner that is not alive.
fn orphans<'a>(
    listing: &'a [TaskSummary],
    snapshot: &ClusterSnapshot,
) -> BTreeMap<&'a NodeId, Vec<&'a TaskSummary>> {
    let mut orphans: BTreeMap<&NodeId, Vec<&TaskSummary>> = BTreeMap::new();
    for task in listing {
        if let Some(owner) = task.owner().filter(|owner| snapshot.members.get(owner).is_none()) {
            orphans.entry(owner).or_default().push(task);
        }
    }
    orphans
}

fn tasks(count: usize) -> String {
    if count == 1 { "one task".to_owned() } else { format!("{count} tasks") }
}

fn names(tasks: &[&TaskSummary]) -> String {
    let mut names: Vec<&str> = tasks.iter().take(NAMED_MAX).map(|task| task.id.as_str()).collect();
    if tasks.len() > NAMED_MAX {
        names.push("…");
    }
    names.join(", ")
}
