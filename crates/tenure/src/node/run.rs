//! The handlers that run: begun, asked to stop, ended by force, and told of when nothing of them runs any more.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tenure_core::fence::Fence;
use tenure_core::id::TaskId;
use tenure_core::revision::Token;
use tenure_core::time::Moment;
use tenure_core::worker::{Event, Outcome, Start, StopReason};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, Id, JoinSet};

use crate::handler::{AnyHandler, Context, Progress, Reins, Told, words_of};
use crate::hold::LossReason;
use crate::session::Loan;
use crate::store::Store;

/// A run of a task: the same task may run twice here, one after the other, under two claims.
type Run = (TaskId, Token);

/// All handlers of a node.
pub(super) struct Handlers {
    handler: Arc<dyn AnyHandler>,
    store: Store,
    running: JoinSet<Outcome>,
    by_task: BTreeMap<Run, Running>,
    runs: HashMap<Id, Run>,
    progress: mpsc::UnboundedSender<Progress>,
    wanted: mpsc::UnboundedReceiver<Progress>,
    /// Who waits to hear what became of its progress.
    asks: BTreeMap<u64, oneshot::Sender<Result<(), String>>>,
    asked: u64,
}

struct Running {
    reins: Reins,
    abort: AbortHandle,
}

impl Handlers {
    pub(super) fn new(handler: Arc<dyn AnyHandler>, store: Store) -> Handlers {
        let (progress, wanted) = mpsc::unbounded_channel();
        Handlers {
            handler,
            store,
            running: JoinSet::new(),
            by_task: BTreeMap::new(),
            runs: HashMap::new(),
            progress,
            wanted,
            asks: BTreeMap::new(),
            asked: 0,
        }
    }

    /// Begins a run.
    pub(super) fn start(&mut self, start: Start, fence: Fence, loan: Loan) {
        let run = (start.task.clone(), start.token);
        let (context, reins) = Context::new(start, fence, self.store.clone(), loan, self.progress.clone());
        let handler = self.handler.clone();
        // Inside the task already, so that nothing a handler does can hold up the node.
        let abort = self.running.spawn(async move { handler.begin(context).await });
        self.runs.insert(abort.id(), run.clone());
        self.by_task.insert(run, Running { reins, abort });
    }

    /// Asks a run to stop.
    pub(super) fn stop(&self, task: TaskId, token: Token, why: StopReason, until: Moment) {
        if let Some(running) = self.by_task.get(&(task, token)) {
            running.reins.stop.send_replace(Some(Told { why, until }));
        }
    }

    /// The claim of a run is lost.
    pub(super) fn lose(&self, task: TaskId, token: Token, reason: LossReason) {
        if let Some(running) = self.by_task.get(&(task, token)) {
            running.reins.validity.end(reason);
        }
    }

    /// Ends a run at its next `.await`.
    pub(super) fn abort(&self, task: TaskId, token: Token) {
        if let Some(running) = self.by_task.get(&(task, token)) {
            running.abort.abort();
        }
    }

    /// Somebody wants the progress of a run kept.
    pub(super) fn ask_checkpoint(&self, task: TaskId, token: Token) {
        if let Some(running) = self.by_task.get(&(task, token)) {
            running.reins.wanted.notify_one();
        }
    }

    /// Tells those who wait what became of their progress.
    pub(super) fn answer_checkpoint(&mut self, asks: &[u64], result: &Result<(), String>) {
        for ask in asks {
            if let Some(answer) = self.asks.remove(ask) {
                // Whoever does not wait any more does not want to know.
                let _ = answer.send(result.clone());
            }
        }
    }

    /// Waits for the next end of a run, or for progress that is to be kept.
    pub(super) async fn next(&mut self) -> Event {
        tokio::select! {
            biased;
            Some(ended) = self.running.join_next_with_id(), if !self.running.is_empty() => {
                let (id, outcome) = match ended {
                    Ok((id, outcome)) => (id, outcome),
                    Err(error) if error.is_panic() => {
                        let id = error.id();
                        (id, Outcome::Fault(words_of(&*error.into_panic())))
                    }
                    Err(error) => (error.id(), Outcome::Aborted),
                };
                let (task, token) = self.runs.remove(&id).expect("every run was noted when it began");
                if let Some(running) = self.by_task.remove(&(task.clone(), token)) {
                    // The claim is stored until the outcome is, but a clone of the context must not act under it any more.
                    running.reins.validity.end(LossReason::Released);
                }
                Event::HandlerEnded { task, token, outcome }
            }
            Some(progress) = self.wanted.recv() => {
                self.asked += 1;
                self.asks.insert(self.asked, progress.answer);
                let Progress { task, token, blob, .. } = progress;
                Event::Checkpoint { task, token, ask: self.asked, blob }
            }
        }
    }

    /// Lets those that cannot be stopped run on by themselves: the loan that each holds keeps its lease from being revoked.
    pub(super) fn abandon(&mut self) {
        self.running.detach_all();
    }
}
