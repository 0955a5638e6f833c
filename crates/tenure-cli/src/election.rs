//! `tenure election`: who leads, who wants to, and asking a leader to go.

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

/// What can be done with elections.
#[derive(Subcommand, Debug)]
pub(crate) enum ElectionCommand {
    /// List the elections that have a leader: name, fence, leader, its value, how many wait.
    #[command(alias = "list")]
    Ls,
    /// Show who leads and who waits to, all at one revision.
    #[command(aliases = ["get", "describe"])]
    Show {
        /// The election's name.
        name: String,
    },
    /// Tell who leads, then every change, one on a line; a time without a leader is told too.
    Watch(watch::ElectionWatchArgs),
    /// Ask the leader to go, and wait until it has. Exit 3 if nobody leads, 4 if it is somebody else than you meant or it declines, 8 if it does
    /// not go in time.
    Resign(ResignArgs),
    /// Ask the leader to hand over to a candidate, and wait until that leads. Exit 3 if there is no such candidate, 4 if somebody else leads
    /// instead or the leader declines, 8 if it is not done in time.
    Transfer(TransferArgs),
}

#[derive(Args, Debug)]
pub(crate) struct ResignArgs {
    /// The election's name.
    name: String,
    /// Only the leader with this fence, as listings show it.
    #[arg(long, value_name = "T")]
    token: Option<i64>,
    #[command(flatten)]
    timeout: StepDownTimeoutArgs,
}

#[derive(Args, Debug)]
pub(crate) struct TransferArgs {
    /// The election's name.
    name: String,
    /// The candidate that shall lead, by the name that listings show.
    candidate: String,
    /// The candidate with this fence, if several have the same name.
    #[arg(long, value_name = "T")]
    token: Option<i64>,
    #[command(flatten)]
    timeout: StepDownTimeoutArgs,
}

#[derive(Args, Debug)]
pub(crate) struct StepDownTimeoutArgs {
    /// How long to wait for it. The wish stands after that too.
    #[arg(long, value_name = "DUR", value_parser = duration::parse, default_value = "30s")]
    wait: Duration,
}

/// Refuses what is wrong whatever the store holds.
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
                    .hint(format!("see who waits with `tenure election show {}`", args.name)));
            }
            Ok(())
        }
    }
}

/// The election of a command, with its name.
struct ElectionTarget {
    name: ElectionName,
    election: Election,
}

/// Runs a verb on an open store, in the name of this process.
pub(crate) async fn run(
    command: &ElectionCommand,
    store: &Store,
    namespace: &Namespace,
    who: &str,
    output: &Output,
) -> Result<(), Failure> {
    // A session that is asked for nothing asks nothing of the store.
    let session = Session::open(store.clone()).map_err(|error| Failure::usage(error.to_string()))?;
    let elections = Elections::new(&session, namespace).identity(who);
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
        output.note(&format!("nobody leads '{}'", view.name));
    }
    if let Some(asked) = shown.leader.as_ref().and_then(|leader| leader.person.asked.as_ref()) {
        output.note(&asked.describe());
    }
    let leader = shown.leader.into_iter().map(|leader| {
        let left = in_seconds(leader.remaining_seconds.map(Duration::from_secs_f64));
        leader.person.into_row("leads", left)
    });
    let candidates = shown.candidates.into_iter().map(|person| person.into_row("waits", "-".to_owned()));
    let rows: Vec<Vec<String>> = leader.chain(candidates).collect();
    output.table(&["", "token", "candidate", "value", "priority", "since", "lease s"], &rows)
}

/// The name of an election, for hints.
fn shown_by(name: &ElectionName) -> String {
    format!("see `tenure election show {name}`")
}
