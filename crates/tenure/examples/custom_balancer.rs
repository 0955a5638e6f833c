//! A balancer of your own: tasks go to the node in their own zone, and to any other only if nobody there takes them.
//!
//! `cargo run -p tenure --example custom_balancer` runs two nodes in two zones on a store in memory.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::Write;
use std::time::Duration;

use tenure::client::{Client, NewTask, TaskFilter};
use tenure::session::Session;
use tenure::store::Store;
use tenure::worker::balance::{Balancer, ClaimDecision, Claimable, ClusterLoad, Release};
use tenure::{Namespace, NodeId, Outcome, Task, TaskError, TaskId, Tenure, Worker};

/// How long a task waits for a node of its zone.
const PATIENCE: Duration = Duration::from_secs(2);

/// Takes the tasks of one zone at once, and those of others when they have waited. It decides from what it is told and never waits itself.
struct Zone(&'static str);

impl Balancer for Zone {
    fn claim(&mut self, offer: &Claimable<'_>, _: &ClusterLoad<'_>) -> ClaimDecision {
        let is_ours = offer.record.labels.get("zone").is_none_or(|zone| zone == self.0);
        if is_ours || offer.waited >= PATIENCE {
            return ClaimDecision::Claim;
        }
        ClaimDecision::wait_secs(1, "it waits for a node of its zone")
    }

    fn release(&mut self, _: &ClusterLoad<'_>) -> Vec<Release> {
        Vec::new()
    }

    fn name(&self) -> &'static str {
        "zone"
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let store = Store::memory();
    let namespace = Namespace::parse("example/zones")?;
    let client = Client::new(store.clone(), &namespace);
    let session = Session::open(store.clone())?;
    let mut nodes = Vec::new();
    let tenure = Tenure::on_session(&session, &namespace)?;
    for zone in ["eu", "us"] {
        nodes.push(tenure.worker(zone).handle_any(run).balancer(Zone(zone)).start().await?);
    }
    for n in 0..9 {
        // Nobody is in the third zone, so its tasks go to whoever takes them first.
        let zone = ["eu", "us", "asia"][n % 3];
        let id = TaskId::parse(&format!("{zone}-{n}"))?;
        client.submit(NewTask::new(id).label("zone", zone)).await?;
    }
    let mut tenancies: Vec<_> = nodes.iter().map(Worker::status).collect();
    while tenancies.iter().map(|tenancy| tenancy.borrow().tasks).sum::<usize>() < 9 {
        let [eu, us] = &mut tenancies[..] else { break };
        tokio::select! {
            changed = eu.changed() => changed?,
            changed = us.changed() => changed?,
        }
    }
    let mut owners: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for task in client.tasks(&TaskFilter::default()).await?.tasks {
        let owner = task.owner().map_or("nobody", NodeId::as_str);
        owners.entry(owner.to_owned()).or_default().push(task.id.as_str().to_owned());
    }
    for (owner, tasks) in owners {
        writeln!(std::io::stdout(), "{owner} runs {}", tasks.join(", "))?;
    }
    for node in nodes {
        node.shutdown().await?;
    }
    session.close().await?;
    Ok(())
}

async fn run(task: Task) -> Result<Outcome, TaskError> {
    task.stopped().await;
    Ok(Outcome::Release)
}
