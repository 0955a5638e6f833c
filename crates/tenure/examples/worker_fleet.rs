//! A fleet of workers with typed props, checkpoints and a handler with state, and a client that submits, pauses and waits.
//!
//! `cargo run -p tenure --example worker_fleet -- etcd://127.0.0.1:2379`; a file shared by processes works as well. Without an address,
//! `TENURE_STORE` names the store.

use std::io::Write;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure::task::{Handler, Retry, TaskState};
use tenure::{NewTask, Outcome, Task, TaskError, Tenure};

const MINUTE: Duration = Duration::from_secs(60);

#[derive(Serialize, Deserialize)]
struct Import {
    file: String,
    rows: u32,
}

#[derive(Serialize, Deserialize)]
struct Mail {
    to: String,
}

/// Imports the rows of a file. The next attempt goes on at the first row that is not stored.
async fn import(task: Task<Import>) -> Result<(), TaskError> {
    let start = task.checkpoint::<u32>()?.unwrap_or(0);
    for row in start..task.props.rows {
        // `Err(Stopped)` ends the run without a failure.
        task.until_stopped(load(&task.props.file, row)).await??;
        task.save_checkpoint(&(row + 1)).await?;
    }
    writeln!(std::io::stdout(), "imported {} rows of {}", task.props.rows, task.props.file)?;
    Ok(())
}

async fn load(file: &str, row: u32) -> std::io::Result<()> {
    if file.is_empty() {
        return Err(std::io::Error::other(format!("no file for row {row}")));
    }
    tokio::time::sleep(Duration::from_millis(2)).await;
    Ok(())
}

/// A handler with state. Its first delivery fails, and the task is retried.
#[derive(Default)]
struct Mailer {
    deliveries: AtomicU32,
}

impl Handler<Mail> for Mailer {
    async fn run(&self, task: Task<Mail>) -> Result<Outcome, TaskError> {
        task.run(self.send(&task.props.to)).await??;
        writeln!(std::io::stdout(), "sent to {} in attempt {}", task.props.to, task.attempt())?;
        Ok(Outcome::Complete)
    }
}

impl Mailer {
    async fn send(&self, _to: &str) -> std::io::Result<()> {
        match self.deliveries.fetch_add(1, Ordering::Relaxed) {
            0 => Err(std::io::Error::other("the mail server is busy")),
            _ => Ok(()),
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut builder = Tenure::builder().namespace("example/fleet");
    if let Some(address) = std::env::args().nth(1) {
        builder = builder.store(address);
    }
    let tenure = builder.connect().await?;
    let retry = Retry::exponential(Duration::from_millis(50), 5 * MINUTE).max_attempts(8);
    let builder = tenure.worker("eu-1").label("zone", "eu").capacity(100);
    let worker =
        builder.handle("import", import).handle("mail", Mailer::default()).errors(retry).start().await?;

    let props = Import { file: "a.csv".into(), rows: 500 };
    let task = tenure.submit(NewTask::new("import").id("import-1").props(&props).rerun()).await?;
    let paused = task.pause().await?;
    writeln!(std::io::stdout(), "{} paused it", paused.by)?;
    task.resume().await?;
    let finished = task.wait().timeout(MINUTE).await?;
    writeln!(std::io::stdout(), "{} is {}", task.id()?, finished.state)?;

    let mails = ["a@example.org", "b@example.org", "c@example.org"];
    let mails = mails.map(|to| NewTask::new("mail").label("zone", "eu").props(&Mail { to: to.into() }));
    for submitted in tenure.submit_all(mails).await {
        submitted?.wait().timeout(MINUTE).await?;
    }
    let completed = tenure.tasks().kind("mail").label("zone", "eu").state(TaskState::Completed);
    writeln!(std::io::stdout(), "{} mails are completed", completed.count().await?)?;

    let killed = tenure.tasks().kind("mail").state(TaskState::Paused).kill("cleanup").await?;
    writeln!(std::io::stdout(), "{} killed, {} failed", killed.done, killed.failed.len())?;

    worker.shutdown().timeout(Duration::from_secs(30)).await?;
    tenure.tasks().finished().forget().await?; // an example leaves nothing behind
    Ok(tenure.close().await?)
}
