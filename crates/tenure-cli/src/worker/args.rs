//! What was typed to start a worker, and what of it can be checked without a store.

use std::time::Duration;

use clap::Args;
use tenure::task::ErrorRate;
use tenure::worker::{Start, WorkerBuilder};
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

/// How long the store may take to let us in, from our start. Scripts were promised an answer within 6 s.
const JOIN_WITHIN: Duration = Duration::from_secs(5);

/// Errors that are older than this do not count any more.
const ERRORS_WITHIN: Duration = Duration::from_secs(4 * 60 * 60);

const HELP: &str = "\
Each task is one child process in a process group of its own. CMD is run as it is if it is a single word, and by `sh -c` otherwise; it is looked
up before any task is taken. Its stdout and stderr are ours.

  TENURE_TASK_ID      the task            TENURE_TASK_PROPS   its props, which are on stdin too (above 100 KiB only there)
  TENURE_FENCING_TOKEN        grows with every owner: check it with every write elsewhere
  TENURE_ATTEMPT      from 1 on           TENURE_CHECKPOINT   a file: what the last owner left in it is there, and what is left in it is kept
  TENURE_TASK_KIND, TENURE_NODE, TENURE_NAMESPACE, TENURE_LEASE, TENURE_TTL_SECONDS

Exit 0: completed. 75: sleeps, and is tried again after --retry-after. 99: paused. Anything else, or a signal: a fault, told with the last line
of stderr; after --retries of them within 4 h the next one fails the task, until then it sleeps for --retry-after.

pause, release, sleep, kill: SIGTERM, and after the grace SIGKILL; whatever a task exits with then, it is neither completed nor at fault.
checkpoint: SIGUSR1 to whoever catches it, then the file is kept. A claim that cannot be renewed: SIGTERM and SIGKILL before anybody else can
have the task. Should this process be killed or stopped, a sentinel kills the tasks in time, with everything that they started.

SIGTERM or SIGINT to the worker: stop all tasks, release them, leave; a second one kills them at once.
Exit codes: 0 left, 1 something could not be stopped, 2 usage, 4 the node's id is in use, 5 store unavailable, 126 CMD is not executable, 127 not found.";

