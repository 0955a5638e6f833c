//! One process of the world: its machine, its session, and the handlers that run in it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;

use super::world::{TTL, WorkerWorld, WorldItem};
use crate::balance::Fair;
use crate::id::TaskId;
use crate::keyspace::WatchId;
use crate::layout::{Key, Layout};
use crate::lease::LeaseId;
use crate::record::{MemberRecord, MemberState, NodeLoad, Record};
use crate::revision::Token;
use crate::snapshot::SnapshotDiff;
use crate::task::TaskStatus;
use crate::task::retry::Retry;
use crate::time::Moment;
use crate::worker::{
    FeedId, HandlerEnd, HandlerStart, RetentionStep, WorkerConfig, WorkerEvent, WorkerInput, WorkerMachine,
};

/// How handlers behave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum HandlerScript {
    /// They run until they are asked to stop, and then return immediately.
    Obedient,
    /// They hear neither stop nor abort.
    Deaf,
    /// They hear an abort alone.
    Stubborn,
    /// At random.
    Random,
}

/// A handler that runs.
#[derive(Clone, Debug)]
pub(super) struct HandlerRun {
    pub(super) token: Token,
    pub(super) handling: HandlerScript,
    pub(super) is_stopped: bool,
    pub(super) start: HandlerStart,
    /// Since when its claim is not in the store any more.
    pub(super) unowned_since: Option<Moment>,
}

pub(super) struct WorkerProcess {
    pub(super) config: WorkerConfig,
    pub(super) machine: WorkerMachine,
    /// Which life of the process this is; what belongs to an earlier one is dropped.
    pub(super) life: u64,
    pub(super) lease: Option<LeaseId>,
    pub(super) incarnation: Option<Token>,
    pub(super) valid_until: Option<Moment>,
    /// Nothing reaches the store from here, or comes back.
    pub(super) is_cut: bool,
    pub(super) wall_skew: i64,
    /// When its driver wakes if no other input arrives, as the machine last requested.
    pub(super) wake: Option<Moment>,
    pub(super) watches: BTreeMap<FeedId, WatchId>,
    pub(super) pictures: BTreeMap<FeedId, SnapshotDiff>,
    pub(super) polls: BTreeSet<FeedId>,
    pub(super) handlers: BTreeMap<TaskId, HandlerRun>,
    pub(super) leases_of: BTreeMap<String, LeaseId>,
    /// How many claims each of its requests had.
    pub(super) requests: Vec<usize>,
    /// The steps of retention that it requested.
    pub(super) retained: Vec<RetentionStep>,
    pub(super) announced: MemberState,
    pub(super) load: NodeLoad,
    pub(super) events: Vec<WorkerEvent>,
    pub(super) nudged: Vec<TaskId>,
    pub(super) kept: Vec<(TaskId, u64, Result<(), String>)>,
    pub(super) finished: Option<Vec<TaskId>>,
    pub(super) starts: Vec<(TaskId, Token, Moment)>,
}

impl WorkerProcess {
    pub(super) fn new(config: WorkerConfig, layout: Layout) -> WorkerProcess {
        let machine =
            WorkerMachine::new(config.clone(), layout, Box::new(Fair::new()), Box::new(Retry::default()));
        WorkerProcess {
            config,
            machine,
            life: 0,
            lease: None,
            incarnation: None,
            valid_until: None,
            is_cut: false,
            wall_skew: 0,
            wake: None,
            watches: BTreeMap::new(),
            pictures: BTreeMap::new(),
            polls: BTreeSet::new(),
            handlers: BTreeMap::new(),
            leases_of: BTreeMap::new(),
            requests: Vec::new(),
            retained: Vec::new(),
            announced: MemberState::Starting,
            load: NodeLoad::default(),
            events: Vec::new(),
            nudged: Vec::new(),
            kept: Vec::new(),
            finished: None,
            starts: Vec::new(),
        }
    }

    pub(super) fn node_record(&self) -> Bytes {
        let mut record = MemberRecord::decode(b"{}").unwrap();
        record.state = self.announced;
        record.accepts = Some(self.config.selector.clone());
        record.capacity = self.config.capacity.map(|capacity| capacity as u64);
        record.load = Some(self.load);
        record.encode()
    }

    /// When its session is lost if nothing is renewed.
    pub(super) fn lapses_at(&self) -> Option<Moment> {
        self.valid_until
    }
}

