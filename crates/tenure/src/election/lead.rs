//! Work that runs while this process leads, and at no other time.

use std::future::Future;
use std::time::Duration;

use thiserror::Error;
use tracing::{debug, info, warn};

use super::{Campaign, CampaignError, StepDownRequest, Term};
use crate::error::{ErrorClass, classified};
use crate::hold::{LossReason, Lost};

/// Why the work of a leader did not complete.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum LeadError {
    /// No term began.
    #[error(transparent)]
    Campaign(#[from] CampaignError),
    /// Leadership was lost, and the work was dropped.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// Another process requested it: the work was dropped, and leadership resigned or transferred. Only with [`Campaign::one_term`].
    #[error("stepped down, as {by:?} requested")]
    SteppedDown {
        /// The name of that process; empty if it has none.
        by: String,
    },
    /// The connection or the session is closed. The work was dropped, and leadership resigned.
    #[error("closed")]
    Closed,
}

impl LeadError {
    /// What the caller can do about it.
    pub fn class(&self) -> ErrorClass {
        match self {
            LeadError::Campaign(error) => error.class(),
            LeadError::Lost(lost) => lost.into(),
            LeadError::SteppedDown { .. } => ErrorClass::Conflict,
            LeadError::Closed => ErrorClass::Closed,
        }
    }
}

classified!(LeadError);

/// How a term ended.
enum ServedTerm<T> {
    Done(T),
    Lost(Lost),
    StepDown(Box<StepDownRequest>),
    /// The connection is closing.
    Closing,
}

impl Campaign {
    /// Campaigns, runs the work while leadership is valid, and resigns when the work has ended. Campaigns again after a loss.
    ///
    /// The work is a future, made anew for each term. It is dropped when leadership is not valid any more, and before leadership is
    /// released because another process requested it. What the work spawned is not dropped with it: let it end with the future, or check
    /// the term.
    ///
    /// ```
    /// use tenure::Tenure;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> tenure::Result<()> {
    /// let tenure = Tenure::connect("memory:").await?;
    /// let campaign = tenure.election("scheduler").campaign().value("10.0.0.7:80");
    /// let token = campaign.lead(|term| async move { term.token() }).await?;
    /// assert!(token.0 > tenure::Revision::ZERO);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`LeadError`] for what another campaign cannot mend, such as a closed session; with [`Campaign::one_term`] for every loss.
    ///
    /// # Cancellation
    ///
    /// Drops the work and resigns in the background.
    pub async fn lead<T, Work: Future<Output = T>>(
        self,
        mut work: impl FnMut(Term) -> Work,
    ) -> Result<T, LeadError> {
        let election = self.queue.as_ref().map_err(|invalid| CampaignError::from(invalid.clone()))?;
        let (closing, election) = (election.elections.closing.clone(), election.name.clone());
        // `Tenure::close` waits for this, so that it finds no term that is held.
        let _running = closing.enter(Duration::ZERO);
        loop {
            let term = tokio::select! {
                biased;
                () = closing.requested() => return Err(LeadError::Closed),
                term = self.clone().send() => term,
            };
            let term = match term {
                Ok(term) => term,
                Err(CampaignError::Closed) => return Err(LeadError::Closed),
                // No term began, and the session gets another lease.
                Err(CampaignError::Lost(_)) if self.leads_again => continue,
                Err(error) => return Err(error.into()),
            };
            let token = term.token();
            info!(%election, %token, "leadership acquired");
            match serve(&term, work(term.share()), closing.requested()).await {
                ServedTerm::Done(done) => {
                    if let Err(error) = term.release().await {
                        debug!(%election, %token, %error, "resignation not confirmed");
                    }
                    return Ok(done);
                }
                ServedTerm::Lost(lost) => {
                    warn!(%election, %token, reason = %lost.reason, "leadership lost");
                    if lost.reason == LossReason::Closed {
                        return Err(LeadError::Closed);
                    }
                    if !self.leads_again {
                        return Err(LeadError::Lost(lost));
                    }
                }
                ServedTerm::Closing => {
                    info!(%election, %token, "leadership resigned on close");
                    if let Err(error) = term.release().await {
                        debug!(%election, %token, %error, "resignation not confirmed");
                    }
                    return Err(LeadError::Closed);
                }
                ServedTerm::StepDown(request) => {
                    info!(%election, %token, by = request.by, "step-down accepted");
                    // The work is dropped by now, so the next leader does not overlap it.
                    if let Err(error) = term.step_down(&request).await {
                        debug!(%election, %token, %error, "step-down not confirmed");
                    }
                    if !self.leads_again {
                        return Err(LeadError::SteppedDown { by: request.by });
                    }
                }
            }
        }
    }

    /// [`Campaign::lead`] for work that can fail: one `?` for both errors.
    ///
    /// # Errors
    ///
    /// Those of the work and of [`Campaign::lead`].
    ///
    /// # Cancellation
    ///
    /// Drops the work and resigns in the background.
    pub async fn try_lead<T, E, Work>(self, work: impl FnMut(Term) -> Work) -> Result<T, E>
    where
        E: From<LeadError>,
        Work: Future<Output = Result<T, E>>,
    {
        self.lead(work).await?
    }
}

/// Runs the work until it has ended, leadership is lost, the connection closes, or another process requests to step down.
async fn serve<T>(
    term: &Term,
    work: impl Future<Output = T>,
    closing: impl Future<Output = ()>,
) -> ServedTerm<T> {
    let working = async {
        tokio::select! {
            biased;
            done = work => ServedTerm::Done(done),
            () = closing => ServedTerm::Closing,
            request = term.step_down_requested() => ServedTerm::StepDown(Box::new(request)),
        }
    };
    term.run(working).await.unwrap_or_else(ServedTerm::Lost)
}
