//! Fencing: what lets a resource refuse a holder that does not know yet that it holds no more.
//!
//! Intuition: a holder can be paused between its last look at the lock and its write, for any length of time. Nothing that the holder does can
//! help, because it is the holder that is paused; only whoever takes the write can. It needs two things: a number that grows with every
//! holder, and to remember the largest it has seen.
//!
//! Inside the store nothing has to be remembered: the write itself carries the condition that the holder's key is still the one that
//! was created at its token. Outside, a [`FenceVerifier`] remembers.
//!
//! **Invariant**: a verifier never admits a smaller token after a larger one of the same name.

use std::collections::BTreeMap;

use bytes::Bytes;
use thiserror::Error;

use crate::revision::Token;
use crate::sabotage::{SabotageRule, is_broken};
use crate::txn::{Condition, Txn};

/// A holder's proof for writes inside the store: its key, and since when it is there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fence {
    /// The holder's own key.
    pub key: Bytes,
    /// When it was created.
    pub token: Token,
}

impl Fence {
    /// The same transaction, which now happens only while the holder still holds; otherwise its `otherwise` happens.
    #[must_use]
    pub fn guard(&self, txn: Txn) -> Txn {
        if is_broken(SabotageRule::Fence) {
            return txn;
        }
        txn.when(Condition::created_at(self.key.clone(), self.token.0))
    }
}

/// A token that is older than one that was seen before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("token {shown} is stale: {seen} was seen before, so somebody else has held since")]
pub struct StaleToken {
    /// The token that was shown.
    pub shown: Token,
    /// The largest one that was seen.
    pub seen: Token,
}

/// Refuses stale tokens, for resources outside the store. It remembers one token for each name.
///
/// It protects what is written under the same lock (or in the same transaction) as the call of [`FenceVerifier::admit`]: a check that is apart from
/// its write is none. It must live as long as what it protects; a resource that outlives its process keeps the token beside its data instead, as
/// a column that only ever grows.
#[derive(Clone, Debug, Default)]
pub struct FenceVerifier {
    seen: BTreeMap<String, Token>,
}

impl FenceVerifier {
    /// Has seen nothing yet.
    pub fn new() -> FenceVerifier {
        FenceVerifier::default()
    }

    /// Lets a holder in, unless a later one was here before.
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
    fn a_guarded_write_happens_only_while_the_holder_holds() {
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
    fn a_smaller_token_is_refused_after_a_larger_one_of_the_same_name() {
        let mut verifier = FenceVerifier::new();
        let token = |n| Token(Revision(n));
        assert_eq!(verifier.admit("a", token(5)), Ok(()));
        assert_eq!(verifier.admit("a", token(5)), Ok(()), "the same holder again");
        assert_eq!(verifier.admit("a", token(9)), Ok(()));
        assert_eq!(verifier.admit("a", token(5)), Err(StaleToken { shown: token(5), seen: token(9) }));
        assert_eq!(verifier.admit("b", token(1)), Ok(()), "another name");
    }
}
