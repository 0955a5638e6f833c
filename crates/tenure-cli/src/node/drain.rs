//! `node drain`: waits until a node owns no tasks and has left, and reports how many are left.

use std::time::Duration;

use clap::Args;
use futures_util::StreamExt;
use serde::Serialize;
use tenure::Tenure;
use tenure::feed::{Feed, FeedItem};
use tenure::store::{Selection, StoreError};
use tenure::task::{CommandError, CommandReply, PendingCommand};
use tenure_core::board::Board;
use tenure_core::command::{AfterDrain, NodeCommand as Command};
use tenure_core::id::NodeId;
use tenure_core::layout::{Key, Layout};
use tokio::time::Instant;

use super::SCHEMA;
use super::command::{no_reply, send};
use crate::duration;
use crate::failure::{Code, Failure};
use crate::output::Output;
use crate::task::acknowledged;

/// The interval of progress reports where each is a line of its own. Shorter, and a log fills up; longer, and a script looks stuck.
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// How long the first snapshot of the tasks may take: a hundred thousand of them take less.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long to wait for the reply of a node that has left: the node wrote it before it left, so only the watch can be late.
const LAST_REPLY_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Args, Debug)]
pub(crate) struct DrainArgs {
    /// The node's id.
    pub(super) id: String,
    /// How long to wait until the node has left [default: no limit]. The node goes on draining after that.
    #[arg(long, value_name = "DUR", value_parser = duration::parse, conflicts_with = "no_wait")]
    wait: Option<Duration>,
    /// Do not wait.
    #[arg(long)]
    no_wait: bool,
    /// Keep the id frozen: a node that starts with it later claims no tasks before `tenure node unfreeze`.
    #[arg(long)]
    stay_frozen: bool,
}

impl DrainArgs {
    /// How long to wait; `None` for not at all.
    pub(super) fn within(&self) -> Option<Duration> {
        (!self.no_wait).then(|| self.wait.unwrap_or(Duration::MAX))
    }

    /// The command to send.
    pub(super) fn command(&self) -> Command {
        Command::Drain(if self.stay_frozen { AfterDrain::StayFrozen } else { AfterDrain::TakeTasks })
    }
}

#[derive(Serialize)]
struct DrainReport<'a> {
    schema: &'static str,
    id: &'a str,
    message: &'static str,
    /// Whether the node owns no task and has left.
    drained: bool,
    /// How many tasks the node owned when the command was sent.
    tasks: Option<u64>,
    acknowledged_by: Option<&'a str>,
    ack_seconds: Option<f64>,
    command: &'a str,
}

pub(super) async fn drain(
    id: &NodeId,
    args: &DrainArgs,
    tenure: &Tenure,
    layout: &Layout,
    output: &Output,
) -> Result<(), Failure> {
    let Some(within) = args.within() else {
        let sent = send(id, args.command(), tenure).await?;
        output.note(&format!("drain was sent to node '{id}'; follow it with `tenure node ls`"));
        return report(id, &sent, None, output);
    };
    let mut watch = DrainWatch::open(id, layout, tenure, output).await?;
    let sent = send(id, args.command(), tenure).await?;
    watch.report_left();
    let drained = tokio::time::timeout(within, watch.until_gone(tenure, &sent)).await;
    output.clear_status();
    let (left, had) = (watch.left, watch.had);
    let handled = drained.unwrap_or_else(|_| {
        let message = format!(
            "node '{id}' has not left within {}; it still owns {left} tasks",
            duration::format(within)
        );
        Err(Failure::new(Code::TimedOut, message)
            .hint(format!("it goes on draining; see its tasks with `tenure node show {id}`")))
    })?;
    report(id, &sent, Some((&handled, had)), output)
}

fn report(
    id: &NodeId,
    sent: &PendingCommand,
    handled: Option<(&CommandReply, u64)>,
    output: &Output,
) -> Result<(), Failure> {
    if output.is_json {
        return output.object(&DrainReport {
            schema: SCHEMA,
            id: id.as_str(),
            message: "drain",
            drained: handled.is_some(),
            tasks: handled.map(|(_, tasks)| tasks),
            acknowledged_by: handled.map(|(handled, _)| handled.by.as_str()),
            ack_seconds: handled.map(|(handled, _)| handled.took.as_secs_f64()),
            command: sent.id().as_str(),
        });
    }
    let Some((handled, tasks)) = handled else { return output.record([id.as_str(), "drain", "-", "-"]) };
    output.note(&format!("node '{id}' released {tasks} tasks and has left"));
    output.record([id.as_str(), "drain", handled.by.as_str(), &format!("{} ms", handled.took.as_millis())])
}

/// The view of a draining node.
struct DrainWatch<'a> {
    id: &'a NodeId,
    layout: &'a Layout,
    output: &'a Output,
    tasks: Feed,
    board: Board,
    /// How many tasks the node owned before the command was sent.
    had: u64,
    /// How many tasks the node owns now.
    left: u64,
    /// The last reported number, and when it was reported.
    reported: Option<(u64, Instant)>,
}

