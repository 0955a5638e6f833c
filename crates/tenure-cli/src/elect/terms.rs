//! Leads term after term, and ends each term.
//!
//! **Invariant**: leadership is released only after the last process of the command has ended.

use std::process::ExitCode;
use std::time::Instant;

use tenure::election::{StepDownRequest, Term};
use tenure::hold::LossReason;

use super::output::StopCause;
use super::subject::ElectionSubject;
use crate::failure::{Code, Failure};
use crate::hold::{CommandRun, HoldExit, HoldSubject, Wait, WaitProgress, taken};
use crate::lock::MAYBE_DURING;
use crate::supervise::{Program, Signals};

/// How a term ended. No process of the command is left.
enum TermExit {
    /// The command ended by itself or after a signal; without a command, the signal ended the term.
    Done(u8),
    /// Leadership was lost.
    Lost(LossReason),
    /// A step-down was requested.
    Dismissed(Box<StepDownRequest>),
    /// Leadership was lost before the command was started.
    NotBegun,
}

/// The result of a term.
struct TermResult {
    end: TermExit,
    /// The exit code, if this is the last term because of a signal.
    last: Option<u8>,
}

impl ElectionSubject<'_> {
    /// Campaigns and leads, term after term, until the command ends or this process gets a signal.
    pub(super) async fn lead(&self, signals: &mut Signals) -> Result<ExitCode, HoldExit> {
        let begin = Instant::now();
        let progress = WaitProgress::default();
        let mut wait = self.args.wait.map_or(Wait::Endless, Wait::UpTo);
        loop {
            let term = self.context.acquire(self, wait, begin, &progress, signals).await?;
            // `--wait` limits the first term only.
            wait = Wait::Endless;
            if let Err(failure) = self.report_leading(&term) {
                let _ = self.context.release(term.resign()).await;
                return Err(failure.into());
            }
            let result = match &self.context.program {
                Some(program) => self.run(program, &term, signals).await,
                None => Ok(hold(&term, signals).await),
            };
            match result {
                Ok(result) => {
                    if let Some(code) = self.end_term(term, result, signals).await? {
                        return Ok(code);
                    }
                }
                Err(failure) => {
                    let _ = self.context.release(term.resign()).await;
                    return Err(failure.into());
                }
            }
        }
    }

    /// Runs the command while this process leads, or until a step-down is requested.
    async fn run(
        &self,
        program: &Program,
        term: &Term,
        signals: &mut Signals,
    ) -> Result<TermResult, Failure> {
        let key = String::from_utf8_lossy(&term.fence().key).into_owned();
        let env = vec![("TENURE_ELECTION", self.name().into()), ("TENURE_ELECTION_KEY", key.into())];
        match self.context.run(program, env, term, term.step_down_requested(), signals).await {
            Ok(run) => Ok(TermResult::after(run)),
            // The command did not run, so this process can enter the queue again.
            Err(failure) if failure.code == Code::Lost => {
                Ok(TermResult { end: TermExit::NotBegun, last: None })
            }
            Err(failure) => Err(failure),
        }
    }

    /// Releases leadership if it is still held, and reports the end. Returns an exit code after the last term.
    async fn end_term(
        &self,
        term: Term,
        TermResult { end, last }: TermResult,
        signals: &mut Signals,
    ) -> Result<Option<ExitCode>, HoldExit> {
        let (context, name) = (self.context, self.name());
        let (token, ttl) = (term.token(), term.ttl());
        let is_last = self.args.one_term || last.is_some();
        let and_then =
            if context.program.is_some() { "and the command was stopped" } else { "while leading" };
        match end {
            TermExit::Done(code) => {
                let released = context.release(term.resign()).await;
                let lost = taken(released.as_ref());
                self.report_stopped(token, if lost.is_some() { StopCause::Lost } else { StopCause::Ended })?;
                if let Some(reason) = lost {
                    return Ok(Some(context.lost(name, reason, MAYBE_DURING)));
                }
                context.warn_unless(released.as_ref(), name, ttl);
                Ok(Some(ExitCode::from(code)))
            }
            TermExit::Lost(reason) => {
                // The command may have stopped before the lease ended, so there may be a key to delete.
                let _ = context.release_only(term.resign()).await;
                self.report_stopped(token, StopCause::Lost)?;
                if is_last {
                    return Ok(Some(context.lost(name, reason, and_then)));
                }
                context.note_retry(name, &format!("was lost ({reason}), {and_then}"));
                Ok(None)
            }
            TermExit::Dismissed(dismissal) => {
                let released = tokio::select! {
                    biased;
                    // The release goes on in the background.
                    signal = signals.next_end() => Err(HoldExit::signal(signal)),
                    released = term.accept(&dismissal) => Ok(released),
                };
                self.report_stopped(token, StopCause::Asked)?;
                context.warn_unless(Some(&released?), name, ttl);
                let why = format!("was released because {} requested it", by(&dismissal));
                if let Some(code) = last {
                    return Ok(Some(ExitCode::from(code)));
                }
                if is_last {
                    let message = format!("'{name}' {why}, {and_then}");
                    let hint = format!("see the leader with `tenure election show {name}`");
                    context.output.failure(&Failure::new(Code::Lost, message).hint(hint));
                    return Ok(Some(ExitCode::from(context.args.lost)));
                }
                context.note_retry(name, &why);
                Ok(None)
            }
            TermExit::NotBegun => {
                let _ = context.release_only(term.resign()).await;
                self.report_stopped(token, StopCause::Lost)?;
                context.note_retry(name, "was lost before the command was started");
                Ok(None)
            }
        }
    }
}

impl TermResult {
    fn after(CommandRun { outcome, loss, recalled }: CommandRun<StepDownRequest>) -> TermResult {
        let last = outcome.is_signaled.then(|| outcome.exit_code());
        let end = match recalled {
            _ if outcome.is_lost => TermExit::Lost(loss.unwrap_or(LossReason::Lapsed)),
            Some(dismissal) if outcome.is_stopped => TermExit::Dismissed(Box::new(dismissal)),
            // The request came after the end of the command.
            Some(_) | None => TermExit::Done(outcome.exit_code()),
        };
        TermResult { end, last }
    }
}

/// Leads without a command, until a signal, a request to step down, or the loss of leadership.
async fn hold(term: &Term, signals: &mut Signals) -> TermResult {
    let end = tokio::select! {
        biased;
        lost = term.lost() => TermExit::Lost(lost.reason),
        _ = signals.next_end() => TermExit::Done(0),
        dismissal = term.step_down_requested() => TermExit::Dismissed(Box::new(dismissal)),
    };
    TermResult { end, last: None }
}

fn by(request: &StepDownRequest) -> &str {
    if request.by.is_empty() { "another process" } else { &request.by }
}
