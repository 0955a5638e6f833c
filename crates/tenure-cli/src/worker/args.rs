//! The flags of `tenure worker`, and the checks that need no store.

use std::time::Duration;

use clap::Args;
use tenure::task::Retry;
use tenure::worker::{StartWorker, WorkerBuilder};
use tenure_core::id::NodeId;
use tenure_core::task::ERRORS_LEN_MAX;
use tenure_core::worker::AcceptedTasks;

use super::exec::Exec;
use super::keep::KeepArgs;
use super::selector::{self, BalancerName, Configure, MemoryLimits, TaskMatch};
use super::shell::Shell;
use crate::connect::ConnectSettings;
use crate::duration;
use crate::failure::Failure;
use crate::hold::Timing;

/// The time limit of joining, from the start of the process: scripts rely on a reply within 6 s.
const JOIN_WITHIN: Duration = Duration::from_secs(5);

/// Older errors do not count towards `--retries`.
const ERRORS_WITHIN: Duration = Duration::from_secs(4 * 60 * 60);

const HELP: &str = "\
Each task is a child process in its own process group, with the worker's stdout and stderr. A CMD of one word is run directly, any other by
`sh -c`. The worker looks CMD up before it claims a task.

Environment of a task:
  TENURE_TASK_ID, TENURE_TASK_KIND, TENURE_NODE, TENURE_NAMESPACE, TENURE_LEASE, TENURE_TTL_SECONDS
  TENURE_TASK_PROPS      the props, also on stdin; above 100 KiB on stdin only
  TENURE_FENCING_TOKEN   grows with every owner: a storage that compares it with each write rejects late writes of earlier owners
  TENURE_ATTEMPT         counts from 1
  TENURE_CHECKPOINT      a file with the last saved checkpoint; what the task writes to it is saved as the next one

Exit codes of a task: 0 completed; 75 sleeps, and is retried after --retry-after; 99 paused; any other, or a signal, is a failed attempt
with the last line of stderr as the error. After a failed attempt the task sleeps for --retry-after; it fails after more than --retries
failed attempts within 4 h.

pause, release, sleep and kill: SIGTERM, and SIGKILL after the grace; the exit code of the task does not count then.
checkpoint: SIGUSR1 to the processes that handle it; then the file is saved.
If the claim cannot be renewed, the task gets SIGTERM and SIGKILL before another worker can claim it. If the worker is killed or stopped, a
sentinel process kills the tasks in time, with everything that they started.

SIGTERM or SIGINT to the worker: stop all tasks, release them, leave; a second signal kills the tasks immediately.
Exit codes: 0 left, 1 a task did not stop, 2 usage, 4 the node's id is in use, 5 store unavailable, 126 CMD is not executable, 127 not found.";

/// The flags of `tenure worker`.
#[derive(Args, Debug)]
#[command(after_help = HELP)]
pub(crate) struct WorkerArgs {
    /// The command that runs a task.
    #[arg(long, value_name = "CMD")]
    exec: String,
    /// The node's id, unique among live nodes [default: TENURE_NODE, or host and pid].
    #[arg(long, value_name = "ID")]
    node: Option<String>,
    /// How many tasks run at a time, or `unlimited`; sleeping and paused tasks do not count [default: the number of cores].
    #[arg(long, value_name = "N", value_parser = TaskSlots::parse)]
    capacity: Option<TaskSlots>,
    /// The balancer, which decides which tasks to claim and to release.
    #[arg(long, value_enum, default_value_t, value_name = "HOW")]
    balance: BalancerName,
    /// With --balance capacity: claim tasks while less than this part of the memory is used, in percent [default: 80].
    #[arg(long, value_name = "PERCENT")]
    claim_below: Option<u64>,
    /// With --balance capacity: release tasks while more than this part of the memory is used, in percent [default: 90].
    #[arg(long, value_name = "PERCENT")]
    release_above: Option<u64>,
    /// Claim only tasks of a kind (kind=mail) or with a label (zone=eu). Of several kinds one must match, of several labels all.
    #[arg(long = "match", value_name = "NAME=VALUE", value_parser = TaskMatch::parse)]
    pub(super) matches: Vec<TaskMatch>,
    /// The TTL of the worker's lease: how long its tasks stay claimed if it is killed. Renewed every third of this.
    #[arg(long, value_name = "DUR", value_parser = duration::parse, default_value = "15s")]
    ttl: Duration,
    /// The time between SIGTERM and SIGKILL for a task that must stop [default: 5s or a third of the TTL].
    #[arg(long, value_name = "DUR", value_parser = duration::parse)]
    grace: Option<Duration>,
    /// How often a failed task is retried within 4 h; 0 to 7.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = parse_retries)]
    retries: usize,
    /// How long a task sleeps before a retry.
    #[arg(long, value_name = "DUR", value_parser = duration::parse, default_value = "10m")]
    pub(super) retry_after: Duration,
    /// Fail a task after this many consecutive claims of killed workers; or `unlimited`.
    #[arg(long, value_name = "N", default_value = "3", value_parser = parse_lost_max)]
    lost_max: LostMax,
    #[command(flatten)]
    keep: KeepArgs,
    /// How long to wait while another live node has the same id; without it, that is a failure.
    #[arg(long, value_name = "DUR", value_parser = duration::parse)]
    pub(super) wait: Option<Duration>,
    /// An address of the worker, shown in listings.
    #[arg(long, value_name = "ADDR")]
    address: Option<String>,
    /// A label of the worker. May be given several times.
    #[arg(long = "label", value_name = "K=V", value_parser = selector::parse_label)]
    labels: Vec<(String, String)>,
    /// Serve /healthz, /readyz and /metrics at this address, as in 127.0.0.1:9464.
    #[arg(long, value_name = "ADDR")]
    pub(super) http: Option<String>,
}

