//! Tasks that move: two workers share twelve of them, one worker ends, and the other goes on where it stopped.
//!
//! `cargo run -p tenure --example two_workers` runs on a store in memory; with an address, such as `etcd://127.0.0.1:2379`, on that store.

use std::error::Error;
use std::io::Write;
use std::time::Duration;

use tenure::{NewTask, Task, Tenure};

const TASKS: usize = 12;

/// How far each task counts.
const STEPS: u8 = 30;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).or_else(|| std::env::var("TENURE_STORE").ok());
    let builder = Tenure::builder().store(address.as_deref().unwrap_or("memory:"));
    let tenure = builder.namespace("example/two_workers").ttl(Duration::from_secs(5)).connect().await?;

    let first = tenure.worker("first").handle("count", count).start().await?;
    let second = tenure.worker("second").handle("count", count).start().await?;

    let ids: Vec<String> = (0..TASKS).map(|n| format!("count-{n}")).collect();
    for submitted in tenure.submit_all(ids.iter().map(|id| NewTask::new("count").id(id))).await {
        submitted?;
    }
    // Both have their share, and have worked on it for a while, before one of them ends.
    for worker in [&first, &second] {
        worker.status().wait_for(|status| status.tasks >= TASKS / 2).await?;
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    first.shutdown().await?;
    print(format_args!("the first worker has ended"))?;

    let tasks = tenure.tasks().ids(&ids);
    for finished in tasks.wait().timeout(Duration::from_secs(60)).await?.into_values() {
        finished?;
    }
    print(format_args!("all {TASKS} tasks are completed"))?;

    second.shutdown().await?;
    // The state of a task stays when it has ended; an example leaves nothing behind.
    tasks.forget().await?;
    tenure.close().await?;
    Ok(())
}

/// Counts, and stores its count for the next attempt.
async fn count(task: Task) -> Result<(), Box<dyn Error + Send + Sync>> {
    let begun = task.checkpoint::<u8>()?.unwrap_or(0);
    print(format_args!("{} goes on at {begun}, token {}", task.id(), task.token()))?;
    for step in begun..STEPS {
        if let Err(stopped) = task.sleep(Duration::from_millis(50)).await {
            task.save_checkpoint(&step).await?;
            return Err(stopped.into()); // no failure: another worker goes on
        }
    }
    Ok(())
}

fn print(line: std::fmt::Arguments<'_>) -> std::io::Result<()> {
    writeln!(std::io::stdout(), "{line}")
}
