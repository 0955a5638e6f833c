//! `tenure demo`: shows task sharing, an election and recovery from a crash in half a minute.
//!
//! Workers in separate processes share a thousand tasks and elect a leader. The demo kills the leader, and other workers run its tasks. The tasks
//! record when they ran, and the result is computed from these records.
//! Without a store on the command line, the demo creates one in a temporary folder and removes it at the end.

mod figures;
mod ledger;
mod process;
mod store;
mod table;
mod worker;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use tenure::election::Elections;
use tenure::session::Session;
use tenure::{NewTask, Tenure};
use tenure_core::id::TaskId;

pub(crate) use worker::run as run_demo_worker;

use self::figures::{DemoFigures, RunLedger, SPREAD_MAX, spread};
use self::ledger::{LedgerReader, now_ns};
use self::process::HelperProcess;
use self::store::DemoStore;
use self::table::LiveTable;
use self::worker::{ELECTION, WorkerJoined};
use crate::cli::Global;
use crate::duration;
use crate::failure::{Code, Failure};
use crate::output::{Output, TextStyle};

/// The time limit of one step. A step needs a few TTLs; one that takes longer has failed.
const STEP_TIMEOUT: Duration = Duration::from_secs(30);

/// The interval at which the ledgers are read. Longer, and the live table lags.
const POLL_EVERY: Duration = Duration::from_millis(50);

/// The largest numbers that a command line plausibly means; a larger one is a typing mistake.
const TASKS_MAX: i64 = 100_000;
const WORKERS_MAX: i64 = 32;

#[derive(Args, Debug)]
pub(crate) struct DemoArgs {
    /// The number of tasks.
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(i64).range(1..=TASKS_MAX))]
    tasks: i64,
    /// The number of workers; one of them is killed.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(i64).range(2..=WORKERS_MAX))]
    nodes: i64,
    /// The TTL of a worker's lease: how long a killed worker stays the owner of its tasks.
    #[arg(long, value_name = "DUR", value_parser = duration::parse, default_value = "3s")]
    ttl: Duration,
}

/// Runs the demo. The exit code is 0 only if every figure is as promised.
pub(crate) async fn run(args: &DemoArgs, global: &Global, output: &Output) -> Result<ExitCode, Failure> {
    let begin = Instant::now();
    let store = DemoStore::open(args.ttl, global, output).await?;
    let outcome = {
        let mut demo = DemoRun::new(args, &store, output);
        tokio::select! {
            biased;
            _ = tokio::signal::ctrl_c() => Err(Failure::new(Code::Interrupted, "interrupted")),
            result = demo.run() => result.map(|figures| (figures, demo.leaderless)),
        }
    };
    // The store is cleaned up also after a failure or Ctrl-C.
    store.close().await;
    let (figures, leaderless) = outcome?;
    let problems = figures.problems();
    let report = DemoReport {
        schema: "tenure.demo/v1",
        ok: problems.is_empty(),
        verdict: figures.line(),
        seconds: begin.elapsed().as_secs_f64(),
        backend: &store.backend,
        nodes: args.nodes,
        tasks: figures.tasks,
        balanced_seconds: figures.balanced_seconds,
        max_per_node_before: figures.spread_before.0,
        min_per_node_before: figures.spread_before.1,
        killed: figures.leader_before.as_deref(),
        killed_tasks: figures.killed_tasks,
        reclaimed_seconds: figures.reclaimed_seconds,
        ran_twice: figures.ran_twice.len(),
        lost: figures.lost.len(),
        max_per_node: figures.spread.0,
        min_per_node: figures.spread.1,
        leader: figures.leader_after.as_deref(),
        leaderless_seconds: leaderless,
        problems: &problems,
    };
    if output.is_json {
        output.object(&report)?;
    } else {
        let tone = if report.ok { TextStyle::Good } else { TextStyle::Bad };
        output.text(&format!("{}\n", output.toned(tone, &report.verdict)))?;
    }
    if problems.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    Err(Failure::new(Code::Failed, format!("the demo did not end as promised: {}", problems.join("; ")))
        .hint("run it again with -v, and report its output"))
}

#[derive(Serialize)]
struct DemoReport<'a> {
    schema: &'static str,
    ok: bool,
    verdict: String,
    seconds: f64,
    backend: &'a str,
    nodes: i64,
    tasks: usize,
    balanced_seconds: Option<f64>,
    max_per_node_before: usize,
    min_per_node_before: usize,
    killed: Option<&'a str>,
    killed_tasks: usize,
    reclaimed_seconds: Option<f64>,
    ran_twice: usize,
    lost: usize,
    max_per_node: usize,
    min_per_node: usize,
    leader: Option<&'a str>,
    leaderless_seconds: Option<f64>,
    problems: &'a [String],
}

