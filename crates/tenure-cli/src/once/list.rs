//! `tenure once ls`: the last run of every name.

use std::process::ExitCode;

use serde::Serialize;
use tenure::once::LastRun;

use crate::cli::Global;
use crate::connect::{self, StorePurpose};
use crate::failure::Failure;
use crate::hold::ago;
use crate::output::Output;

#[derive(Serialize)]
struct OnceListReport {
    schema: &'static str,
    runs: Vec<OnceRow>,
    backend: &'static str,
}

#[derive(Serialize)]
struct OnceRow {
    name: String,
    started: String,
    node: String,
    pid: u32,
    command: String,
    exit_code: Option<u8>,
    /// Whether it was recorded by a clock that is ahead of this one. `once` does not count it in an earlier period.
    in_future: bool,
    #[serde(skip)]
    ago: String,
}

pub(super) async fn run(global: &Global, output: &Output) -> Result<ExitCode, Failure> {
    let settings = connect::decide(global)?;
    let store = connect::open_for(StorePurpose::Read, &settings, output).await?;
    let found = tenure::once::list(&store, &settings.namespace.value).await;
    store.close().await;
    let runs: Vec<OnceRow> = found?
        .into_iter()
        .map(|LastRun { name, record, is_in_future }| OnceRow {
            name: name.to_string(),
            started: record.started.to_string(),
            in_future: is_in_future,
            ago: ago(record.started),
            node: record.node,
            pid: record.pid,
            command: record.command,
            exit_code: record.exit_code,
        })
        .collect();
    if output.is_json {
        output.object(&OnceListReport { schema: "tenure.once/v1", runs, backend: store.info().kind })?;
        return Ok(ExitCode::SUCCESS);
    }
    let row = |run: &OnceRow| {
        let age = if run.in_future { "in the future".to_owned() } else { run.ago.clone() };
        let exit = run.exit_code.map_or("-".to_owned(), |code| code.to_string());
        vec![run.name.clone(), run.started.clone(), age, exit, run.node.clone(), run.command.clone()]
    };
    let rows: Vec<Vec<String>> = runs.iter().map(row).collect();
    output.table(&["name", "started", "ago", "exit", "node", "command"], &rows)?;
    Ok(ExitCode::SUCCESS)
}
