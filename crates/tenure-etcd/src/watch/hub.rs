//! Where callers create watches and dropped watchers cancel them. The task starts with the first
//! watch.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;
use tokio::time::timeout;

use super::driver::WatchDriver;
use super::queue::{self, QueueSender};
use super::router::WatchName;
use super::{WatchError, WatchFrom, WatchSpec, Watcher};
use crate::endpoints::Endpoints;
use crate::error::{Cause, Error, Invalid};

/// The watches of one client.
#[derive(Debug)]
pub(crate) struct Hub {
    inbox: Arc<WatchInbox>,
    next_name: AtomicU64,
    is_started: AtomicBool,
}

impl Hub {
    /// No stream and no task yet.
    pub(crate) fn new() -> Self {
        Self { inbox: Arc::default(), next_name: AtomicU64::new(1), is_started: AtomicBool::new(false) }
    }

    /// Returns when a server has created the watch.
    ///
    /// # Cancellation
    ///
    /// Dropped before it returns, the watch is cancelled as if the watcher had been dropped.
    pub(crate) async fn watch(&self, endpoints: &Arc<Endpoints>, spec: WatchSpec) -> Result<Watcher, Error> {
        check(&spec)?;
        if endpoints.stop().is_cancelled() {
            return Err(Error::Closed);
        }
        if !self.is_started.swap(true, Ordering::Relaxed) {
            endpoints.tasks().spawn(WatchDriver::new(Arc::clone(endpoints), Arc::clone(&self.inbox)).run());
        }
        let name = WatchName(self.next_name.fetch_add(1, Ordering::Relaxed));
        let (sender, mut receiver) = queue::queue();
        self.inbox.put(WatchCommand::Subscribe { name, spec, sender });
        // From here on, dropping the handle cancels the watch, however this call ends.
        let handle = SubscriptionHandle { name, inbox: Arc::clone(&self.inbox) };
        let opened = timeout(endpoints.config.deadline, poll_fn(|context| receiver.poll_opened(context)));
        let opened = tokio::select! {
            biased;
            () = endpoints.stop().cancelled() => return Err(Error::Closed),
            opened = opened => opened,
        };
        match opened {
            Ok(Ok(point)) => Ok(Watcher { queue: receiver, handle, point }),
            Ok(Err(Some(WatchError::Lost(error)))) => Err(error),
            Ok(Err(Some(WatchError::Compacted { at }))) => Err(Error::Compacted { at: Some(at) }),
            Ok(Err(None)) => Err(Error::Closed),
            Err(_) => Err(self.inbox.trouble().unwrap_or_else(|| {
                let waited = endpoints.config.deadline;
                Error::Unavailable(Cause::new(format!("no member took the watch within {waited:?}")))
            })),
        }
    }
}

/// Refuses what no server would accept, before anything is sent.
fn check(spec: &WatchSpec) -> Result<(), Error> {
    let from_here_on: &[u8] = b"\0";
    if spec.key.is_empty() {
        return Err(Invalid::EmptyKey.into());
    }
    if !spec.range_end.is_empty() && spec.range_end != from_here_on && spec.range_end <= spec.key {
        return Err(Invalid::Other(
            "the range of the watch is empty: its end is not above its beginning".into(),
        )
        .into());
    }
    match spec.start {
        WatchFrom::After(revision) if revision < 0 => {
            Err(Invalid::Other(format!("revision {revision} is negative; 0 is the beginning")).into())
        }
        WatchFrom::After(i64::MAX) => {
            Err(Invalid::Other("there is no revision after the last one".into()).into())
        }
        WatchFrom::After(_) | WatchFrom::Now | WatchFrom::Recent => Ok(()),
    }
}

/// The subscription of a watcher; cancelled on drop.
#[derive(Debug)]
pub(super) struct SubscriptionHandle {
    name: WatchName,
    inbox: Arc<WatchInbox>,
}

impl SubscriptionHandle {
    /// The consumer has emptied a queue that had overflowed.
    pub(super) fn drained(&self) {
        self.inbox.put(WatchCommand::Drained(self.name));
    }
}

impl Drop for SubscriptionHandle {
    fn drop(&mut self) {
        self.inbox.put(WatchCommand::Dropped(self.name));
    }
}

/// A command for the task.
#[derive(Debug)]
pub(super) enum WatchCommand {
    Subscribe { name: WatchName, spec: WatchSpec, sender: QueueSender },
    Drained(WatchName),
    Dropped(WatchName),
}

/// From all callers to the one task.
///
/// Not a channel, because dropping a watcher must queue a command without waiting. It is bounded
/// all the same: between two reads of the task it contains each of a watcher's three commands at
/// most once.
#[derive(Debug, Default)]
pub(super) struct WatchInbox {
    commands: Mutex<Vec<WatchCommand>>,
    changed: Notify,
    /// The task's last failure, for callers that reach their deadline.
    trouble: Mutex<Option<Error>>,
}

impl WatchInbox {
    fn put(&self, command: WatchCommand) {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner).push(command);
        self.changed.notify_one();
    }

    /// Waits for commands.
    pub(super) async fn wait(&self) {
        self.changed.notified().await;
    }

    pub(super) fn take(&self) -> Vec<WatchCommand> {
        std::mem::take(&mut *self.commands.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn set_trouble(&self, trouble: Option<Error>) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
    }

    fn trouble(&self) -> Option<Error> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
