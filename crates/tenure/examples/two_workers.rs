//! Tasks that move: two workers share twelve of them, one worker ends, and the other goes on where it stopped.
//!
//! `cargo run -p tenure --example two_workers` runs on a store in memory; with an address, such as `etcd://127.0.0.1:2379`, on that store.

use std::error::Error;
use std::io::Write;
use std::time::Duration;

use tenure::client::{Client, NewTask};
use tenure::session::Session;
use tenure::store::Store;
use tenure::{Namespace, Task, TaskId, Tenure};

const TASKS: usize = 12;

/// How far each task counts.
const STEPS: u8 = 30;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).or_else(|| std::env::var("TENURE_STORE").ok());
    let store = Store::open(&address.as_deref().unwrap_or("memory:").parse()?).await?;
    let namespace = Namespace::parse("example/two_workers")?;
    let client = Client::new(store.clone(), &namespace);

    let session = Session::options().ttl(Duration::from_secs(5)).open(store.clone())?;
    let tenure = Tenure::on_session(&session, &namespace)?;
    let first = tenure.worker("first").handle_any(count).start().await?;
    let second = tenure.worker("second").handle_any(count).start().await?;

    let ids: Vec<TaskId> =
        (0..TASKS).map(|n| TaskId::parse(&format!("count-{n}"))).collect::<Result<_, _>>()?;
    for submitted in client.submit_many(ids.iter().cloned().map(NewTask::new).collect()).await {
        submitted?;
    }
    // Both have their share, and have worked on it for a while, before one of them goes.
    for node in [&first, &second] {
        node.status().wait_for(|status| status.tasks >= TASKS / 2).await?;
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    first.shutdown().await?;
    say(format_args!("the first worker has ended"))?;

    for id in &ids {
        client.wait(id, Duration::from_secs(60)).await?;
    }
    say(format_args!("all {TASKS} tasks are completed"))?;

    second.shutdown().await?;
    for id in &ids {
        // The state of a task stays when it has ended; this is an example, so it tidies up.
        client.forget(id).await?;
    }
    session.close().await?;
    store.close().await;
    Ok(())
}

/// Counts, and stores its count for the next attempt.
async fn count(task: Task) -> Result<(), Box<dyn Error + Send + Sync>> {
    let begun = task.checkpoint::<u8>()?.unwrap_or(0);
    say(format_args!("{} goes on at {begun}, token {}", task.id(), task.token()))?;
    for step in begun..STEPS {
        if let Err(stopped) = task.sleep(Duration::from_millis(50)).await {
            task.save_checkpoint(&step).await?;
            return Err(stopped.into()); // no failure: another worker goes on
        }
    }
    Ok(())
}

fn say(line: std::fmt::Arguments<'_>) -> std::io::Result<()> {
    writeln!(std::io::stdout(), "{line}")
}
