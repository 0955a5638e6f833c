//! Term after term: leading, and why that ends.
//!
//! **Invariant**: leadership is given up only when nothing of the command is left.

use std::process::ExitCode;
use std::time::Instant;

use tenure::election::{Ask, Dismissal, Term};
use tenure::hold::LossReason;

use super::candidacy::Candidacy;
use super::words::Why;
use crate::failure::{Code, Failure};
use crate::hold::{Line, Progress, Run, Stop, Wait, taken};
use crate::supervise::{Program, Signals};

/// How a term ended. Nothing of the command is left.
enum End {
    /// The command ended by itself or by a signal to us; without a command, the signal ended it.
    Done(u8),
    /// Leadership was lost.
    Lost(LossReason),
    /// Somebody asked for it.
    Dismissed(Dismissal),
    /// Leadership was lost before the command was started.
    NotBegun,
}

/// A term that is over.
struct Served {
    end: End,
    /// The exit code, if there is no other term because we were told to end.
    told: Option<u8>,
}

impl Candidacy<'_> {
    /// Leads whenever it can, until there is nothing more to lead for.
    pub(super) async fn serve(&self, signals: &mut Signals) -> Result<ExitCode, Stop> {
        let begin = Instant::now();
        let progress = Progress::default();
        let mut wait = self.args.wait.map_or(Wait::Endless, Wait::UpTo);
        loop {
            let term = self.stage.acquire(self, wait, begin, &progress, signals).await?;
            // Whoever has led stays a candidate for as long as it takes.
            wait = Wait::Endless;
            if let Err(failure) = self.tell_leading(&term) {
                let _ = self.stage.release(term.resign()).await;
                return Err(failure.into());
            }
            let served = match &self.stage.program {
                Some(program) => self.run(program, &term, signals).await,
                None => Ok(stay(&term, signals).await),
            };
            match served {
                Ok(served) => {
                    if let Some(code) = self.step_down(term, served, signals).await? {
                        return Ok(code);
                    }
                }
                Err(failure) => {
                    let _ = self.stage.release(term.resign()).await;
                    return Err(failure.into());
                }
            }
        }
    }

    /// Runs the command for as long as we lead, or until somebody asks for leadership.
    async fn run(&self, program: &Program, term: &Term, signals: &mut Signals) -> Result<Served, Failure> {
        let key = String::from_utf8_lossy(&term.fence().key).into_owned();
        let env = vec![("TENURE_ELECTION", self.name().into()), ("TENURE_ELECTION_KEY", key.into())];
        match self.stage.run(program, env, term, term.dismissed(), signals).await {
            Ok(run) => Ok(Served::after(run)),
            // Nothing ran, so nothing was lost: it is our turn again later.
            Err(failure) if failure.code == Code::Lost => Ok(Served { end: End::NotBegun, told: None }),
            Err(failure) => Err(failure),
        }
    }

    /// Gives leadership up, as far as it is still ours, and says so. Gives an exit code if that was the last term.
    async fn step_down(
        &self,
        term: Term,
        Served { end, told }: Served,
        signals: &mut Signals,
    ) -> Result<Option<ExitCode>, Stop> {
        let (stage, name) = (self.stage, self.name());
        let (token, ttl) = (term.token(), term.ttl());
        let is_last = self.args.one_term || told.is_some();
        let and_then = if stage.program.is_some() { "and the command was stopped" } else { "while leading" };
        match end {
            End::Done(code) => {
                let released = stage.release(term.resign()).await;
                let lost = taken(released.as_ref());
                self.tell_stopped(token, if lost.is_some() { Why::Lost } else { Why::Ended })?;
                if let Some(why) = lost {
                    return Ok(Some(stage.lost(name, why, "perhaps before the command ended by itself")));
                }
                stage.warn_unless(released.as_ref(), name, ttl);
                Ok(Some(ExitCode::from(code)))
            }
            End::Lost(why) => {
                // Asked to stop in time, the command may be gone before leadership is.
                let _ = stage.give_back(term.resign()).await;
                self.tell_stopped(token, Why::Lost)?;
                if is_last {
                    return Ok(Some(stage.lost(name, why, and_then)));
                }
                stage.again(name, &format!("was lost ({why}), {and_then}"));
                Ok(None)
            }
            End::Dismissed(dismissal) => {
                let gone = tokio::select! {
                    biased;
                    // It goes on in the background.
                    signal = signals.next_end() => Err(Stop::signal(signal)),
                    gone = term.obey(&dismissal) => Ok(gone),
                };
                self.tell_stopped(token, Why::Asked)?;
                stage.warn_unless(Some(&gone?), name, ttl);
                let why = format!("was given up because {} asked for it", by(&dismissal.ask));
                if let Some(code) = told {
                    return Ok(Some(ExitCode::from(code)));
                }
                if is_last {
                    let message = format!("'{name}' {why}, {and_then}");
                    let hint = format!("see who leads with `tenure election show {name}`");
                    stage.output.failure(&Failure::new(Code::Lost, message).hint(hint));
                    return Ok(Some(ExitCode::from(stage.args.lost)));
                }
                stage.again(name, &why);
                Ok(None)
            }
            End::NotBegun => {
                let _ = stage.give_back(term.resign()).await;
                self.tell_stopped(token, Why::Lost)?;
                stage.again(name, "was lost before the command was started");
                Ok(None)
            }
        }
    }
}

impl Served {
    fn after(Run { outcome, why, recalled }: Run<Dismissal>) -> Served {
        let told = outcome.is_told.then(|| outcome.exit_code());
        let end = match recalled {
            _ if outcome.is_lost => End::Lost(why.unwrap_or(LossReason::Lapsed)),
            Some(dismissal) if outcome.is_stopped => End::Dismissed(dismissal),
            // Whatever was asked came after its end.
            Some(_) | None => End::Done(outcome.exit_code()),
        };
        Served { end, told }
    }
}

/// Leads without a command: until a signal, until somebody asks for it, or until that is not true any more.
async fn stay(term: &Term, signals: &mut Signals) -> Served {
    let end = tokio::select! {
        biased;
        lost = term.lost() => End::Lost(lost.reason),
        _ = signals.next_end() => End::Done(0),
        dismissal = term.dismissed() => End::Dismissed(dismissal),
    };
    Served { end, told: None }
}

fn by(ask: &Ask) -> &str {
    match ask {
        Ask::Resign { by } | Ask::Transfer { by, .. } if by.is_empty() => "somebody",
        Ask::Resign { by } | Ask::Transfer { by, .. } => by,
    }
}
