//! A term of leadership on a TTL storage, as its owner sees it.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use tenure_core::revision::Token;

use super::term_state::TtlTermState;
use crate::hold::{LossReason, ReleaseError, Validity};

/// Leadership on a TTL storage, until it is released, dropped or lost. It is renewed in the background. Its methods are those of [`Validity`].
///
/// ```
/// use tenure::BootClock;
/// use tenure::ttl::{MemoryStorage, TtlElections};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let elections = TtlElections::new(MemoryStorage::<String, String>::new(BootClock));
/// let term = elections.election("reports").campaign("web-1").await?;
/// let report = term.run(async { "42 pages" }).await?; // dropped if the term is lost
/// assert_eq!(report, "42 pages");
/// term.release().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Guarantees
///
/// * [`Validity::is_valid`] is false before the storage can give the key to another candidate, also after a suspend and while the storage hangs.
/// * [`Validity::run`] does not poll its future once the term is not valid.
///
/// # Not guaranteed
///
/// * That an effect in flight when validity ends does not arrive later: pass [`TtlTerm::token`] to the resource, and let it refuse a smaller
///   one than the largest it has seen.
///
/// # Cancellation
///
/// Dropping it ends validity at once and releases the key in the background.
#[must_use = "a term that is dropped is released"]
pub struct TtlTerm {
    owner: Arc<TtlTermOwner>,
    validity: Validity,
}

/// Releases the term with its last owner.
struct TtlTermOwner(Arc<TtlTermState>);

impl Drop for TtlTermOwner {
    fn drop(&mut self) {
        self.0.leave(LossReason::Released);
    }
}

impl TtlTerm {
    pub(super) fn new(state: Arc<TtlTermState>, validity: Validity) -> TtlTerm {
        TtlTerm { owner: Arc::new(TtlTermOwner(state)), validity }
    }

    /// Another owner of the same term.
    pub(super) fn share(&self) -> TtlTerm {
        TtlTerm { owner: self.owner.clone(), validity: self.validity.clone() }
    }

    /// The fencing token, larger than that of every earlier leader; `None` on a storage without tokens.
    pub fn token(&self) -> Option<Token> {
        self.owner.0.token()
    }

    /// A view of the validity that keeps nothing alive.
    pub fn validity(&self) -> Validity {
        self.validity.clone()
    }

    /// Ends validity, stops the work that runs under the term and waits for it, then deletes the key.
    ///
    /// # Errors
    ///
    /// [`ReleaseError`]. The term has ended in any case.
    ///
    /// # Cancellation
    ///
    /// The release continues in the background.
    pub async fn release(self) -> Result<(), ReleaseError> {
        self.check()?;
        self.owner.0.release().await
    }
}

impl Deref for TtlTerm {
    type Target = Validity;

    fn deref(&self) -> &Validity {
        &self.validity
    }
}

impl fmt::Debug for TtlTerm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TtlTerm")
            .field("token", &self.token())
            .field("validity", &self.validity)
            .finish_non_exhaustive()
    }
}