/// An event of the wait.
enum DrainEvent {
    Handled(Result<CommandReply, CommandError>),
    Node(Option<Result<FeedItem, StoreError>>),
    Task(Option<Result<FeedItem, StoreError>>),
}

impl<'a> DrainWatch<'a> {
    /// Reads the node's tasks before the command is sent, so that the report contains how many it owned.
    async fn open(
        id: &'a NodeId,
        layout: &'a Layout,
        tenure: &Tenure,
        output: &'a Output,
    ) -> Result<DrainWatch<'a>, Failure> {
        let tasks = Feed::open(tenure.store().clone(), layout.tasks())?;
        let board = Board::new(layout.clone());
        let mut watch = DrainWatch { id, layout, output, tasks, board, had: 0, left: 0, reported: None };
        let first = async {
            while !watch.board.is_fresh() {
                let item = watch.tasks.next().await;
                watch.apply(item)?;
            }
            Ok::<_, Failure>(())
        };
        tokio::time::timeout(SNAPSHOT_TIMEOUT, first).await.map_err(|_| {
            Failure::new(
                Code::Unavailable,
                format!(
                    "the tasks of node '{id}' were not read within {SNAPSHOT_TIMEOUT:?}, so drain was not sent"
                ),
            )
            .hint("run `tenure doctor`")
        })??;
        watch.had = watch.left;
        Ok(watch)
    }

    async fn until_gone(&mut self, tenure: &Tenure, sent: &PendingCommand) -> Result<CommandReply, Failure> {
        let store = tenure.store();
        let key = self.layout.encode(&Key::Node(self.id.clone()));
        let mut nodes = Feed::open(store.clone(), Selection::key(key))?;
        let mut reply = sent.reply().timeout(Duration::MAX).into_future();
        let mut handled: Option<CommandReply> = None;
        // The feed delivers a snapshot first. Until it is complete, a missing key proves nothing.
        let (mut is_here, mut is_gone) = (false, false);
        loop {
            if let (Some(handled), true) = (&handled, is_gone) {
                self.wait_until_empty().await?;
                return Ok(handled.clone());
            }
            if is_gone && handled.is_none() {
                let last = tokio::time::timeout(LAST_REPLY_TIMEOUT, reply.as_mut()).await;
                handled = Some(self.drain_reply(last.map_err(|_| self.ended_without_reply())?)?);
                continue;
            }
            let event = tokio::select! {
                biased;
                reply = reply.as_mut(), if handled.is_none() => DrainEvent::Handled(reply),
                item = nodes.next() => DrainEvent::Node(item),
                item = self.tasks.next() => DrainEvent::Task(item),
            };
            match event {
                DrainEvent::Handled(reply) => handled = Some(self.drain_reply(reply)?),
                DrainEvent::Node(item) => match item.unwrap_or(Err(StoreError::Closed))? {
                    FeedItem::SnapshotBegin => {}
                    FeedItem::Put(_) => is_here = true,
                    FeedItem::Delete { .. } => is_here = false,
                    FeedItem::Synced(_) => is_gone = !is_here,
                },
                DrainEvent::Task(item) => {
                    self.apply(item)?;
                    self.report_left();
                }
            }
        }
    }

    /// Waits until the task feed shows no task of the node: it may lag behind the node feed.
    async fn wait_until_empty(&mut self) -> Result<(), Failure> {
        let empty = async {
            while self.left > 0 {
                let item = self.tasks.next().await;
                self.apply(item)?;
            }
            Ok(())
        };
        let seen = tokio::time::timeout(LAST_REPLY_TIMEOUT, empty).await;
        self.report_left();
        seen.unwrap_or(Ok(()))
    }

    fn drain_reply(&self, reply: Result<CommandReply, CommandError>) -> Result<CommandReply, Failure> {
        let handled = reply.map_err(|error| no_reply(self.id, "drain", error))?;
        acknowledged(&format!("drain of node '{}'", self.id), handled)
            .map_err(|failure| failure.hint(format!("see `tenure node show {}`", self.id)))
    }

    fn ended_without_reply(&self) -> Failure {
        let message = format!("node '{}' has left without a reply to drain", self.id);
        Failure::new(Code::Conflict, message).hint(
            "other nodes claim its tasks when its lease ends; the command expires with it, so a node that starts again claims tasks",
        )
    }

    /// Applies an item of the task feed.
    fn apply(&mut self, item: Option<Result<FeedItem, StoreError>>) -> Result<(), Failure> {
        self.board.handle_item(item.unwrap_or(Err(StoreError::Closed))?, &mut Vec::new());
        if self.board.is_fresh() {
            self.left = self.board.load_of(self.id).tasks;
        }
        Ok(())
    }

    /// Reports how many tasks are left, if the number changed and a report is due.
    fn report_left(&mut self) {
        let left = self.left;
        let is_due = match self.reported {
            None => true,
            Some((reported, _)) if reported == left => false,
            Some((_, at)) => self.output.has_status() || left == 0 || at.elapsed() >= REPORT_EVERY,
        };
        if is_due {
            self.reported = Some((left, Instant::now()));
            let tasks = if left == 1 { "task" } else { "tasks" };
            self.output.status(&format!("draining '{}': {left} {tasks} left", self.id));
        }
    }
}
