//! `tenure internal supervise`: supervision with deadlines from the command line instead of a lease, for tests.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use rustix::process::Signal;
use tenure::clock::{BootClock, Clock};
use tokio::sync::watch;

use super::{Deadlines, Job, Program, Signals, StopTimes, SupervisorAction};
use crate::duration;
use crate::failure::{Code, Failure};
use crate::output::Output;

/// The flags of the test command.
#[derive(Args, Debug)]
pub(crate) struct SuperviseArgs {
    /// Send the stop signal this long after the last renewal.
    #[arg(long, value_parser = duration::parse, requires = "kill_after")]
    term_after: Option<Duration>,
    /// Kill it this long after the last renewal.
    #[arg(long, value_parser = duration::parse, requires = "term_after")]
    kill_after: Option<Duration>,
    /// The interval of renewals; without it, there are none.
    #[arg(long, value_parser = duration::parse)]
    renew_every: Option<Duration>,
    /// Report a loss after this time.
    #[arg(long, value_parser = duration::parse)]
    lose_after: Option<Duration>,
    /// Request a stop after this time.
    #[arg(long, value_parser = duration::parse)]
    stop_after: Option<Duration>,
    /// The time between SIGTERM and SIGKILL.
    #[arg(long, value_parser = duration::parse)]
    grace: Option<Duration>,
    /// The command.
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

impl SuperviseArgs {
    fn terms(&self, order: SupervisorAction) -> StopTimes {
        let now = BootClock.now();
        let deadlines = self.term_after.zip(self.kill_after);
        StopTimes {
            deadlines: deadlines.map(|(term, kill)| Deadlines { term: now + term, kill: now + kill }),
            order,
        }
    }
}

/// Runs the test command.
pub(crate) async fn run_test(args: &SuperviseArgs, output: &Output) -> Result<ExitCode, Failure> {
    let Some((name, rest)) = args.command.split_first() else { return Err(Failure::usage("no command")) };
    let program = Program::find(name)?;
    let mut signals = Signals::listen().map_err(|error| Failure::new(Code::Failed, error.to_string()))?;
    let (feed, terms) = watch::channel(args.terms(SupervisorAction::Run));
    let job = Job { program: &program, args: rest, env: &[], grace: args.grace, signal: Signal::TERM };
    let running = super::run(&job, terms, &mut signals, output);
    let ordering = async {
        let (after, order) = match (args.lose_after, args.stop_after) {
            (Some(after), _) => (after, SupervisorAction::Lost),
            (None, Some(after)) => (after, SupervisorAction::Stop),
            (None, None) => std::future::pending().await,
        };
        tokio::time::sleep(after).await;
        feed.send_modify(|terms| terms.order = order);
        std::future::pending::<()>().await;
    };
    let renewing = async {
        let Some(every) = args.renew_every else { return std::future::pending().await };
        loop {
            tokio::time::sleep(every).await;
            feed.send_modify(|terms| terms.deadlines = args.terms(SupervisorAction::Run).deadlines);
        }
    };
    let outcome = tokio::select! {
        biased;
        outcome = running => outcome?,
        () = ordering => unreachable!("the future never completes"),
        () = renewing => unreachable!("the future never completes"),
    };
    Ok(ExitCode::from(outcome.exit_code()))
}
