//! A session, a store and the network between them, in virtual time.

use std::time::Duration;

use bytes::Bytes;

use crate::change::{Change, PreviousValues, WatchItem, WatchStart};
use crate::error::{Cause, StoreError};
use crate::keyspace::{Keyspace, WatchId};
use crate::kv::{Get, Selection};
use crate::lease::{Grant, LeaseId, Renewal};
use crate::limits::Limits;
use crate::revision::Revision;
use crate::session::{
    DeleteRequest, LeaseUserId, PutMode, PutProgress, PutReply, PutRequest, Session, SessionConfig,
    SessionEvent, SessionOutput,
};
use crate::time::Moment;
use crate::txn::{Txn, TxnReply};

/// What happens to a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Network {
    Works,
    /// Nothing reaches the store.
    Down,
    /// All requests reach the store; their replies are lost.
    LosesReplies,
}

/// A session, a store and the network between them.
pub(super) struct SessionWorld {
    pub(super) now: Moment,
    pub(super) store: Keyspace,
    pub(super) session: Session,
    pub(super) watch: WatchId,
    pub(super) network: Network,
    pub(super) lease_counter: i64,
    pub(super) notices: Vec<SessionEvent>,
    pub(super) requests: Vec<&'static str>,
    /// Leases that the session has revoked.
    pub(super) ended: Vec<LeaseId>,
    /// The store takes renewals and no puts, as one without space does.
    pub(super) refuses_puts: bool,
}

impl SessionWorld {
    pub(super) fn new() -> SessionWorld {
        SessionWorld::with(SessionConfig::DEFAULT)
    }

    pub(super) fn with(plan: SessionConfig) -> SessionWorld {
        let mut store = Keyspace::new(Limits::EMBEDDED);
        let watch = store.watch(Selection::everything(), WatchStart::Now, Moment::ORIGIN).unwrap();
        SessionWorld {
            now: Moment::ORIGIN,
            store,
            session: Session::new(plan).unwrap(),
            watch,
            network: Network::Works,
            lease_counter: 0,
            notices: Vec::new(),
            requests: Vec::new(),
            ended: Vec::new(),
            refuses_puts: false,
        }
    }

    pub(super) fn register(&mut self, key: &'static str) {
        self.session.register(key.into(), "v".into(), None, PutMode::Overwrite, self.now).unwrap();
        self.settle();
    }

    pub(super) fn unregister(&mut self, key: &'static str) {
        self.session.unregister(&key.into(), self.now);
        self.settle();
    }

    pub(super) fn pass(&mut self, ms: u64) {
        let end = self.now + Duration::from_millis(ms);
        while let Some(wake) = self.session.next_wake().filter(|&wake| wake <= end) {
            self.now = self.now.max(wake);
            self.session.handle_time(self.now);
            self.settle();
        }
        self.now = end;
        self.session.handle_time(end);
        self.settle();
    }

    /// Sends the session's requests and shows it the store's changes until neither has anything
    /// left.
    pub(super) fn settle(&mut self) {
        for _ in 0..10_000 {
            self.store.expire(self.now);
            if let Some(action) = self.session.poll_output() {
                self.perform(action);
            } else if !self.show() {
                self.notices.extend(std::iter::from_fn(|| self.session.poll_event()));
                return;
            }
        }
        panic!("the session never comes to rest");
    }

    /// Shows one change to the session. A watch shows nothing while the store is unreachable.
    pub(super) fn show(&mut self) -> bool {
        if self.network != Network::Works {
            return false;
        }
        let Some(item) = self.store.poll_watch(self.watch, PreviousValues::Omitted) else { return false };
        let WatchItem::Batch { changes, .. } = item.unwrap() else { return true };
        for change in changes {
            match change {
                Change::Put { pair, .. } => {
                    self.session.handle_key_put(&pair.key, &pair.value, pair.lease, pair.modified, self.now);
                }
                Change::Delete { key, revision, .. } => {
                    self.session.handle_key_deleted(&key, revision, self.now);
                }
            }
        }
        true
    }

    /// The reply that the session receives.
    pub(super) fn reply<T>(&self, result: Result<T, StoreError>) -> Result<T, StoreError> {
        match self.network {
            Network::Works => result,
            Network::Down => Err(StoreError::Unavailable(Cause::new("down"))),
            Network::LosesReplies => Err(StoreError::Ambiguous(Cause::new("lost"))),
        }
    }