/// How many tasks a worker runs at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum TaskSlots {
    Tasks(usize),
    Unlimited,
}

impl TaskSlots {
    fn parse(text: &str) -> Result<TaskSlots, String> {
        match text.parse() {
            Ok(0) => Err("a worker with a capacity of 0 would never claim a task; `tenure node freeze` stops a worker from claiming".to_owned()),
            Ok(tasks) => Ok(TaskSlots::Tasks(tasks)),
            Err(_) if text == "unlimited" => Ok(TaskSlots::Unlimited),
            Err(_) => Err("use a number from 1, or `unlimited`".to_owned()),
        }
    }

    /// One task per core: each is a process, and most of them compute. 1 if the number of cores is unknown.
    fn per_core() -> TaskSlots {
        TaskSlots::Tasks(std::thread::available_parallelism().map_or(1, std::num::NonZero::get))
    }
}

/// The limit of consecutive lost claims.
#[derive(Clone, Copy, Debug)]
struct LostMax(Option<usize>);

fn parse_lost_max(text: &str) -> Result<LostMax, String> {
    match (text, text.parse()) {
        ("unlimited", _) => Ok(LostMax(None)),
        (_, Ok(claims @ 1..)) => Ok(LostMax(Some(claims))),
        _ => Err("use a number from 1, or `unlimited`".to_owned()),
    }
}

fn parse_retries(text: &str) -> Result<usize, String> {
    let most = ERRORS_LEN_MAX - 1;
    match text.parse() {
        Ok(retries) if retries <= most => Ok(retries),
        _ => Err(format!("use 0 to {most}: a task keeps its newest {ERRORS_LEN_MAX} errors")),
    }
}

/// The checked flags.
pub(super) struct PreparedWorker {
    pub(super) shell: Shell,
    pub(super) timing: Timing,
    pub(super) node: NodeId,
    pub(super) options: StartOptions,
}

/// The options with which the worker starts once the store is open.
pub(super) struct StartOptions {
    wanted: AcceptedTasks,
    configure: Configure,
    wait: Option<Duration>,
}

impl StartOptions {
    /// Adds the handlers, one for each kind or one for all kinds, and starts the worker.
    pub(super) fn start(self, builder: WorkerBuilder, exec: &Exec) -> StartWorker {
        let mut builder = (self.configure)(builder);
        if self.wanted.kinds.is_empty() {
            builder = builder.handle_any(exec.clone());
        }
        for kind in self.wanted.kinds {
            builder = builder.handle(kind, exec.clone());
        }
        for (name, value) in self.wanted.labels {
            builder = builder.match_label(name, value);
        }
        match self.wait {
            None => builder.start().timeout(JOIN_WITHIN).try_now(),
            Some(wait) => builder.start().timeout(wait.max(JOIN_WITHIN)),
        }
    }
}

impl PreparedWorker {
    /// Checks the flags and finds the command. Needs no store.
    pub(super) async fn check(
        args: &WorkerArgs,
        settings: &ConnectSettings,
    ) -> Result<PreparedWorker, Failure> {
        let timing = Timing::divide(args.ttl, args.grace, None)?;
        let identity = settings.identity(&[]);
        let name = match (&args.node, &settings.node) {
            (Some(name), _) => name.clone(),
            (None, Some(configured)) => configured.value.clone(),
            // Host and pid, because two workers on one host are two nodes.
            (None, None) => format!("{}-{}", identity.host, identity.pid),
        };
        let node = NodeId::parse(&name).map_err(|error| {
            Failure::usage(format!("invalid node id: {error}")).hint("use an id like --node web-1")
        })?;
        selector::check_labels(&args.labels)?;
        let wanted = selector::wanted(&args.matches)?;
        let attempts = u32::try_from(args.retries).unwrap_or(u32::MAX).saturating_add(1);
        let policy = Retry::fixed(args.retry_after).max_attempts(attempts).within(ERRORS_WITHIN);
        let limits = MemoryLimits { claim_below: args.claim_below, release_above: args.release_above };
        let balance = args.balance.configure(limits)?;
        let capacity = match args.capacity.unwrap_or_else(TaskSlots::per_core) {
            TaskSlots::Tasks(capacity) => Some(capacity),
            TaskSlots::Unlimited => None,
        };
        let (labels, address) = (args.labels.clone(), args.address.clone());
        let (lost_max, keep) = (args.lost_max.0, args.keep.keep());
        let configure: Configure = Box::new(move |builder: WorkerBuilder| {
            let mut builder = balance(builder)
                .grace(timing.grace)
                .never_abort()
                .errors(policy)
                .lost_claims_max(lost_max)
                .keep(keep)
                .version(env!("CARGO_PKG_VERSION"));
            for (name, value) in labels {
                builder = builder.label(name, value);
            }
            if let Some(address) = address {
                builder = builder.address(address);
            }
            if let Some(capacity) = capacity {
                builder = builder.capacity(capacity);
            }
            builder
        });
        let shell = Shell::find(&args.exec).await?;
        Ok(PreparedWorker {
            shell,
            timing,
            node,
            options: StartOptions { wanted, configure, wait: args.wait },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacity_is_a_number_or_unlimited() {
        assert_eq!(TaskSlots::parse("3"), Ok(TaskSlots::Tasks(3)));
        assert_eq!(TaskSlots::parse("unlimited"), Ok(TaskSlots::Unlimited));
        assert!(TaskSlots::parse("0").unwrap_err().contains("freeze"));
        assert!(TaskSlots::parse("-1").is_err() && TaskSlots::parse("many").is_err());
    }

    #[test]
    fn capacity_defaults_to_cores() {
        assert!(matches!(TaskSlots::per_core(), TaskSlots::Tasks(1..)));
    }
}
