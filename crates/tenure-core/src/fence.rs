//! Fencing: a resource refuses a holder that has lost its hold without noticing.
//!
//! Intuition: a holder can be paused between its last check of the lock and its write, for any
//! length of time. Nothing in the holder can help, because the holder is paused. Only the resource
//! that takes the write can, and it needs two things: a number that grows with every holder, and
//! the largest number it has seen.
//!
//! Inside the store nothing has to be remembered: the write itself carries the condition that the
//! holder's key is still the one that was created at its token. Outside, a [`FenceVerifier`]
//! remembers the largest token.
//!
//! **Invariant**: a verifier never admits a smaller token after a larger one of the same name.

use std::collections::BTreeMap;

use bytes::Bytes;
use thiserror::Error;

use crate::revision::Token;
use crate::sabotage::{SabotageRule, is_broken};
use crate::txn::{Condition, Txn};

/// A holder's proof for writes inside the store: its key and its token.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fence {
    /// The holder's own key.
    pub key: Bytes,
    /// The create revision of the key.
    pub token: Token,
}

impl Fence {
    /// Adds the condition that the holder still holds. Otherwise the transaction applies its
    /// `otherwise`.
    #[must_use]
    pub fn guard(&self, txn: Txn) -> Txn {
        if is_broken(SabotageRule::Fence) {
            return txn;
        }
        txn.when(Condition::created_at(self.key.clone(), self.token.0))
    }
}

/// A token that is smaller than one that was seen before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("token {shown} is stale: {seen} was seen before, so another process has held since")]
pub struct StaleToken {
    /// The token of the caller.
    pub shown: Token,
    /// The largest token seen.
    pub seen: Token,
}

/// Refuses stale tokens, for resources outside the store. It remembers one token for each name.
///
/// It protects what is written under the same lock (or in the same transaction) as the call of
/// [`FenceVerifier::admit`]. A check apart from its write protects nothing. It must live as long as
/// what it protects: a resource that outlives its process stores the token beside its data, as a
/// column that only grows.
#[derive(Clone, Debug, Default)]
pub struct FenceVerifier {
    seen: BTreeMap<String, Token>,
}

impl FenceVerifier {
    /// Creates a verifier that has seen no token.
    pub fn new() -> FenceVerifier {
        FenceVerifier::default()
    }

    /// Admits a holder, unless a larger token was seen for this name.
    pub fn admit(&mut self, name: &str, shown: Token) -> Result<(), StaleToken> {
        match self.seen.get_mut(name) {
            Some(seen) if shown < *seen => Err(StaleToken { shown, seen: *seen }),
            Some(seen) => {
                *seen = shown;
                Ok(())
            }
            None => {
                self.seen.insert(name.to_owned(), shown);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keyspace::Keyspace;
    use crate::limits::Limits;
    use crate::revision::Revision;
    use crate::time::Moment;
    use crate::txn::Op;

    const NOW: Moment = Moment::ORIGIN;

    #[test]
    fn fenced_write_requires_the_holder() {
        let mut store = Keyspace::new(Limits::EMBEDDED);
        let mut put = |txn: Txn| store.apply(&txn, NOW).unwrap();
        let token = Token(put(Txn::new().then(Op::put("/lock/1", ""))).revision);
        let fence = Fence { key: "/lock/1".into(), token };
        let write = || fence.guard(Txn::new().then(Op::put("/data", "mine")));
        assert!(put(write()).succeeded);
        put(Txn::new().then(Op::delete("/lock/1")));
        assert!(!put(write()).succeeded, "it was deleted");
        put(Txn::new().then(Op::put("/lock/1", "")));
        assert!(!put(write()).succeeded, "another life of the same key is another holder");
    }

    #[test]
    fn smaller_token_is_refused_per_name() {
        let mut verifier = FenceVerifier::new();
        let token = |n| Token(Revision(n));
        assert_eq!(verifier.admit("a", token(5)), Ok(()));
        assert_eq!(verifier.admit("a", token(5)), Ok(()), "the same holder again");
        assert_eq!(verifier.admit("a", token(9)), Ok(()));
        assert_eq!(verifier.admit("a", token(5)), Err(StaleToken { shown: token(5), seen: token(9) }));
        assert_eq!(verifier.admit("b", token(1)), Ok(()), "another name");
    }
}