    pub(super) fn is_reached(&self) -> bool {
        self.network != Network::Down
    }

    pub(super) fn perform(&mut self, action: SessionOutput) {
        let now = self.now;
        match action {
            SessionOutput::Grant { slot, epoch, ttl } => {
                self.requests.push("grant");
                self.lease_counter += 1;
                let id = LeaseId::new(self.lease_counter).unwrap();
                let granted = if self.is_reached() { self.store.grant(id, ttl, now) } else { Ok(ttl) };
                let answer = self.reply(granted.map(|ttl| Grant { id, ttl, asked_at: now }));
                let is_doubtful = matches!(answer, Err(StoreError::Ambiguous(_)));
                self.session.handle_granted(slot, epoch, &answer, 1.0, now);
                if is_doubtful {
                    self.session.handle_ambiguous_grant(id, ttl, now);
                }
            }
            SessionOutput::Renew { slot, epoch, lease } => {
                self.requests.push("renew");
                let renewed = if self.is_reached() { self.store.renew(lease, now) } else { None };
                let renewal = renewed.map_or(Renewal::Gone, |ttl| Renewal::Renewed { ttl, asked_at: now });
                let answer = self.reply(Ok(renewal));
                self.session.handle_renewed(slot, epoch, &answer, 1.0, now);
            }
            SessionOutput::Put { slot, epoch, lease, own_leases, entries } => {
                self.requests.push("put");
                let mut whole = PutReply::default();
                for request in PutRequest::split(lease, own_leases, entries, &Limits::EMBEDDED) {
                    let reply = self.put(&request.txn());
                    whole.merge(match request.handle(reply) {
                        PutProgress::Done(reply) => reply,
                        PutProgress::Each(each) => {
                            let replies = each.txns().iter().map(|txn| self.put(txn)).collect();
                            each.handle(replies)
                        }
                    });
                }
                self.session.handle_put(slot, epoch, whole.outcomes, whole.lease, 1.0, now);
            }
            SessionOutput::Delete { slot, epoch, own_leases, keys } => {
                self.requests.push("delete");
                let mut request = DeleteRequest::new(own_leases, keys);
                while let Some(txns) = request.txns() {
                    let replies = txns.iter().map(|txn| self.apply(txn)).collect();
                    request.handle(replies);
                }
                self.session.handle_deleted(slot, epoch, request.finish().outcomes, 1.0, now);
            }
            SessionOutput::Revoke { epoch, lease } => {
                self.requests.push("revoke");
                let revoked = match self.is_reached() {
                    true => self.store.revoke(lease, now),
                    false => Ok(Revision::ZERO),
                };
                if self.is_reached() {
                    self.ended.push(lease);
                }
                let answer = self.reply(revoked);
                self.session.handle_revoked(lease, epoch, &answer, 1.0, now);
            }
        }
    }

    /// Requests a lease, and keeps it as a holder would.
    pub(super) fn request_lease(&mut self) -> LeaseUserId {
        let user = self.session.request_lease(None, self.now).unwrap();
        self.settle();
        user
    }

    pub(super) fn release_lease(&mut self, user: LeaseUserId) {
        self.session.release_lease(user, self.now);
        self.settle();
    }

    fn put(&mut self, txn: &Txn) -> Result<TxnReply, StoreError> {
        if self.refuses_puts { Err(StoreError::Unavailable(Cause::new("no space"))) } else { self.apply(txn) }
    }

    /// Applies a transaction if the network passes it on.
    fn apply(&mut self, txn: &Txn) -> Result<TxnReply, StoreError> {
        let result = if self.is_reached() {
            self.store.apply(txn, self.now)
        } else {
            Err(StoreError::Unavailable(Cause::new("down")))
        };
        match (self.network, result) {
            (Network::LosesReplies, _) => Err(StoreError::Ambiguous(Cause::new("lost"))),
            (Network::Works | Network::Down, result) => result,
        }
    }

    pub(super) fn stored(&mut self) -> Vec<Bytes> {
        let page = self.store.get(&Get::new(Selection::everything()), self.now).unwrap();
        page.pairs.into_iter().map(|pair| pair.key).collect()
    }

    pub(super) fn count(&self, wanted: impl Fn(&SessionEvent) -> bool) -> usize {
        self.notices.iter().filter(|notice| wanted(notice)).count()
    }
}
