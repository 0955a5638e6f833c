//! What came of a command, for whoever waits for it.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use tenure_core::name::{CommandId, NodeId};
use tenure_core::record::{CommandOutcome, CommandRecord, Record, ResultRecord, WallTime};
use tenure_core::task::StateKind;
use thiserror::Error;
use tokio::time::Instant;

use super::lease::Leftovers;
use super::patience::answered;
use crate::feed::{Feed, FeedItem};
use crate::store::{KeyValue, LeaseId, Op, OpReply, Selection, Store, StoreError, Txn, TxnReply};

/// A command that was sent.
#[derive(Clone)]
pub struct Sent {
    pub(super) store: Store,
    pub(super) id: CommandId,
    /// The command that nobody had handled yet, in whose place this one is now.
    pub replaced: Option<Replaced>,
    pub(super) command: Bytes,
    pub(super) result: Bytes,
    pub(super) lease: Option<LeaseId>,
    pub(super) leftovers: Leftovers,
    pub(super) sent_at: Instant,
}

/// A command that was replaced by a later one before anybody had handled it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Replaced {
    /// Its id, if it had one.
    pub id: Option<CommandId>,
    /// What it asked for; none if it could not be read.
    pub command: Option<String>,
    /// Who had sent it.
    pub by: String,
    /// When.
    pub sent_at: WallTime,
}

/// What came of a command.
#[derive(Clone, PartialEq, Debug)]
pub struct Handled {
    /// Who handled it; of one that was replaced, who replaced it.
    pub by: NodeId,
    /// What came of it.
    pub outcome: CommandOutcome,
    /// How the task stood before.
    pub from: Option<StateKind>,
    /// How it stood afterwards.
    pub to: Option<StateKind>,
    /// Why nothing came of it, or what else is to be said.
    pub why: Option<String>,
    /// The whole result, with what newer programs say in it.
    pub record: ResultRecord,
    /// How long it took from sending until this was seen.
    pub took: Duration,
}

impl fmt::Display for Handled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = match self.outcome {
            CommandOutcome::Done => "handled",
            other => other.as_str(),
        };
        write!(f, "{verb} by {} in {} ms", self.by, self.took.as_millis())
    }
}

/// Why it is not known what came of a command.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WaitCommandError {
    /// Nobody has handled it yet. It still waits, and may be handled later.
    #[error("nobody has handled the command within {0:?}")]
    Deadline(Duration),
    /// It is gone without a result: its time was over, or somebody deleted it. It will not be handled.
    #[error("the command is gone, and nobody has handled it")]
    Gone,
    /// The store says no more.
    #[error("it cannot be known what came of the command")]
    Store(#[source] StoreError),
}

impl Sent {
    /// The command's id.
    pub fn id(&self) -> &CommandId {
        &self.id
    }

    /// Waits until somebody has handled the command.
    ///
    /// # Cancellation
    ///
    /// Dropping the future changes nothing: the command still waits, and so can you, again.
    ///
    /// # Errors
    ///
    /// See [`WaitCommandError`].
    pub async fn wait(&self, within: Duration) -> Result<Handled, WaitCommandError> {
        match tokio::time::timeout(within, self.handled()).await {
            Ok(handled) => handled,
            Err(_) => Err(WaitCommandError::Deadline(within)),
        }
    }

    async fn handled(&self) -> Result<Handled, WaitCommandError> {
        let open = |key: &Bytes| {
            Feed::open(self.store.clone(), Selection::key(key.clone())).map_err(WaitCommandError::Store)
        };
        // The command goes in the step in which its result comes; without a result it has expired.
        let (mut results, mut commands) = (open(&self.result)?, open(&self.command)?);
        let read = Txn::from(Op::get(self.result.clone())).then(Op::get(self.command.clone()));
        loop {
            let item = tokio::select! {
                biased;
                item = results.next() => item,
                item = commands.next() => item,
            };
            match item {
                Some(Ok(FeedItem::Whole(_))) => {}
                Some(Ok(FeedItem::Begin | FeedItem::Put(_) | FeedItem::Delete { .. })) => continue,
                Some(Err(error)) => return Err(WaitCommandError::Store(error)),
                None => return Err(WaitCommandError::Store(StoreError::Closed)),
            }
            let reply = answered(|| self.store.txn(read.clone())).await.map_err(WaitCommandError::Store)?;
            let [result, command] = pair_of(&reply);
            if let Some(result) = result {
                return self.read(result).await;
            }
            if !holds(command, &self.id) {
                self.leftovers.end(&self.store, self.lease).await;
                return Err(WaitCommandError::Gone);
            }
        }
    }

    async fn read(&self, result: &KeyValue) -> Result<Handled, WaitCommandError> {
        let took = self.sent_at.elapsed();
        let record = ResultRecord::decode(&result.value).map_err(|bad| {
            WaitCommandError::Store(StoreError::Corrupt(format!("a result is {}", bad.reason())))
        })?;
        // Whoever has handled it ends its lease too; but that may be an older program, or one that was killed at once.
        self.leftovers.end(&self.store, self.lease).await;
        Ok(Handled {
            by: record.handled_by.clone(),
            outcome: record.outcome,
            from: record.from,
            to: record.to,
            why: record.why.clone(),
            record,
            took,
        })
    }
}

impl fmt::Debug for Sent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sent({}, replaced {:?})", self.id, self.replaced)
    }
}

impl Replaced {
    pub(super) fn read(pair: &KeyValue) -> Replaced {
        match CommandRecord::decode(&pair.value) {
            Ok(record) => Replaced {
                id: record.id,
                command: Some(record.command),
                by: record.by,
                sent_at: record.sent_at,
            },
            Err(_) => Replaced { id: None, command: None, by: String::new(), sent_at: WallTime::default() },
        }
    }
}

/// Whether this is the command with that id.
pub(super) fn holds(pair: Option<&KeyValue>, id: &CommandId) -> bool {
    pair.is_some_and(|pair| Replaced::read(pair).id.as_ref() == Some(id))
}

fn pair_of(reply: &TxnReply) -> [Option<&KeyValue>; 2] {
    let at = |index: usize| match reply.results.get(index) {
        Some(OpReply::Get(page)) => page.pairs.first(),
        Some(OpReply::Put | OpReply::Delete { .. }) | None => None,
    };
    [at(0), at(1)]
}

pub(super) fn found_any(reply: &TxnReply) -> bool {
    pair_of(reply).iter().any(Option::is_some)
}
