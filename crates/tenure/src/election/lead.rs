//! Leading whenever it can be done: the work runs while leadership is proven, and at no other time.

use std::future::Future;
use std::sync::Arc;

use thiserror::Error;
use tracing::{debug, info, warn};

use super::{Ask, Campaign, CampaignError, Dismissal, Term};
use crate::hold::{LossReason, Lost};

/// Why the work did not come to its end.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum LeadError {
    /// No term began.
    #[error(transparent)]
    Campaign(#[from] CampaignError),
    /// Leadership was lost, and the work dropped.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// Somebody asked us to go; the work was dropped and leadership given up.
    #[error("somebody asked us to go")]
    Asked(Ask),
}

/// How a term ended.
enum Served<T> {
    Done(T),
    Lost(Lost),
    Asked(Dismissal),
}

impl Campaign {
    /// Campaigns, does the work while leadership is proven, and resigns when the work has ended.
    ///
    /// The work is a future, made anew for each term. It is dropped the moment leadership cannot be proven any more, and before
    /// leadership is given up because somebody asked for it; after both, it campaigns again, unless [`Campaign::once`] was said.
    /// What the work spawned is not dropped with it: let it end with the future, or look at the term.
    ///
    /// ```
    /// # use tenure::Namespace;
    /// # use tenure::election::Elections;
    /// # use tenure::session::Session;
    /// # use tenure::store::Store;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let session = Session::open(Store::memory())?;
    /// # let election = Elections::new(&session, &Namespace::parse("shop")?).election("scheduler")?;
    /// let token = election.campaign("web-1").lead(|term| async move { term.token() }).await?;
    /// # assert!(token.0 > tenure::store::Revision::ZERO);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// What campaigning again cannot mend, a closed session among it; with [`Campaign::once`] every loss.
    ///
    /// # Cancellation
    ///
    /// Drops the work and resigns in the background.
    pub async fn lead<T, Work: Future<Output = T>>(
        self,
        mut work: impl FnMut(Arc<Term>) -> Work,
    ) -> Result<T, LeadError> {
        let election = self.election.name().clone();
        loop {
            let term = match self.clone().run().await {
                Ok(term) => Arc::new(term),
                // Nothing was led, and the session finds another lease.
                Err(CampaignError::Lost(_)) if self.leads_again => continue,
                Err(error) => return Err(error.into()),
            };
            let token = term.token();
            info!(%election, %token, "leads");
            match serve(&term, work(term.clone())).await {
                Served::Done(done) => {
                    if let Err(error) = term.step_down().await {
                        debug!(%election, %token, %error, "resigned without an answer");
                    }
                    return Ok(done);
                }
                Served::Lost(lost) => {
                    warn!(%election, %token, reason = %lost.reason, "leadership lost");
                    if !self.leads_again || lost.reason == LossReason::Closed {
                        return Err(LeadError::Lost(lost));
                    }
                }
                Served::Asked(dismissal) => {
                    info!(%election, %token, ask = ?dismissal.ask, "goes as it was asked to");
                    // The work is dropped by now.
                    if let Err(error) = term.go(&dismissal).await {
                        debug!(%election, %token, %error, "went without an answer");
                    }
                    if !self.leads_again {
                        return Err(LeadError::Asked(dismissal.ask));
                    }
                }
            }
        }
    }
}

/// Does the work until it has ended, leadership is lost, or somebody asks for it.
async fn serve<T>(term: &Term, work: impl Future<Output = T>) -> Served<T> {
    let working = async {
        tokio::select! {
            biased;
            done = work => Served::Done(done),
            dismissal = term.dismissed() => Served::Asked(dismissal),
        }
    };
    term.run(working).await.unwrap_or_else(Served::Lost)
}
