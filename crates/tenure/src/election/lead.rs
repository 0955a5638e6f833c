//! Leading whenever it can be done: the work runs while leadership is proven, and at no other time.

use std::future::Future;
use std::sync::Arc;

use tenure_core::layout::Place;
use tenure_core::revision::Token;
use thiserror::Error;
use tracing::{debug, info, warn};

use super::{Ask, Campaign, CampaignError, Term};
use crate::line::{Lost, StandError};
use crate::store::StoreError;

/// Why the work did not come to its end.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum LeadError {
    /// We never led.
    #[error(transparent)]
    NotElected(#[from] CampaignError),
    /// Leadership was lost, and the work dropped.
    #[error("leadership was lost: {0}")]
    Lost(Lost),
    /// Somebody asked us to go; the work was dropped and leadership given up.
    #[error("somebody asked us to go")]
    Asked(Ask),
}

/// How a term ended.
enum Served<T> {
    Done(T),
    Lost(Lost),
    /// With the heir, if one was named.
    Asked(Ask, Option<(Place, Token)>),
}

impl Campaign {
    /// Campaigns, does the work while leadership is proven, and resigns when the work has ended.
    ///
    /// The work is a future, made anew for each term. It is dropped the moment leadership cannot be proven any more, and before
    /// leadership is given up because somebody asked for it; after both, it campaigns again, unless [`Campaign::once`] was said.
    /// What the work spawned is not dropped with it: let it end with the future, or look at the term.
    ///
    /// ```
    /// # use tenure::core::name::Namespace;
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
                Err(CampaignError::NotElected(StandError::SessionLost(_))) if self.leads_again => continue,
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
                Served::Lost(why) => {
                    warn!(%election, %token, %why, "leadership was lost");
                    if !self.leads_again || why == Lost::Closed {
                        return Err(LeadError::Lost(why));
                    }
                }
                Served::Asked(ask, heir) => {
                    info!(%election, %token, ?ask, "goes as it was asked to");
                    // The work is dropped by now; whoever kept the term is told before the store is.
                    let gone = match heir {
                        Some(heir) => {
                            term.withdraw();
                            term.hand_over(heir).await
                        }
                        None => term.step_down().await,
                    };
                    if let Err(error) = gone {
                        debug!(%election, %token, %error, "went without an answer");
                    }
                    if !self.leads_again {
                        return Err(LeadError::Asked(ask));
                    }
                }
            }
        }
    }
}

/// Does the work until it has ended, leadership is lost, or somebody asks for it.
async fn serve<T>(term: &Term, work: impl Future<Output = T>) -> Served<T> {
    let asked = async {
        loop {
            let ask = term.asked().await;
            match heir(term, &ask).await {
                Ok(Heir::Anybody) => return (ask, None),
                Ok(Heir::Named(heir)) => return (ask, Some(heir)),
                // It cannot be obeyed, so it need not stand there any more.
                Ok(Heir::Gone) => match term.decline().await {
                    Ok(()) => continue,
                    Err(error) => debug!(%error, "wish was not taken away"),
                },
                Err(error) => debug!(%error, "heir was not looked up"),
            }
            // The end of the term ends the trying.
            tokio::time::sleep(LOOK_AGAIN_AFTER).await;
        }
    };
    let working = async {
        tokio::select! {
            biased;
            done = work => Served::Done(done),
            (ask, heir) = asked => Served::Asked(ask, heir),
        }
    };
    term.run(working).await.unwrap_or_else(Served::Lost)
}

/// How long to wait for a store that did not answer a question: it is somebody's wish, not ours, so there is no hurry.
const LOOK_AGAIN_AFTER: std::time::Duration = std::time::Duration::from_millis(500);

enum Heir {
    Anybody,
    Named((Place, Token)),
    Gone,
}

async fn heir(term: &Term, ask: &Ask) -> Result<Heir, StoreError> {
    match ask {
        Ask::Resign { .. } => Ok(Heir::Anybody),
        Ask::Transfer { heir, .. } if *heir == term.place() => Ok(Heir::Gone),
        Ask::Transfer { heir, .. } => {
            let found = term.election().candidate(*heir).await?;
            Ok(found.map_or(Heir::Gone, |heir| Heir::Named((heir.place, heir.token))))
        }
    }
}
