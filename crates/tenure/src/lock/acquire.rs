//! Asking for a lock: how long to wait, on which terms, and how it can end.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tenure_core::layout::Rank;
use tenure_core::line::Mode;
use tenure_core::name::BadName;
use tenure_core::record::{HolderRecord, Record};
use thiserror::Error;

use super::Guard;
use crate::clock::wall_time;
use crate::line::{Desk, Patience, StandError, Wish};

/// A lock that is about to be asked for.
#[must_use = "nothing is locked before this is awaited"]
pub struct Acquire {
    desk: Desk,
    holder: Arc<HolderRecord>,
    mode: Mode,
    reason: Option<String>,
    line: Result<Bytes, BadName>,
    ttl: Option<Duration>,
    patience: Patience,
}

/// Why a lock is not held.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum LockError {
    /// No lock has such a name. Nothing was sent.
    #[error(transparent)]
    Name(#[from] BadName),
    /// It is not ours.
    #[error(transparent)]
    NotHeld(#[from] StandError),
}

impl Acquire {
    pub(super) fn new(
        desk: Desk,
        (holder, mode): (Arc<HolderRecord>, Mode),
        line: Result<Bytes, BadName>,
    ) -> Acquire {
        Acquire { desk, holder, mode, reason: None, line, ttl: None, patience: Patience::Endless }
    }

    /// With a lease of its own length; the session's otherwise.
    pub fn ttl(mut self, ttl: Duration) -> Acquire {
        self.ttl = Some(ttl);
        self
    }

    /// Waits this long for the current holders and for earlier waiters. A wait of zero is [`Acquire::try_once`].
    pub fn wait_up_to(mut self, wait: Duration) -> Acquire {
        self.patience = Patience::up_to(wait);
        self
    }

    /// Does not wait: [`StandError::Held`] if the store's complete reply shows that it cannot be acquired now.
    /// A free permit or a lock that only shared holders have is acquired.
    pub fn try_once(mut self) -> Acquire {
        self.patience = Patience::None;
        self
    }

    /// Why it is locked, for those who look.
    pub fn reason(mut self, reason: impl Into<String>) -> Acquire {
        self.reason = Some(reason.into());
        self
    }

    async fn ask(self) -> Result<Guard, LockError> {
        let value = self.record();
        let Acquire { desk, mode, ttl, patience, line, .. } = self;
        let wish = Wish { line: line?, mode, rank: Rank::Ordinary, value, ttl, patience, former: None };
        Ok(Guard::new(desk.hold(wish).await?))
    }

    /// What others see of us.
    fn record(&self) -> Bytes {
        let mut holder = (*self.holder).clone();
        (holder.mode, holder.queued) = (self.mode, wall_time());
        if let Some(reason) = &self.reason {
            holder.reason.clone_from(reason);
        }
        holder.encode()
    }
}

impl IntoFuture for Acquire {
    type Output = Result<Guard, LockError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.ask())
    }
}
