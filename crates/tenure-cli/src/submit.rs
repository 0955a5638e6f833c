//! `tenure submit`: submits one task, many equal ones, or a file of tasks.
//!
//! All arguments are checked before a store is opened: a file with one invalid line submits nothing.

mod batch;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tenure::Tenure;
use tenure::task::{NewTask, SubmitError, new_task_ids};
use tenure_core::id::TaskId;

use crate::duration;
use crate::failure::{Code, Failure};
use crate::mistake::{Verbs, verb_as_name};
use crate::output::Output;
use crate::task::{self, parse};

/// The `schema` of JSON output.
const SCHEMA: &str = "tenure.submit/v1";

/// The largest number that a command line plausibly means; a larger one is a typing mistake.
const COUNT_MAX: i64 = 1_000_000;

/// The number of tasks or lines that one message names.
const NAMED_MAX: usize = 10;

#[derive(Args, Debug)]
pub(crate) struct SubmitArgs {
    /// The task's id; without one, a new id is generated and printed.
    #[arg(conflicts_with = "file")]
    id: Option<String>,
    /// The task's data, passed to its handler.
    #[arg(long, value_name = "JSON", conflicts_with = "file")]
    props: Option<String>,
    /// The kind of work; nodes claim tasks by kind.
    #[arg(long, value_name = "K", conflicts_with = "file")]
    kind: Option<String>,
    /// A label; `weight` is what the balancer `weighted` counts. May be given several times.
    #[arg(long = "label", value_name = "K=V", value_parser = parse_label, conflicts_with = "file")]
    labels: Vec<(String, String)>,
    /// Submit this many equal tasks: ID-0, ID-1 and so on, or with generated ids.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(1..=COUNT_MAX), conflicts_with = "file")]
    count: Option<i64>,
    /// Submit the tasks of a file, one JSON object per line: {"id", "kind", "props", "labels"}, all of them optional. `-` is stdin.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Wait until every task has ended, at most DUR. Exit 0 if all completed, 10 if one failed, 11 if one was killed, 8 if it takes
    /// longer.
    #[arg(long, value_name = "DUR", value_parser = duration::parse, num_args = 0..=1, require_equals = true)]
    #[expect(
        clippy::option_option,
        reason = "clap reports with it whether the flag was given, and whether it had a value"
    )]
    wait: Option<Option<Duration>>,
}

/// Verbs of `tenure task`. They are ids of tasks only with `--` or a flag.
const VERBS: Verbs = &[
    ("ls", "tenure task ls"),
    ("list", "tenure task ls"),
    ("show", "tenure task show NAME"),
    ("get", "tenure task show NAME"),
    ("help", "tenure submit --help"),
];

impl SubmitArgs {
    /// The failure if a verb was given as the id.
    pub(crate) fn misread(&self) -> Option<Failure> {
        let has_flags =
            self.props.is_some() || self.kind.is_some() || !self.labels.is_empty() || self.count.is_some();
        let id = self.id.as_deref().filter(|_| !has_flags)?;
        verb_as_name(id, &[], "`tenure submit` would submit a task with this id", VERBS)
    }
}

/// The checked tasks to submit.
pub(crate) struct PreparedTasks {
    tasks: Vec<(TaskId, NewTask)>,
    /// How long to wait for their ends; `None` for not at all.
    wait: Option<Duration>,
}

/// Reads and checks the arguments.
pub(crate) async fn prepare(args: &SubmitArgs) -> Result<PreparedTasks, Failure> {
    let wait = args.wait.map(|within| within.unwrap_or(Duration::MAX));
    let tasks = match &args.file {
        Some(path) => batch::read(path).await?,
        None => equal_tasks(args)?,
    };
    Ok(PreparedTasks { tasks, wait })
}

fn equal_tasks(args: &SubmitArgs) -> Result<Vec<(TaskId, NewTask)>, Failure> {
    let ids: Vec<TaskId> = match (&args.id, args.count) {
        (Some(id), None) => vec![parse(id)?],
        (Some(id), Some(count)) => {
            parse(id)?;
            (0..count).map(|n| parse(&format!("{id}-{n}"))).collect::<Result<_, _>>()?
        }
        (None, count) => new_task_ids().take(usize::try_from(count.unwrap_or(1)).unwrap_or(1)).collect(),
    };
    let labels: BTreeMap<&String, &String> = args.labels.iter().map(|(name, value)| (name, value)).collect();
    if labels.len() < args.labels.len() {
        return Err(Failure::usage("a label is given twice").hint("leave one of them out"));
    }
    let new_task = |id: TaskId| {
        let mut task = NewTask::new(args.kind.as_deref().unwrap_or_default()).id(&id);
        for (name, value) in &args.labels {
            task = task.label(name, value);
        }
        task.check().map_err(|error| {
            Failure::usage(format!("{error}; nothing was submitted"))
                .hint("write kinds and labels as one line of printable characters, as in --kind mail")
        })?;
        if let Some(props) = &args.props {
            task = task.props_json(props);
            task.check().map_err(|error| {
                Failure::usage(format!("--props: {error}"))
                    .hint(r#"quote it for the shell, as in --props '{"to":"a@example.org"}'"#)
            })?;
        }
        Ok((id, task))
    };
    ids.into_iter().map(new_task).collect()
}

fn parse_label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        Some(_) => Err("the name before '=' is missing".to_owned()),
        None => Err(format!("{text:?} has no '='; write it as {text}=VALUE")),
    }
}

