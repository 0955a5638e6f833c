//! A balancer of your own: tasks go to the worker in their own zone, and to any other only if no worker there claims them.
//!
//! `cargo run -p tenure --example custom_balancer` runs two workers in two zones on a store in memory.

use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

use tenure::worker::{Balancer, ClaimDecision, Claimable, ClusterLoad};
use tenure::{NewTask, NodeId, Outcome, Task, TaskError, Tenure, Worker};

/// How long a task waits for a worker of its zone.
const ZONE_WAIT: Duration = Duration::from_secs(2);

/// Claims the tasks of one zone immediately, and those of other zones when they have waited. It decides from its arguments and never blocks.
struct ByZone(&'static str);

impl Balancer for ByZone {
    fn name(&self) -> &str {
        "zone"
    }

    fn claim(&mut self, task: &Claimable<'_>, _: &ClusterLoad<'_>) -> ClaimDecision {
        let is_in_zone = task.record.labels.get("zone").is_none_or(|zone| zone == self.0);
        if is_in_zone || task.waited >= ZONE_WAIT {
            return ClaimDecision::Claim;
        }
        ClaimDecision::wait_secs(1, "it waits for a worker of its zone")
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let tenure = Tenure::builder().store("memory:").namespace("example/zones").connect().await?;
    let mut workers = Vec::new();
    for zone in ["eu", "us"] {
        workers.push(tenure.worker(zone).handle("run", run).balancer(ByZone(zone)).start().await?);
    }
    for n in 0..9 {
        // No worker is in the third zone, so any worker claims its tasks.
        let zone = ["eu", "us", "asia"][n % 3];
        tenure.submit(NewTask::new("run").id(format!("{zone}-{n}")).label("zone", zone)).await?;
    }
    let mut statuses: Vec<_> = workers.iter().map(Worker::status).collect();
    while statuses.iter().map(|status| status.borrow().tasks).sum::<usize>() < 9 {
        let [eu, us] = &mut statuses[..] else { break };
        tokio::select! {
            changed = eu.changed() => changed?,
            changed = us.changed() => changed?,
        }
    }
    let mut owners: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for task in tenure.tasks().kind("run").list().await? {
        let owner = task.owner().map_or("no worker", NodeId::as_str);
        owners.entry(owner.to_owned()).or_default().push(task.id.to_string());
    }
    for (owner, tasks) in owners {
        writeln!(std::io::stdout(), "{owner} runs {}", tasks.join(", "))?;
    }
    for worker in workers {
        worker.shutdown().await?;
    }
    Ok(tenure.close().await?)
}

async fn run(task: Task) -> Result<Outcome, TaskError> {
    task.stopped().await;
    Ok(Outcome::Release)
}
