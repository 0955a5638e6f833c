//! What the processes do. Each file is one kind of work, done with the public parts of the library
//! and nothing else.

pub mod election;
pub mod lock;
pub mod node_commands;
pub mod registry;
pub mod task_commands;
pub mod tasks;
pub mod ttl;

use std::future::Future;
use std::time::Duration;

use tenure::Tenure;
use tenure::store::{Op, Store, Txn};
use tenure_core::fence::Fence;
use tenure_core::layout::Layout;
use tenure_core::queue::LockMode;
use tenure_core::revision::Token;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::held::HoldTracker;
use crate::history::Fact;
use crate::processes::{SimProcess, SimProcesses};
use crate::rng::SimRng;

/// Keys that only a holder writes, so that the store's record shows whether it still held.
pub const REGISTERS: &str = "/registers/";

/// What all actors have in common. Cheap to clone.
#[derive(Clone)]
pub struct WorkloadContext {
    /// The simulated processes.
    pub processes: SimProcesses,
    /// Where everything lies.
    pub layout: Layout,
    /// The store, through a handle that no fault hits.
    pub observer: Store,
    /// Tasks and nodes, as the observer reaches them.
    pub tenure: Tenure,
    /// The run is over: all processes release what they hold.
    pub over: CancellationToken,
    /// The tasks of all actors.
    pub actors: TaskTracker,
}

impl WorkloadContext {
    /// Runs an actor until the run is over.
    pub fn act(&self, acting: impl Future<Output = ()> + Send + 'static) {
        let over = self.over.clone();
        self.actors.spawn(async move {
            tokio::select! {
                biased;
                () = over.cancelled() => {}
                () = acting => {}
            }
        });
    }

    /// Writes what only the holder may write. The audit shows the result.
    pub async fn write_guarded(&self, process: &SimProcess, subject: &str, fence: &Fence) {
        let value = fence.token.to_string();
        let txn = Txn::new().then(Op::put(format!("{REGISTERS}{subject}"), value));
        // The audit shows whether the write was applied.
        let _ = process.store.txn(fence.guard(txn)).await;
    }

    /// A process was notified that it holds; the hold is tracked until the result is dropped.
    #[must_use = "the hold ends when this is dropped"]
    pub fn track_hold(
        &self,
        process: &SimProcess,
        subject: &str,
        token: Token,
        mode: LockMode,
        is_valid: impl Fn() -> bool + Send + Sync + 'static,
    ) -> TrackedHoldGuard {
        self.processes.holds.begin(subject, &process.name, token, mode, Box::new(is_valid));
        TrackedHoldGuard { holds: self.processes.holds.clone(), subject: subject.to_owned(), token }
    }

    /// Records work under a hold, valid or not.
    pub fn acted(&self, process: &SimProcess, subject: &str, token: Token, valid: bool) {
        let (subject, process) = (subject.to_owned(), process.name.clone());
        self.processes.history.note(Fact::Acted { subject, process, token, valid });
    }
}

/// A tracked hold; ends with the work, however that ends.
pub struct TrackedHoldGuard {
    holds: HoldTracker,
    subject: String,
    token: Token,
}

impl Drop for TrackedHoldGuard {
    fn drop(&mut self) {
        self.holds.end(&self.subject, self.token);
    }
}

/// How long to wait for something: not at all, a little, or long.
fn patience(rng: &mut SimRng) -> Option<Duration> {
    match rng.below(10) {
        0 => None,
        1..4 => Some(rng.ms(1, 3_000)),
        _ => Some(rng.ms(5_000, 30_000)),
    }
}