/// Submits the tasks, and waits for their ends if `--wait` was given.
pub(crate) async fn run(prepared: PreparedTasks, tenure: &Tenure, output: &Output) -> Result<(), Failure> {
    let PreparedTasks { tasks, wait } = prepared;
    let (ids, tasks): (Vec<TaskId>, Vec<NewTask>) = tasks.into_iter().unzip();
    let results = tenure.submit_all(tasks).await;
    let mut summary = SubmitResult::default();
    for (id, result) in ids.into_iter().zip(results) {
        match result {
            Ok(_) => summary.accepted.push(id),
            Err(error) => {
                if let SubmitError::Finished { state } = error {
                    summary.ended.push(EndedTask { id: id.to_string(), state: state.as_str() });
                }
                summary.refused.push((id, error));
            }
        }
    }
    summary.report(output)?;
    if let Some(failure) = summary.failure() {
        return Err(failure);
    }
    match wait {
        None => Ok(()),
        Some(within) => task::wait_for(summary.accepted, within, tenure, output).await,
    }
}

/// The result of all submissions.
#[derive(Default)]
struct SubmitResult {
    accepted: Vec<TaskId>,
    /// The refused tasks that are finished.
    ended: Vec<EndedTask>,
    refused: Vec<(TaskId, SubmitError)>,
}

/// A task that ended before it was submitted again.
#[derive(Serialize)]
struct EndedTask {
    id: String,
    state: &'static str,
}

impl SubmitResult {
    fn report(&self, output: &Output) -> Result<(), Failure> {
        #[derive(Serialize)]
        struct SubmitReport<'a> {
            schema: &'static str,
            submitted: usize,
            ids: Vec<&'a str>,
            ended: &'a [EndedTask],
        }
        if self.accepted.is_empty() {
            return Ok(());
        }
        let ids: Vec<&str> = self.accepted.iter().map(TaskId::as_str).collect();
        if output.is_json {
            return output.object(&SubmitReport {
                schema: SCHEMA,
                submitted: ids.len(),
                ids,
                ended: &self.ended,
            });
        }
        let rows: Vec<Vec<String>> = ids.into_iter().map(|id| vec![id.to_owned()]).collect();
        output.table(&["id"], &rows)
    }

    /// The failure to report: one that concerns all tasks, such as a lost store, before one that concerns a single id.
    fn failure(&self) -> Option<Failure> {
        let is_conflict =
            |error: &SubmitError| matches!(error, SubmitError::Exists { .. } | SubmitError::Finished { .. });
        let first = self.refused.iter().find(|(_, error)| !is_conflict(error)).or(self.refused.first());
        let (id, error) = first?;
        let failure = refused(id, error);
        Some(match self.refused.len() {
            1 if self.accepted.is_empty() => failure,
            len => {
                let names: Vec<&str> =
                    self.refused.iter().take(NAMED_MAX).map(|(id, _)| id.as_str()).collect();
                let more = if len > NAMED_MAX { ", …" } else { "" };
                let all = len + self.accepted.len();
                let what = format!("{len} of {all} tasks were not submitted ({}{more})", names.join(", "));
                failure.while_doing(&what)
            }
        })
    }
}

fn refused(id: &TaskId, error: &SubmitError) -> Failure {
    match error {
        SubmitError::Finished { state } => Failure::new(
            Code::Conflict,
            format!("a task '{id}' is {state} already, so nothing was submitted for it"),
        )
        .hint(format!(
            "run it again with `tenure task retry {id}`, or free the id with `tenure task forget {id}`"
        )),
        SubmitError::Exists { .. } => Failure::new(
            Code::Conflict,
            format!("a task '{id}' exists already, so it was not submitted again"),
        )
        .hint(format!(
            "see it with `tenure task show {id}`, take another id, or delete it with `tenure task rm {id}`"
        )),
        SubmitError::UnreadableState(why) => {
            let message = format!("an earlier task '{id}' left a state that cannot be read: {why}");
            Failure::new(Code::Conflict, message)
                .hint(format!("delete that state with `tenure task forget {id}`"))
        }
        SubmitError::Ambiguous(error) => {
            let message = format!("'{id}' may or may not have been submitted: {error}");
            Failure::new(Code::Ambiguous, message).hint(format!(
                "see whether it exists with `tenure task show {id}` before you submit it again"
            ))
        }
        SubmitError::Store(error) => {
            Failure::from(error.clone()).while_doing(&format!("'{id}' was not submitted"))
        }
        other => Failure::new(Code::Failed, format!("'{id}' was not submitted: {other}")),
    }
}