/// What runs tasks, and which.
#[derive(Args, Debug)]
#[command(after_help = HELP)]
pub(crate) struct WorkerArgs {
    /// The command that runs a task.
    #[arg(long, value_name = "CMD")]
    exec: String,
    /// The node's id, which must be no other live node's [default: TENURE_NODE, or this host and process].
    #[arg(long, value_name = "ID")]
    node: Option<String>,
    /// How many tasks to run at a time, or `unlimited`; sleeping and paused ones do not count [default: the number of cores].
    #[arg(long, value_name = "N", value_parser = TaskSlots::parse)]
    capacity: Option<TaskSlots>,
    /// Who decides which tasks to take and to give away.
    #[arg(long, value_enum, default_value_t, value_name = "HOW")]
    balance: BalancerName,
    /// With --balance capacity: take tasks while less than this much of the memory is used, in percent [default: 80].
    #[arg(long, value_name = "PERCENT")]
    claim_below: Option<u64>,
    /// With --balance capacity: give tasks away while more than this much of the memory is used, in percent [default: 90].
    #[arg(long, value_name = "PERCENT")]
    release_above: Option<u64>,
    /// Take only tasks of a kind (kind=mail) or with a label (zone=eu). Several kinds are alternatives, several labels must all be there.
    #[arg(long = "match", value_name = "NAME=VALUE", value_parser = TaskMatch::parse)]
    pub(super) matches: Vec<TaskMatch>,
    /// How long tasks stay ours if we cannot give them back. Renewed every third of this.
    #[arg(long, value_name = "DUR", value_parser = duration::parse, default_value = "15s")]
    ttl: Duration,
    /// How long a task has between being asked to stop and being killed [default: 5s or a third of the TTL].
    #[arg(long, value_name = "DUR", value_parser = duration::parse)]
    grace: Option<Duration>,
    /// How often a task that fails is tried again within 4 h; 0 to 7.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = parse_retries)]
    retries: usize,
    /// How long a task sleeps before it is tried again.
    #[arg(long, value_name = "DUR", value_parser = duration::parse, default_value = "10m")]
    pub(super) retry_after: Duration,
    /// After how many claims in a row that ended without an outcome, because their workers were killed, a task is failed; or `unlimited`.
    #[arg(long, value_name = "N", default_value = "3", value_parser = parse_lost_max)]
    lost_max: LostMax,
    #[command(flatten)]
    keep: KeepArgs,
    /// How long to wait for another live node with our id to go; without it, that is a failure.
    #[arg(long, value_name = "DUR", value_parser = duration::parse)]
    pub(super) wait: Option<Duration>,
    /// Where the worker can be reached, for whoever looks.
    #[arg(long, value_name = "ADDR")]
    address: Option<String>,
    /// Something to say of the worker. May be given several times.
    #[arg(long = "label", value_name = "K=V", value_parser = selector::parse_label)]
    labels: Vec<(String, String)>,
    /// Serve /healthz, /readyz and /metrics there, as in 127.0.0.1:9464.
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
            Ok(0) => Err("a worker with room for 0 tasks would never take one; use `tenure node freeze` to keep one from taking more".to_owned()),
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

/// How many lost claims a task may have.
#[derive(Clone, Copy, Debug)]
struct LostMax(Option<usize>);

fn parse_lost_max(text: &str) -> Result<LostMax, String> {
    match (text, text.parse()) {
        ("unlimited", _) => Ok(LostMax(None)),
        (_, Ok(claims @ 1..)) => Ok(LostMax(Some(claims))),
        _ => Err("write it as a number from 1 on, or as unlimited".to_owned()),
    }
}

fn parse_retries(text: &str) -> Result<usize, String> {
    let most = ERRORS_LEN_MAX - 1;
    match text.parse() {
        Ok(retries) if retries <= most => Ok(retries),
        _ => Err(format!("use 0 to {most}: a task keeps its newest {ERRORS_LEN_MAX} errors")),
    }
}

/// What was typed, checked.
pub(super) struct PreparedWorker {
    pub(super) shell: Shell,
    pub(super) timing: Timing,
    pub(super) node: NodeId,
    pub(super) options: StartOptions,
}

/// How the worker is started once the store is open.
pub(super) struct StartOptions {
    wanted: AcceptedTasks,
    configure: Configure,
    wait: Option<Duration>,
}

impl StartOptions {
    /// Adds the handlers: one for every kind, or one for all.
    pub(super) fn start(self, builder: WorkerBuilder, exec: &Exec) -> Start {
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
    /// Checks everything that can be checked without a store.
    pub(super) async fn check(
        args: &WorkerArgs,
        settings: &ConnectSettings,
    ) -> Result<PreparedWorker, Failure> {
        let timing = Timing::divide(args.ttl, args.grace, None)?;
        let who = settings.identity(&[]);
        let name = match (&args.node, &settings.node) {
            (Some(name), _) => name.clone(),
            (None, Some(configured)) => configured.value.clone(),
            // Two workers on one host are two nodes.
            (None, None) => format!("{}-{}", who.host, who.pid),
        };
        let node = NodeId::parse(&name).map_err(|error| {
            Failure::usage(format!("the node's id: {error}")).hint("use an id like --node web-1")
        })?;
        selector::check_labels(&args.labels)?;
        let wanted = selector::wanted(&args.matches)?;
        let policy = ErrorRate::default()
            .too_many(args.retries + 1, ERRORS_WITHIN)
            .map_err(|error| Failure::usage(format!("--retries: {error}")))?
            .sleep(args.retry_after);
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
