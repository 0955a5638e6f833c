//! The running handlers of a worker: started, requested to stop, aborted, and reported when nothing of them runs.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tenure_core::fence::Fence;
use tenure_core::id::TaskId;
use tenure_core::revision::Token;
use tenure_core::time::Moment;
use tenure_core::worker::{HandlerEnd, HandlerStart, StopReason, WorkerInput};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, Id, JoinSet};

use crate::hold::LossReason;
use crate::session::LeaseHandle;
use crate::task::context::{Controls, SaveCheckpoint, Stop, TaskContext};
use crate::task::handler::{AnyHandler, panic_message, reported};
use crate::tenure::Tenure;

/// A run of a task: the same task may run twice on this worker, one after the other, under two claims.
type TaskRun = (TaskId, Token);

/// The handlers of a worker, by kind.
#[derive(Clone, Default)]
pub(super) struct HandlerTable {
    pub(super) by_kind: BTreeMap<String, Arc<dyn AnyHandler>>,
    /// For every other kind.
    pub(super) any: Option<Arc<dyn AnyHandler>>,
}

impl HandlerTable {
    fn of(&self, kind: &str) -> Option<&Arc<dyn AnyHandler>> {
        self.by_kind.get(kind).or(self.any.as_ref())
    }
}

/// All runs of a worker.
pub(super) struct RunningHandlers {
    routes: HandlerTable,
    tenure: Tenure,
    running: JoinSet<HandlerEnd>,
    by_task: BTreeMap<TaskRun, RunningHandler>,
    runs: HashMap<Id, TaskRun>,
    saves: mpsc::UnboundedSender<SaveCheckpoint>,
    saved: mpsc::UnboundedReceiver<SaveCheckpoint>,
    /// The handlers that wait until their checkpoint is stored.
    waiting: BTreeMap<u64, oneshot::Sender<Result<(), String>>>,
    last_save: u64,
}

struct RunningHandler {
    controls: Controls,
    abort: AbortHandle,
}

impl RunningHandlers {
    pub(super) fn new(routes: HandlerTable, tenure: Tenure) -> RunningHandlers {
        let (saves, saved) = mpsc::unbounded_channel();
        RunningHandlers {
            routes,
            tenure,
            running: JoinSet::new(),
            by_task: BTreeMap::new(),
            runs: HashMap::new(),
            saves,
            saved,
            waiting: BTreeMap::new(),
            last_save: 0,
        }
    }

    /// Starts a run.
    pub(super) fn start(&mut self, start: HandlerStart, fence: Fence, loan: LeaseHandle) {
        let run = (start.task.clone(), start.token);
        let handler = self.routes.of(start.record.kind.as_deref().unwrap_or_default()).cloned();
        let (context, controls) =
            TaskContext::new(start, fence, self.tenure.clone(), loan, self.saves.clone());
        // Inside its own task from the beginning, so that code of a handler never blocks or unwinds the driver.
        let abort = self.running.spawn(async move {
            match handler {
                Some(handler) => reported(handler.begin(context).await),
                // The kind changed between the claim and the read of the record: another worker handles it.
                None => HandlerEnd::Release,
            }
        });
        self.runs.insert(abort.id(), run.clone());
        self.by_task.insert(run, RunningHandler { controls, abort });
    }

    /// Requests a run to stop.
    pub(super) fn stop(&self, task: TaskId, token: Token, reason: StopReason, until: Moment) {
        if let Some(running) = self.by_task.get(&(task, token)) {
            running.controls.stop.send_replace(Some(Stop { reason, until }));
        }
    }

    /// The claim of a run is lost.
    pub(super) fn lose(&self, task: TaskId, token: Token, reason: LossReason) {
        if let Some(running) = self.by_task.get(&(task, token)) {
            running.controls.validity.end(reason);
        }
    }

    /// Drops a run at its next `.await`.
    pub(super) fn abort(&self, task: TaskId, token: Token) {
        if let Some(running) = self.by_task.get(&(task, token)) {
            running.abort.abort();
        }
    }

    /// Requests a checkpoint of a run.
    pub(super) fn request_checkpoint(&self, task: TaskId, token: Token) {
        if let Some(running) = self.by_task.get(&(task, token)) {
            running.controls.checkpoint_requested.notify_one();
        }
    }

    /// Reports to handlers whether their checkpoints are stored.
    pub(super) fn reply_saved(&mut self, saves: &[u64], result: &Result<(), String>) {
        for save in saves {
            if let Some(reply) = self.waiting.remove(save) {
                // A handler that was dropped does not wait any more.
                let _ = reply.send(result.clone());
            }
        }
    }

    /// Waits for the next end of a run, or for the next checkpoint.
    pub(super) async fn next(&mut self) -> WorkerInput {
        tokio::select! {
            biased;
            Some(ended) = self.running.join_next_with_id(), if !self.running.is_empty() => {
                let (id, outcome) = match ended {
                    Ok((id, outcome)) => (id, outcome),
                    Err(error) if error.is_panic() => {
                        let id = error.id();
                        (id, HandlerEnd::Fault(panic_message(&*error.into_panic())))
                    }
                    Err(error) => (error.id(), HandlerEnd::Aborted),
                };
                let (task, token) = self.runs.remove(&id).expect("every run is noted when it starts");
                if let Some(running) = self.by_task.remove(&(task.clone(), token)) {
                    // The claim is stored until the outcome is, but a clone of the context must not act under it any more.
                    running.controls.validity.end(LossReason::Released);
                }
                WorkerInput::HandlerEnded { task, token, outcome }
            }
            Some(save) = self.saved.recv() => {
                self.last_save += 1;
                self.waiting.insert(self.last_save, save.reply);
                let SaveCheckpoint { task, token, checkpoint, .. } = save;
                WorkerInput::Checkpoint { task, token, ask: self.last_save, blob: checkpoint }
            }
        }
    }

    /// Detaches handlers that do not stop: the lease handle of each keeps its lease from being revoked.
    pub(super) fn abandon(&mut self) {
        self.running.detach_all();
    }
}
