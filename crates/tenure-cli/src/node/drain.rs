//! `node drain`: until a node is empty and gone, with how many tasks are left.

use std::time::Duration;

use clap::Args;
use futures_util::StreamExt;
use serde::Serialize;
use tenure::client::{Client, Handled, Sent, WaitCommandError};
use tenure::feed::{Feed, FeedItem};
use tenure::store::{Selection, StoreError};
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

/// How often it is said how many are left where every word is a line of its own.
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// How long the first look at the tasks may take: a hundred thousand of them are shown in less.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long the answer of a node that is gone may take: it was written before it went.
const LAST_REPLY_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Args, Debug)]
pub(crate) struct DrainArgs {
    /// The node's id.
    pub(super) id: String,
    /// How long to wait until it is empty and gone; as long as it takes if not given. It drains after that too.
    #[arg(long, value_name = "DUR", value_parser = duration::parse, conflicts_with = "no_wait")]
    wait: Option<Duration>,
    /// Do not wait.
    #[arg(long)]
    no_wait: bool,
    /// Keep the id frozen: a node that starts with it later takes no tasks before `tenure node unfreeze`.
    #[arg(long)]
    stay_frozen: bool,
}

impl DrainArgs {
    /// How long to wait; not at all if none.
    pub(super) fn within(&self) -> Option<Duration> {
        (!self.no_wait).then(|| self.wait.unwrap_or(Duration::MAX))
    }

    /// The command to send.
    pub(super) fn order(&self) -> Command {
        Command::Drain(if self.stay_frozen { AfterDrain::StayFrozen } else { AfterDrain::TakeTasks })
    }
}

#[derive(Serialize)]
struct DrainReport<'a> {
    schema: &'static str,
    id: &'a str,
    message: &'static str,
    /// Whether it is empty and gone.
    drained: bool,
    /// How many tasks it had when it was asked.
    tasks: Option<u64>,
    acknowledged_by: Option<&'a str>,
    ack_seconds: Option<f64>,
    command: &'a str,
}

pub(super) async fn drain(
    id: &NodeId,
    args: &DrainArgs,
    client: &Client,
    layout: &Layout,
    output: &Output,
) -> Result<(), Failure> {
    let Some(within) = args.within() else {
        let sent = send(id, args.order(), client).await?;
        output.note(&format!("drain was sent to node '{id}'; see it go with `tenure node ls`"));
        return report(id, &sent, None, output);
    };
    let mut watch = DrainWatch::open(id, layout, client, output).await?;
    let sent = send(id, args.order(), client).await?;
    watch.report_left();
    let drained = tokio::time::timeout(within, watch.until_gone(client, &sent)).await;
    output.clear_status();
    let (left, had) = (watch.left, watch.had);
    let handled = drained.unwrap_or_else(|_| {
        let message = format!(
            "node '{id}' still has {left} tasks or is still there, {} after it was asked",
            duration::format(within)
        );
        Err(Failure::new(Code::TimedOut, message)
            .hint(format!("it goes on draining; see what it has with `tenure node show {id}`")))
    })?;
    report(id, &sent, Some((&handled, had)), output)
}

fn report(
    id: &NodeId,
    sent: &Sent,
    handled: Option<(&Handled, u64)>,
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
    output.note(&format!("node '{id}' is empty and gone; it gave {tasks} tasks away"));
    output.record([id.as_str(), "drain", handled.by.as_str(), &format!("{} ms", handled.took.as_millis())])
}

/// What is seen of a node that drains.
struct DrainWatch<'a> {
    id: &'a NodeId,
    layout: &'a Layout,
    output: &'a Output,
    tasks: Feed,
    board: Board,
    /// How many tasks it had before it was asked.
    had: u64,
    /// How many it has.
    left: u64,
    /// What was last said of that, and when.
    told: Option<(u64, Instant)>,
}