/// A worker process with its ledger.
struct DemoWorker {
    name: String,
    process: HelperProcess,
    ledger: LedgerReader,
}

/// The state of the demo.
struct DemoRun<'a> {
    args: &'a DemoArgs,
    store: &'a DemoStore,
    output: &'a Output,
    table: LiveTable<'a>,
    workers: Vec<DemoWorker>,
    alive: BTreeSet<usize>,
    runs: RunLedger,
    figures: DemoFigures,
    leaderless: Option<f64>,
}

impl<'a> DemoRun<'a> {
    fn new(args: &'a DemoArgs, store: &'a DemoStore, output: &'a Output) -> DemoRun<'a> {
        let tasks = usize::try_from(args.tasks).unwrap_or(0);
        DemoRun {
            args,
            store,
            output,
            table: LiveTable::new(output, tasks),
            workers: Vec::new(),
            alive: BTreeSet::new(),
            runs: RunLedger::default(),
            figures: DemoFigures { tasks, ..DemoFigures::default() },
            leaderless: None,
        }
    }

    async fn run(&mut self) -> Result<DemoFigures, Failure> {
        self.start_workers().await?;
        let failed = |error: &dyn std::fmt::Display| Failure::new(Code::Failed, error.to_string());
        let session = Session::open(self.store.store.clone()).map_err(|error| failed(&error))?;
        let tenure = Tenure::on_session(&session, &self.store.namespace).map_err(|error| failed(&error))?;
        let begin = now_ns();
        self.submit(&tenure).await?;
        if self.wait_until_balanced().await? {
            self.figures.balanced_seconds = Some(seconds_since(begin));
        }
        self.figures.spread_before = spread(&self.runs.running(), &self.alive);
        let elections = Elections::new(&session, &self.store.namespace);
        let Some(leader) = self.leader(&elections).await? else { return Ok(self.figures.clone()) };
        let balanced = match self.figures.balanced_seconds {
            Some(seconds) => format!("balanced in {seconds:.1} s"),
            None => "not balanced in time".to_owned(),
        };
        self.note(&format!("{balanced}, {} leads", self.workers[leader].name));
        self.figures.leader_before = Some(self.workers[leader].name.clone());
        self.kill(leader, &elections).await?;
        self.finish(&tenure).await?;
        let _ = session.close().await;
        Ok(self.figures.clone())
    }

    async fn start_workers(&mut self) -> Result<(), Failure> {
        let count = usize::try_from(self.args.nodes).unwrap_or(0);
        for n in 0..count {
            let name = format!("node-{}", n + 1);
            let ledger = self.store.folder.path().join(&name);
            let process = self.start_worker(&name, &ledger)?;
            self.workers.push(DemoWorker { name, process, ledger: LedgerReader::new(ledger) });
            self.alive.insert(n);
        }
        for worker in &mut self.workers {
            worker.process.read::<WorkerJoined>(STEP_TIMEOUT).await?;
        }
        self.note(&format!("{count} workers have joined on {}", self.store.backend));
        Ok(())
    }

    fn start_worker(&self, name: &str, ledger: &Path) -> Result<HelperProcess, Failure> {
        let ttl = format!("{}ms", self.args.ttl.as_millis());
        let ledger = ledger.to_string_lossy();
        let mut args = vec!["worker", name, &ledger, &ttl];
        args.extend(self.store.flags.iter().map(String::as_str));
        HelperProcess::start(&args)
    }

    async fn submit(&self, tenure: &Tenure) -> Result<(), Failure> {
        let ids = (1..=self.figures.tasks).map(|n| TaskId::parse(&format!("task-{n}")));
        let ids: Vec<TaskId> =
            ids.collect::<Result<_, _>>().map_err(|error| Failure::new(Code::Failed, error.to_string()))?;
        let begin = Instant::now();
        for submitted in tenure.submit_all(ids.into_iter().map(|id| NewTask::new("").id(id))).await {
            submitted
                .map_err(|error| Failure::new(Code::Failed, format!("a task was not submitted: {error}")))?;
        }
        self.note(&format!(
            "{} tasks submitted in {:.1} s",
            self.figures.tasks,
            begin.elapsed().as_secs_f64()
        ));
        Ok(())
    }

    /// Waits until all tasks run and every worker has its share. Returns false after the time limit.
    async fn wait_until_balanced(&mut self) -> Result<bool, Failure> {
        let begin = Instant::now();
        loop {
            self.poll()?;
            let (max, min) = spread(&self.runs.running(), &self.alive);
            let is_whole = self.runs.running_tasks().len() == self.figures.tasks;
            if is_whole && max - min <= SPREAD_MAX {
                return Ok(true);
            }
            if begin.elapsed() > STEP_TIMEOUT {
                return Ok(false);
            }
            tokio::time::sleep(POLL_EVERY).await;
        }
    }

    /// Kills a worker, and waits until its tasks run on other workers and another worker leads.
    async fn kill(&mut self, leader: usize, elections: &Elections) -> Result<(), Failure> {
        self.poll()?;
        let name = self.workers[leader].name.clone();
        let killed_ns = now_ns();
        self.workers[leader].process.kill().await?;
        self.alive.remove(&leader);
        // The process has ended, so its ledger is complete after this read.
        self.poll()?;
        let killed_tasks = self.runs.tasks_of(leader);
        self.runs.died(leader, now_ns());
        self.figures.killed_tasks = killed_tasks.len();
        self.note(&format!("killed {name}, the leader, with {} tasks", killed_tasks.len()));
        let begin = Instant::now();
        while begin.elapsed() < STEP_TIMEOUT {
            self.poll()?;
            if self.figures.reclaimed_seconds.is_none() {
                let last_ns = self.runs.all_began_after(&killed_tasks, killed_ns);
                self.figures.reclaimed_seconds = last_ns.map(|last_ns| seconds_between(killed_ns, last_ns));
            }
            if self.figures.leader_after.is_none()
                && let Some(next) = self.current_leader(elections).await?.filter(|next| *next != leader)
            {
                self.leaderless = Some(seconds_since(killed_ns));
                self.figures.leader_after = Some(self.workers[next].name.clone());
            }
            if self.figures.reclaimed_seconds.is_some() && self.figures.leader_after.is_some() {
                break;
            }
            tokio::time::sleep(POLL_EVERY).await;
        }
        if let (Some(seconds), Some(leader)) = (self.figures.reclaimed_seconds, &self.figures.leader_after) {
            self.note(&format!("its tasks run on other workers after {seconds:.1} s, {leader} leads"));
        }
        Ok(())
    }

    /// Waits until the tasks are balanced again, compares them with the store, and ends all workers.
    async fn finish(&mut self, tenure: &Tenure) -> Result<(), Failure> {
        self.wait_until_balanced().await?;
        self.figures.spread = spread(&self.runs.running(), &self.alive);
        let running: BTreeSet<String> = self.runs.running_tasks().into_iter().map(str::to_owned).collect();
        let listing = tenure.tasks().list().await?;
        let stored: BTreeSet<&str> = listing.tasks.iter().map(|task| task.id.as_str()).collect();
        let expected = (1..=self.figures.tasks).map(|n| format!("task-{n}"));
        self.figures.lost =
            expected.filter(|task| !running.contains(task) || !stored.contains(task.as_str())).collect();
        self.table.end();
        for worker in self.alive.clone() {
            self.workers[worker].process.dismiss();
        }
        for worker in self.alive.clone() {
            self.workers[worker].process.ended(STEP_TIMEOUT).await?;
        }
        self.poll()?;
        self.figures.ran_twice = self.runs.ran_twice_at_once();
        Ok(())
    }

    /// Reads the new ledger entries and draws the table.
    fn poll(&mut self) -> Result<(), Failure> {
        for (n, worker) in self.workers.iter_mut().enumerate() {
            let entries = worker.ledger.read_new();
            let entries = entries.map_err(|error| {
                Failure::new(Code::Failed, format!("the ledger of {} cannot be read: {error}", worker.name))
            })?;
            for entry in entries {
                self.runs.note(n, entry);
            }
        }
        let counts = self.runs.running();
        let rows = self.workers.iter().enumerate().map(|(n, worker)| {
            (worker.name.as_str(), self.alive.contains(&n).then(|| counts.get(&n).copied().unwrap_or(0)))
        });
        self.table.show(rows);
        Ok(())
    }

    /// Waits for a leader. `None` after the time limit.
    async fn leader(&mut self, elections: &Elections) -> Result<Option<usize>, Failure> {
        let begin = Instant::now();
        while begin.elapsed() < STEP_TIMEOUT {
            self.poll()?;
            if let Some(leader) = self.current_leader(elections).await? {
                return Ok(Some(leader));
            }
            tokio::time::sleep(POLL_EVERY).await;
        }
        Ok(None)
    }

    /// The worker that leads now.
    async fn current_leader(&self, elections: &Elections) -> Result<Option<usize>, Failure> {
        let leader = elections.election(ELECTION).leader().await?.map(|leader| leader.record.candidate);
        Ok(self.workers.iter().position(|worker| Some(&worker.name) == leader.as_ref()))
    }

    fn note(&self, text: &str) {
        self.table.note(text, self.output);
    }
}

fn seconds_since(begin_ns: u64) -> f64 {
    seconds_between(begin_ns, now_ns())
}

fn seconds_between(begin_ns: u64, end_ns: u64) -> f64 {
    Duration::from_nanos(end_ns.saturating_sub(begin_ns)).as_secs_f64()
}
