//! `tenure election`: lists leaders and candidates, and requests that a leader steps down.

mod rows;
mod step_down;
mod watch;

use std::time::Duration;

use clap::{Args, Subcommand};
use serde::Serialize;
use tenure::election::{Election, ElectionList, ElectionSnapshot, Elections};
use tenure::session::Session;
use tenure::store::Store;
use tenure_core::id::{ElectionName, Namespace};

use self::rows::ElectionRow;
use crate::duration;
use crate::elect::{SCHEMA, parse};
use crate::failure::Failure;
use crate::lease_remaining::{in_seconds, remaining};
use crate::output::Output;

/// The verbs.
#[derive(Subcommand, Debug)]
pub(crate) enum ElectionCommand {
    /// List the elections that have a leader: name, token, leader, its value, number of candidates.
    #[command(alias = "list")]
    Ls,
    /// Show the leader and the candidates, all at one revision.
    #[command(aliases = ["get", "describe"])]
    Show {
        /// The election's name.
        name: String,
    },
    /// Print the leader, then every change, one per line; times without a leader are printed, too.
    Watch(watch::ElectionWatchArgs),
    /// Request that the leader resigns, and wait until it has. Exit 3 if there is no leader, 4 if the leader has another token or declines, 8 if it
    /// does not resign in time.
    Resign(ResignArgs),
    /// Request that the leader hands over to a candidate, and wait until the candidate leads. Exit 3 if there is no such candidate, 4 if another
    /// candidate leads instead or the leader declines, 8 if it does not happen in time.
    Transfer(TransferArgs),
}

#[derive(Args, Debug)]
pub(crate) struct ResignArgs {
    /// The election's name.
    name: String,
    /// Only if the leader has this token, as listings show it.
    #[arg(long, value_name = "T")]
    token: Option<i64>,
    #[command(flatten)]
    timeout: StepDownTimeoutArgs,
}

#[derive(Args, Debug)]
pub(crate) struct TransferArgs {
    /// The election's name.
    name: String,
    /// The candidate to hand over to, by its name in listings.
    candidate: String,
    /// The token of the candidate, if several have the same name.
    #[arg(long, value_name = "T")]
    token: Option<i64>,
    #[command(flatten)]
    timeout: StepDownTimeoutArgs,
}

#[derive(Args, Debug)]
pub(crate) struct StepDownTimeoutArgs {
    /// How long to wait. The request stays in the store after that.
    #[arg(long, value_name = "DUR", value_parser = duration::parse, default_value = "30s")]
    wait: Duration,
}

/// Checks the arguments before a store is opened.
pub(crate) fn check(command: &ElectionCommand) -> Result<(), Failure> {
    match command {
        ElectionCommand::Ls => Ok(()),
        ElectionCommand::Show { name } => parse(name).map(drop),
        ElectionCommand::Watch(args) => parse(&args.name).map(drop),
        ElectionCommand::Resign(args) => parse(&args.name).map(drop),
        ElectionCommand::Transfer(args) => {
            parse(&args.name)?;
            if args.candidate.is_empty() {
                return Err(Failure::usage("the candidate's name is empty")
                    .hint(format!("list the candidates with `tenure election show {}`", args.name)));
            }
            Ok(())
        }
    }
}

/// The election of a verb, with its name.
struct ElectionTarget {
    name: ElectionName,
    election: Election,
}

/// Runs a verb on an open store. `sender` is the author of requests.
pub(crate) async fn run(
    command: &ElectionCommand,
    store: &Store,
    namespace: &Namespace,
    sender: &str,
    output: &Output,
) -> Result<(), Failure> {
    // A session without registrations sends no request, so it needs no lease and no close.
    let session = Session::open(store.clone()).map_err(|error| Failure::usage(error.to_string()))?;
    let elections = Elections::new(&session, namespace).identity(sender);
    let election = |name: &str| {
        let name = parse(name)?;
        Ok::<_, Failure>(ElectionTarget { election: elections.election(&name), name })
    };
    match command {
        ElectionCommand::Ls => list(&elections, store, output).await,
        ElectionCommand::Show { name } => show(&election(name)?, store, output).await,
        ElectionCommand::Watch(args) => watch::watch(args, &election(&args.name)?, output).await,
        ElectionCommand::Resign(args) => step_down::resign(args, &election(&args.name)?, output).await,
        ElectionCommand::Transfer(args) => step_down::transfer(args, &election(&args.name)?, output).await,
    }
}

async fn list(elections: &Elections, store: &Store, output: &Output) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct ElectionListReport {
        schema: &'static str,
        elections: Vec<ElectionRow>,
        backend: &'static str,
        revision: String,
    }
    let ElectionList { elections, revision } = elections.list().await?;
    if output.is_json {
        let leaders = elections.iter().filter_map(|view| view.leader.as_ref());
        let left = remaining(store, leaders.map(|leader| leader.place.lease)).await?;
        let elections = elections.iter().map(|view| ElectionRow::new(view, &left)).collect();
        let (backend, revision) = (store.info().kind, revision.to_string());
        return output.object(&ElectionListReport { schema: SCHEMA, elections, backend, revision });
    }
    let row = |view: &ElectionSnapshot| {
        let leader = view.leader.as_ref();
        let dash = || "-".to_owned();
        vec![
            view.name.to_string(),
            leader.map_or_else(dash, |leader| leader.token.to_string()),
            leader.map_or_else(dash, |leader| leader.record.candidate.clone()),
            leader.map_or_else(dash, |leader| leader.record.value.clone()),
            view.candidates.len().to_string(),
        ]
    };
    let rows: Vec<Vec<String>> = elections.iter().map(row).collect();
    output.table(&["name", "token", "leader", "value", "candidates"], &rows)
}

async fn show(target: &ElectionTarget, store: &Store, output: &Output) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct ElectionShowReport {
        schema: &'static str,
        #[serde(flatten)]
        shown: ElectionRow,
        backend: &'static str,
        revision: String,
    }
    let view = target.election.snapshot().await?;
    let left = remaining(store, view.leader.iter().map(|leader| leader.place.lease)).await?;
    let shown = ElectionRow::new(&view, &left);
    if output.is_json {
        let (backend, revision) = (store.info().kind, view.revision.to_string());
        return output.object(&ElectionShowReport { schema: SCHEMA, shown, backend, revision });
    }
    if shown.leader.is_none() {
        output.note(&format!("'{}' has no leader", view.name));
    }
    if let Some(request) = shown.leader.as_ref().and_then(|leader| leader.candidate.step_down.as_ref()) {
        output.note(&request.describe());
    }
    let leader = shown.leader.into_iter().map(|leader| {
        let left = in_seconds(leader.remaining_seconds.map(Duration::from_secs_f64));
        leader.candidate.into_row("leads", left)
    });
    let candidates =
        shown.candidates.into_iter().map(|candidate| candidate.into_row("waits", "-".to_owned()));
    let rows: Vec<Vec<String>> = leader.chain(candidates).collect();
    output.table(&["", "token", "candidate", "value", "priority", "since", "lease s"], &rows)
}

/// The hint with the command that shows an election.
fn shown_by(name: &ElectionName) -> String {
    format!("see `tenure election show {name}`")
}
