//! Whether this is still the known store. Checked on every reply, for the cluster id and for the
//! revision.
//!
//! A store restored from a backup may keep its cluster id and issue old revisions again as if they
//! were new; fencing tokens would repeat. So the highest revision ever seen is remembered, and a
//! linearizable reply below what was known *before its request was sent* proves that history was
//! lost.
//!
//! Only linearizable replies prove it. A serializable read, a status or a watch header comes from
//! one member, and members may lag, also behind themselves for a moment after a restart. Replies to
//! requests in flight together may arrive in any order, which is why the mark is taken before
//! sending.
//!
//! **Invariant**: once replaced, always replaced. A new history that grows past the old one must
//! not reset this.

use std::sync::{Mutex, PoisonError};

use crate::error::{ClusterReplaced, Error};
use crate::message::header::ResponseHeader;

/// The known cluster and the newest revision of it that was seen.
#[derive(Debug, Default)]
pub(crate) struct ClusterIdentity {
    known: Mutex<KnownCluster>,
}

#[derive(Debug, Default)]
struct KnownCluster {
    /// Zero until the first reply.
    cluster: u64,
    /// The highest revision in any reply.
    revision: i64,
    replaced: Option<ClusterReplaced>,
}

/// The highest revision known when a request was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HistoryMark(i64);

impl ClusterIdentity {
    /// Taken before a request is sent; returns the error of a store that was replaced already.
    pub(crate) fn mark(&self) -> Result<HistoryMark, Error> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        match &known.replaced {
            Some(why) => Err(Error::Replaced(why.clone())),
            None => Ok(HistoryMark(known.revision)),
        }
    }

    /// Checks a reply that may come from a lagging member: streams, status, serializable reads.
    pub(crate) fn observe(&self, header: &ResponseHeader) -> Result<(), Error> {
        self.check(header, None)
    }

    /// Checks a reply that must be at least as new as everything known when its request was sent.
    pub(crate) fn observe_linearizable(
        &self,
        header: &ResponseHeader,
        sent: HistoryMark,
    ) -> Result<(), Error> {
        self.check(header, Some(sent))
    }

    /// The cluster's id, once a member replied.
    pub(crate) fn cluster(&self) -> Option<u64> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        (known.cluster != 0).then_some(known.cluster)
    }

    fn check(&self, header: &ResponseHeader, sent: Option<HistoryMark>) -> Result<(), Error> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(why) = &known.replaced {
            return Err(Error::Replaced(why.clone()));
        }
        let why = if known.cluster != 0 && header.cluster_id != 0 && header.cluster_id != known.cluster {
            Some(ClusterReplaced::OtherCluster { was: known.cluster, now: header.cluster_id })
        } else {
            match sent {
                // Revision 0 is a header without one, as in a cancelled watch.
                Some(HistoryMark(was)) if header.revision != 0 && header.revision < was => {
                    Some(ClusterReplaced::WentBack { was, now: header.revision })
                }
                Some(_) | None => None,
            }
        };
        if let Some(why) = why {
            tracing::error!(%why, "the store was replaced");
            known.replaced = Some(why.clone());
            return Err(Error::Replaced(why));
        }
        if known.cluster == 0 {
            known.cluster = header.cluster_id;
        }
        known.revision = known.revision.max(header.revision);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{ClusterIdentity, ResponseHeader};
    use crate::error::{ClusterReplaced, Error};

    fn header(cluster_id: u64, revision: i64) -> ResponseHeader {
        ResponseHeader { cluster_id, member_id: 1, revision, raft_term: 1 }
    }

    #[test]
    fn other_cluster_id_is_replaced_store() {
        let identity = ClusterIdentity::default();
        identity.observe(&header(7, 5)).unwrap();
        assert_eq!(
            identity.observe(&header(8, 9)),
            Err(Error::Replaced(ClusterReplaced::OtherCluster { was: 7, now: 8 }))
        );
    }

    #[test]
    fn linearizable_reply_below_mark_is_replaced_store() {
        let identity = ClusterIdentity::default();
        identity.observe(&header(7, 100)).unwrap();
        let mark = identity.mark().unwrap();
        assert_eq!(
            identity.observe_linearizable(&header(7, 99), mark),
            Err(Error::Replaced(ClusterReplaced::WentBack { was: 100, now: 99 }))
        );
    }

    #[test]
    fn lagging_or_reordered_replies_prove_nothing() {
        let identity = ClusterIdentity::default();
        let early = identity.mark().unwrap();
        identity.observe_linearizable(&header(7, 100), early).unwrap();
        identity.observe(&header(7, 90)).unwrap();
        identity.observe_linearizable(&header(7, 99), early).unwrap();
        identity.observe(&header(7, 0)).unwrap();
    }

    #[test]
    fn replaced_store_stays_replaced() {
        let identity = ClusterIdentity::default();
        identity.observe(&header(7, 100)).unwrap();
        let mark = identity.mark().unwrap();
        identity.observe_linearizable(&header(7, 3), mark).unwrap_err();
        assert!(identity.mark().is_err());
        assert!(identity.observe(&header(7, 200)).is_err());
    }
}
