//! Asking a leader to go, from anywhere.
//!
//! The wish is put into the leader's own key, which the leader watches: whoever may write there could delete it as well, so asking is
//! the polite way. A leader that does not answer keeps leading.

use futures_util::StreamExt;
use tenure_core::layout::{Key, QueueKey};
use tenure_core::queue::{CandidateChange, CandidateUpdate, Rewrite, RewriteError, RewriteLimit, Rewritten};
use tenure_core::record::{InvalidRecord, StepDownRecord};
use tenure_core::revision::Token;
use thiserror::Error;

use super::{Candidate, Election, Leader, Observe};
use crate::retry;
use crate::store::{Cause, StoreError};

/// How long a request is retried. More would only make the caller wait, who can send it again.
const EFFORT: RewriteLimit = RewriteLimit::Bounded { conflicts_max: 16, lost_max: 2 };

/// What somebody asks of a leader.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ask {
    /// To resign.
    Resign {
        /// Who asks.
        by: String,
    },
    /// To hand over.
    Transfer {
        /// To whom: the place of a candidate.
        heir: QueueKey,
        /// Who asks.
        by: String,
    },
}

impl Ask {
    /// Reads a wish; none if it names an heir that no candidate can be.
    pub(super) fn of(record: &StepDownRecord) -> Option<Ask> {
        let by = record.by.clone();
        match &record.heir {
            None => Some(Ask::Resign { by }),
            Some(heir) => QueueKey::parse(heir).map(|heir| Ask::Transfer { heir, by }),
        }
    }
}

/// What a leader is asked to do, and can do: see [`Term::dismissed`](super::Term::dismissed).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Dismissal {
    /// What was asked.
    pub ask: Ask,
    /// The heir, if one was named: it was there when this was made.
    pub(super) heir: Option<(QueueKey, Token)>,
}

/// What became of a leader that was asked to go.
#[derive(Clone, PartialEq, Debug)]
pub enum Answer {
    /// It does not lead any more. This one stands first since then, or nobody.
    Went(Option<Box<Leader>>),
    /// It goes on leading, and the wish does not stand any more: it did not want to, or could not.
    Declined,
}

/// Why nothing was asked.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AskError {
    /// It does not lead any more.
    #[error("it does not lead any more")]
    NotLeading,
    /// Its key holds something that is not a candidate's, and was left alone.
    #[error("the leader's key cannot be read")]
    Unreadable(#[source] InvalidRecord),
    /// The store did not do it, or nobody knows. To ask again does no harm.
    #[error("the store did not pass it on")]
    Store(#[source] StoreError),
}

impl Election {
    /// Asks a leader to resign. Returns when the wish stands in its key; what comes of it an observer sees.
    pub async fn ask_to_resign(&self, leader: &Leader) -> Result<(), AskError> {
        self.ask(leader, None).await
    }

    /// Asks a leader to hand over to a candidate. Returns when the wish stands in its key; what comes of it an observer sees.
    pub async fn ask_to_transfer(&self, leader: &Leader, heir: &Candidate) -> Result<(), AskError> {
        self.ask(leader, Some(heir.place.to_string())).await
    }

    /// Waits for what becomes of a leader that was asked to go. One that does not listen never answers.
    ///
    /// # Cancellation
    ///
    /// Leaves nothing behind; the wish still stands.
    ///
    /// # Errors
    ///
    /// Only what no trying can mend.
    pub async fn answer(&self, leader: &Leader) -> Result<Answer, StoreError> {
        let mut observe = Observe::with_wishes(self);
        while let Some(seen) = observe.next().await {
            match seen?.leader {
                Some(now) if now.token != leader.token => return Ok(Answer::Went(Some(Box::new(now)))),
                Some(now) if now.record.asked.is_none() => return Ok(Answer::Declined),
                Some(_) => {}
                None => return Ok(Answer::Went(None)),
            }
        }
        Err(StoreError::Closed)
    }

    async fn ask(&self, leader: &Leader, heir: Option<String>) -> Result<(), AskError> {
        let key = self.elections.layout.encode(&Key::Candidate(self.name.clone(), leader.place));
        let by = self.elections.candidate.to_string();
        let ask = StepDownRecord { by, heir, ..StepDownRecord::default() };
        let update = CandidateUpdate { change: CandidateChange::Request(Some(ask)), own: None };
        let mut rewrite = Rewrite::new(key, leader.token, update, EFFORT);
        match retry::run("request to a leader", self.store(), &self.elections.clock, &mut rewrite).await {
            Ok(Rewritten::Stored(..)) => Ok(()),
            Ok(Rewritten::Gone) => Err(AskError::NotLeading),
            Ok(Rewritten::Contended) => Err(AskError::Store(StoreError::Unavailable(Cause::new(
                "the leader's record was changed by others again and again",
            )))),
            Err(RewriteError::Store(error)) => Err(AskError::Store(error)),
            Err(RewriteError::Unreadable(bad)) => Err(AskError::Unreadable(bad)),
        }
    }
}