impl WorkerWorld {
    pub(super) fn start(&mut self, n: usize, start: HandlerStart) {
        let (task, token) = (start.task.clone(), start.token);
        self.check_start(n, &start);
        let handling = match self.handling {
            HandlerScript::Random if self.rng.one_in(40) => HandlerScript::Stubborn,
            HandlerScript::Random if self.rng.one_in(60) => HandlerScript::Deaf,
            other => other,
        };
        let run = HandlerRun { token, handling, is_stopped: false, start, unowned_since: None };
        let process = &mut self.processes[n];
        process.handlers.insert(task.clone(), run);
        process.starts.push((task.clone(), token, self.now));
        if handling == HandlerScript::Random && self.rng.one_in(2) {
            let outcome = self.random_outcome();
            let delay = Duration::from_millis(self.rng.below(20_000));
            self.later(WorldItem::Ends(n, task, token, outcome), n, delay);
        }
    }

    /// A handler begins only under a valid claim, and beside no other that believes in one.
    fn check_start(&mut self, n: usize, start: &HandlerStart) {
        let task = &start.task;
        assert!(!self.processes[n].handlers.contains_key(task), "{task} runs here already");
        assert_eq!(
            self.processes[n].lease,
            Some(start.lease),
            "{task} begins under a claim of another session"
        );
        assert!(self.processes[n].valid_until.is_some_and(|at| self.now < at), "{task} begins too late");
        let is_meddled = self.interfered.get(task).is_some_and(|at| self.now < *at + TTL + TTL);
        for (other, process) in self.processes.iter().enumerate().filter(|(other, _)| *other != n) {
            let is_valid = process.valid_until.is_some_and(|at| self.now < at);
            let runs = process.handlers.get(task).is_some_and(|run| !run.is_stopped);
            assert!(!(is_valid && runs) || is_meddled, "{task} runs on {other} and begins on {n}");
        }
        if self.done.contains(task) && !is_meddled {
            let state = self.state(task.as_str()).map(|record| record.state);
            assert!(!state.is_some_and(TaskStatus::is_terminal), "{task} has ended and is run again");
        }
    }

    pub(super) fn random_outcome(&mut self) -> HandlerEnd {
        match self.rng.below(6) {
            0 | 1 => HandlerEnd::Completed,
            2 => HandlerEnd::Release,
            3 => HandlerEnd::Fault("as it happens".to_owned()),
            4 => HandlerEnd::Pause,
            _ => {
                HandlerEnd::Sleep { until: crate::record::Timestamp(self.wall().0 + self.rng.below(30_000)) }
            }
        }
    }

    pub(super) fn stop_handler(&mut self, n: usize, task: &TaskId) {
        let Some(run) = self.processes[n].handlers.get_mut(task) else { return };
        run.is_stopped = true;
        let (token, handling) = (run.token, run.handling);
        let (outcome, delay) = match handling {
            HandlerScript::Obedient => (HandlerEnd::Release, 1),
            HandlerScript::Deaf | HandlerScript::Stubborn => return,
            HandlerScript::Random => (self.random_outcome(), self.rng.below(2_000)),
        };
        self.later(WorldItem::Ends(n, task.clone(), token, outcome), n, Duration::from_millis(delay));
    }

    pub(super) fn abort_handler(&mut self, n: usize, task: &TaskId) {
        let Some(run) = self.processes[n].handlers.get(task) else { return };
        let (token, delay) = match run.handling {
            HandlerScript::Deaf if self.is_stormy => (run.token, 15_000),
            HandlerScript::Deaf => return,
            HandlerScript::Obedient | HandlerScript::Stubborn | HandlerScript::Random => (run.token, 1),
        };
        let end = WorldItem::Ends(n, task.clone(), token, HandlerEnd::Aborted);
        self.later(end, n, Duration::from_millis(delay));
    }

    pub(super) fn end_handler(&mut self, n: usize, task: TaskId, token: Token, outcome: HandlerEnd) {
        if self.processes[n].handlers.get(&task).is_none_or(|run| run.token != token) {
            return;
        }
        self.processes[n].handlers.remove(&task);
        if outcome == HandlerEnd::Completed {
            self.done.insert(task.clone());
        }
        self.deliver(n, WorkerInput::HandlerEnded { task, token, outcome });
    }

    /// No handler runs without its claim beyond its grace. A lost claim is known when the session lapses at the latest.
    pub(super) fn check(&mut self) {
        if !self.is_stormy {
            return;
        }
        let mut runs = Vec::new();
        for (n, process) in self.processes.iter().enumerate() {
            runs.extend(process.handlers.iter().map(|(task, run)| (n, task.clone(), run.token)));
        }
        for (n, task, token) in runs {
            let owner = self.get(&Key::TaskOwner(task.clone()));
            let now = self.now;
            let Some(run) = self.processes[n].handlers.get_mut(&task) else { continue };
            if owner.is_some_and(|pair| pair.created == token.0) {
                continue;
            }
            let since = *run.unowned_since.get_or_insert(now);
            let allowed = TTL + Duration::from_secs(if run.handling == HandlerScript::Deaf { 25 } else { 8 });
            assert!(now < since + allowed, "{task} runs on {n} without a claim since {since:?}, now {now:?}");
        }
    }
}
