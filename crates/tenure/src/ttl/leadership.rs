//! What a leader holds.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use tenure_core::revision::Token;

use super::elections::ReleaseError;
use super::term::Term;
use crate::hold::{LossReason, Validity};

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
/// * [`Validity::is_valid`] is false before the storage can give the key to another candidate, also after a suspend and while the storage hangs.
/// * [`Validity::run`] does not poll its future once it is not valid.
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
    validity: Validity,
}

impl<K> Leadership<K> {
    pub(super) fn new(key: K, term: Arc<Term>, validity: Validity) -> Leadership<K> {
        Leadership { key, term, validity }
    }

    /// What is led.
    pub fn key(&self) -> &K {
        &self.key
    }

    /// The fencing token, where the storage has one: larger than that of every leader before.
    pub fn token(&self) -> Option<Token> {
        self.term.token()
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
        if !self.is_valid() {
            return Err(ReleaseError::NotLeading);
        }
        self.term.release().await
    }
}

impl<K> Drop for Leadership<K> {
    fn drop(&mut self) {
        self.term.leave(LossReason::Released);
    }
}

impl<K> Deref for Leadership<K> {
    type Target = Validity;

    fn deref(&self) -> &Validity {
        &self.validity
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
