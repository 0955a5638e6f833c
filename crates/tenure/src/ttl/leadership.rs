//! What a leader holds.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tenure_core::revision::Token;

use super::elections::ReleaseError;
use super::term::{Loss, Term};

/// A leadership that was acquired. It is renewed in the background; dropping it gives it back.
///
/// ```
/// use std::time::Duration;
/// use tenure::clock::BootClock;
/// use tenure::ttl::{Elections, Memory};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let elections = Elections::new(Memory::<String, String>::new(BootClock), BootClock);
/// let leadership = elections.acquire("reports".into(), "web-1".into(), Duration::from_secs(15)).await?;
///
/// // The work is dropped the moment the leadership cannot be proven any more.
/// let report = leadership.run(async { "forty-two pages" }).await?;
/// assert_eq!(report, "forty-two pages");
///
/// leadership.release().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Guarantees
///
/// * [`Leadership::is_valid`] is false before the storage can give the key to anybody else, also after a suspend and while the storage hangs.
/// * [`Leadership::run`] does not poll its future once it is not valid.
///
/// # Not guaranteed
///
/// * That an effect which is under way when validity ends does not arrive later: give the [`Leadership::token`] to the resource, and let it
///   refuse a smaller one than the last it saw.
///
/// # Cancellation
///
/// Dropping it withdraws permission at once and gives the key back in the background, in the order of a release.
pub struct Leadership<K> {
    key: K,
    term: Arc<Term>,
}

impl<K> Leadership<K> {
    pub(super) fn new(key: K, term: Arc<Term>) -> Leadership<K> {
        Leadership { key, term }
    }

    /// What is led.
    pub fn key(&self) -> &K {
        &self.key
    }

    /// The fencing token, where the storage has one: larger than that of every leader before.
    pub fn token(&self) -> Option<Token> {
        self.term.token()
    }

    /// Whether the leader may act, at this very moment.
    pub fn is_valid(&self) -> bool {
        self.term.is_valid()
    }

    /// How long the leader may act if nothing is renewed.
    pub fn remaining(&self) -> Duration {
        self.term.remaining()
    }

    /// Waits until the leadership is over, and says why.
    ///
    /// # Cancellation
    ///
    /// Dropping the future changes nothing.
    pub async fn lost(&self) -> Loss {
        self.term.lost().await
    }

    /// Runs a future for as long as the leadership is valid; when it is not, the future is dropped and the reason returned.
    ///
    /// A release waits until the future has ended or was dropped.
    ///
    /// # Cancellation
    ///
    /// Dropping the future drops the work, and changes nothing about the leadership.
    ///
    /// # Errors
    ///
    /// Why the leadership was over before the work was.
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output, Loss> {
        // Dropped after the work: a release must not think that the work has ended while it is being dropped.
        let _running = self.term.begin_work()?;
        let mut work = pin!(work);
        let mut lost = pin!(self.lost());
        poll_fn(|context| {
            // The clock is asked first: in a process that was stopped nobody has noticed anything yet.
            if let Some(loss) = self.term.loss() {
                return Poll::Ready(Err(loss));
            }
            if let Poll::Ready(loss) = lost.as_mut().poll(context) {
                return Poll::Ready(Err(loss));
            }
            work.as_mut().poll(context).map(Ok)
        })
        .await
    }

    /// Gives the leadership up: permission ends, the work is stopped and waited for, then the key is deleted.
    ///
    /// # Cancellation
    ///
    /// Dropping the future does not stop the release.
    ///
    /// # Errors
    ///
    /// See [`ReleaseError`]. After all of them the leadership is over.
    pub async fn release(self) -> Result<(), ReleaseError> {
        if !self.term.is_valid() {
            return Err(ReleaseError::NotLeading);
        }
        self.term.release().await
    }
}

impl<K> Drop for Leadership<K> {
    fn drop(&mut self) {
        self.term.leave();
    }
}

impl<K: fmt::Debug> fmt::Debug for Leadership<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leadership")
            .field("key", &self.key)
            .field("token", &self.token())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}
