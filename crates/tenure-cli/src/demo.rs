//! `tenure demo`: the whole story by itself. Workers in processes of their own share a thousand tasks and elect a leader, the leader is killed, and its
//! tasks run elsewhere. The tasks themselves write down when they ran, and the verdict is drawn from that.
//!
//! It needs nothing and leaves nothing: unless a store is named, it has one in a temporary folder.

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
use tenure::client::{Client, NewTask, TaskFilter};
use tenure::election::Elections;
use tenure::session::Session;
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

/// How long one chapter may take; one that takes longer will not end well.
const STEP_TIMEOUT: Duration = Duration::from_secs(30);

/// How often what tasks write is looked at.
const POLL_EVERY: Duration = Duration::from_millis(50);

/// As many as one command line can mean; beyond it a number was mistyped.
const TASKS_MAX: i64 = 100_000;
const WORKERS_MAX: i64 = 32;

#[derive(Args, Debug)]
pub(crate) struct DemoArgs {
    /// How many tasks.
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(i64).range(1..=TASKS_MAX))]
    tasks: i64,
    /// How many workers; one of them is killed.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(i64).range(2..=WORKERS_MAX))]
    nodes: i64,
    /// How long the tasks of a killed worker stay its own.
    #[arg(long, value_name = "DUR", value_parser = duration::parse, default_value = "3s")]
    ttl: Duration,
}

/// Runs the demo, and ends with 0 only if the numbers hold.
pub(crate) async fn run(args: &DemoArgs, global: &Global, output: &Output) -> Result<ExitCode, Failure> {
    let begin = Instant::now();
    let store = DemoStore::open(args.ttl, global, output).await?;
    let told = {
        let mut demo = DemoRun::new(args, &store, output);
        tokio::select! {
            biased;
            _ = tokio::signal::ctrl_c() => Err(Failure::new(Code::Interrupted, "interrupted")),
            told = demo.run() => told.map(|figures| (figures, demo.leaderless)),
        }
    };
    // Whatever became of it, nothing of it stays.
    store.close().await;
    let (figures, leaderless) = told?;
    let problems = figures.problems();
    let said = DemoReport {
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
        output.object(&said)?;
    } else {
        let tone = if said.ok { TextStyle::Good } else { TextStyle::Bad };
        output.text(&format!("{}\n", output.toned(tone, &said.verdict)))?;
    }
    if problems.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    Err(Failure::new(Code::Failed, format!("the numbers do not hold: {}", problems.join("; ")))
        .hint("run it again with -v, and report what it says"))
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

/// A worker, as we see it.
struct DemoWorker {
    name: String,
    process: HelperProcess,
    ledger: LedgerReader,
}

/// The demo so far.
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
        let client = Client::new(self.store.store.clone(), &self.store.namespace);
        let begin = now_ns();
        self.submit(&client).await?;
        if self.wait_until_balanced().await? {
            self.figures.balanced_seconds = Some(seconds_since(begin));
        }
        self.figures.spread_before = spread(&self.runs.running(), &self.alive);
        let session = Session::open(self.store.store.clone())
            .map_err(|error| Failure::new(Code::Failed, error.to_string()))?;
        let elections = Elections::new(&session, &self.store.namespace);
        let Some(leader) = self.leader(&elections).await? else { return Ok(self.figures.clone()) };
        let balanced = match self.figures.balanced_seconds {
            Some(seconds) => format!("balanced in {seconds:.1} s"),
            None => "not balanced in time".to_owned(),
        };
        self.note(&format!("{balanced}, {} leads", self.workers[leader].name));
        self.figures.leader_before = Some(self.workers[leader].name.clone());
        self.kill(leader, &elections).await?;
        self.finish(&client).await?;
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

    async fn submit(&self, client: &Client) -> Result<(), Failure> {
        let ids = (1..=self.figures.tasks).map(|n| TaskId::parse(&format!("task-{n}")));
        let ids: Vec<TaskId> =
            ids.collect::<Result<_, _>>().map_err(|error| Failure::new(Code::Failed, error.to_string()))?;
        let begin = Instant::now();
        for submitted in client.submit_many(ids.into_iter().map(NewTask::new).collect()).await {
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

    /// Waits until all tasks run and every worker has its share; false if that does not come.
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

    /// Kills a worker with everything that runs in it, and waits until that runs elsewhere.
    async fn kill(&mut self, leader: usize, elections: &Elections) -> Result<(), Failure> {
        self.poll()?;
        let name = self.workers[leader].name.clone();
        let killed_ns = now_ns();
        self.workers[leader].process.kill().await?;
        self.alive.remove(&leader);
        // What it wrote before its end is in its file; it writes nothing after it.
        self.poll()?;
        let its = self.runs.tasks_of(leader);
        self.runs.died(leader, now_ns());
        self.figures.killed_tasks = its.len();
        self.note(&format!("{name}, which leads, is killed with {} tasks on it", its.len()));
        let begin = Instant::now();
        while begin.elapsed() < STEP_TIMEOUT {
            self.poll()?;
            if self.figures.reclaimed_seconds.is_none() {
                let last_ns = self.runs.all_began_after(&its, killed_ns);
                self.figures.reclaimed_seconds = last_ns.map(|last_ns| seconds_between(killed_ns, last_ns));
            }
            if self.figures.leader_after.is_none()
                && let Some(heir) = self.current_leader(elections).await?.filter(|heir| *heir != leader)
            {
                self.leaderless = Some(seconds_since(killed_ns));
                self.figures.leader_after = Some(self.workers[heir].name.clone());
            }
            if self.figures.reclaimed_seconds.is_some() && self.figures.leader_after.is_some() {
                break;
            }
            tokio::time::sleep(POLL_EVERY).await;
        }
        if let (Some(seconds), Some(leader)) = (self.figures.reclaimed_seconds, &self.figures.leader_after) {
            self.note(&format!("its tasks run elsewhere after {seconds:.1} s, {leader} leads"));
        }
        Ok(())
    }

    /// Waits until everything is in its place again, asks the store too, and ends all workers.
    async fn finish(&mut self, client: &Client) -> Result<(), Failure> {
        self.wait_until_balanced().await?;
        self.figures.spread = spread(&self.runs.running(), &self.alive);
        let running: BTreeSet<String> = self.runs.running_tasks().into_iter().map(str::to_owned).collect();
        let listing = client.tasks(&TaskFilter::new()).await?;
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

    /// Reads what tasks have written, and shows it.
    fn poll(&mut self) -> Result<(), Failure> {
        for (n, worker) in self.workers.iter_mut().enumerate() {
            let news = worker.ledger.read_new();
            let news = news.map_err(|error| {
                Failure::new(Code::Failed, format!("what {} wrote cannot be read: {error}", worker.name))
            })?;
            for entry in news {
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

    /// Waits until somebody leads; none if that does not come.
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

    /// Who leads now.
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