/// What happened.
enum DrainEvent {
    Handled(Result<Handled, WaitCommandError>),
    Node(Option<Result<FeedItem, StoreError>>),
    Task(Option<Result<FeedItem, StoreError>>),
}

impl<'a> DrainWatch<'a> {
    /// Looks at what the node has, before it begins to give that away.
    async fn open(
        id: &'a NodeId,
        layout: &'a Layout,
        client: &Client,
        output: &'a Output,
    ) -> Result<DrainWatch<'a>, Failure> {
        let tasks = Feed::open(client.store().clone(), layout.tasks())?;
        let board = Board::new(layout.clone());
        let mut watch = DrainWatch { id, layout, output, tasks, board, had: 0, left: 0, told: None };
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
                    "the tasks of node '{id}' were not shown within {SNAPSHOT_TIMEOUT:?}, so it was asked nothing"
                ),
            )
            .hint("run `tenure doctor`")
        })??;
        watch.had = watch.left;
        Ok(watch)
    }

    async fn until_gone(&mut self, client: &Client, sent: &Sent) -> Result<Handled, Failure> {
        let store = client.store();
        let key = self.layout.encode(&Key::Node(self.id.clone()));
        let mut nodes = Feed::open(store.clone(), Selection::key(key))?;
        let mut answer = Box::pin(sent.wait(Duration::MAX));
        let mut handled: Option<Handled> = None;
        // Before the first whole picture nobody knows; with it, a key that is there was told.
        let (mut is_here, mut is_gone) = (false, false);
        loop {
            if let (Some(handled), true) = (&handled, is_gone) {
                self.wait_until_empty().await?;
                return Ok(handled.clone());
            }
            if is_gone && handled.is_none() {
                let last = tokio::time::timeout(LAST_REPLY_TIMEOUT, answer.as_mut()).await;
                handled = Some(self.drain_reply(last.map_err(|_| self.ended_without_reply())?)?);
                continue;
            }
            let event = tokio::select! {
                biased;
                answer = answer.as_mut(), if handled.is_none() => DrainEvent::Handled(answer),
                item = nodes.next() => DrainEvent::Node(item),
                item = self.tasks.next() => DrainEvent::Task(item),
            };
            match event {
                DrainEvent::Handled(answer) => handled = Some(self.drain_reply(answer)?),
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

    /// The feed of the tasks may be behind that of the nodes.
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

    fn drain_reply(&self, answer: Result<Handled, WaitCommandError>) -> Result<Handled, Failure> {
        let handled = answer.map_err(|error| no_reply(self.id, "drain", error))?;
        acknowledged(&format!("drain of node '{}'", self.id), handled)
            .map_err(|failure| failure.hint(format!("see `tenure node show {}`", self.id)))
    }

    fn ended_without_reply(&self) -> Failure {
        let message = format!("node '{}' is gone, but has not said that it was drained", self.id);
        Failure::new(Code::Conflict, message).hint(
            "its tasks go to others when its lease ends; the command expires with it, so a node that comes back takes tasks",
        )
    }

    /// Something came from the feed of the tasks.
    fn apply(&mut self, item: Option<Result<FeedItem, StoreError>>) -> Result<(), Failure> {
        self.board.handle_item(item.unwrap_or(Err(StoreError::Closed))?, &mut Vec::new());
        if self.board.is_fresh() {
            self.left = self.board.load_of(self.id).tasks;
        }
        Ok(())
    }

    /// Says how many tasks are left, if that is news.
    fn report_left(&mut self) {
        let left = self.left;
        let is_due = match self.told {
            None => true,
            Some((told, _)) if told == left => false,
            Some((_, at)) => self.output.has_status() || left == 0 || at.elapsed() >= REPORT_EVERY,
        };
        if is_due {
            self.told = Some((left, Instant::now()));
            let tasks = if left == 1 { "task" } else { "tasks" };
            self.output.status(&format!("draining '{}': {left} {tasks} left", self.id));
        }
    }
}
