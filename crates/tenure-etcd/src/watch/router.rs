//! The pure half of the watch stream: the subscriptions, which response belongs to which, and what
//! to request next.
//!
//! Its inputs are events (a response, a lost stream, the reply to a read, a dropped consumer), its
//! outputs are requests and actions. The driver only moves bytes. The machine does not know the
//! time and never waits.
//!
//! **Invariant**: creations are answered in the order they were sent, so a reply belongs to the oldest
//! unanswered one. The id in the reply is not used for that, because a refused creation carries -1.
//! **Invariant**: an id on a stream belongs to one subscription and is never used again.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;

use super::join::More;
use super::refusal::Refusal;
use super::subscription::{Subscription, SubscriptionNeed};
use super::version::VersionQuirks;
use super::{WatchError, WatchEvent, WatchItem, WatchSpec};
use crate::error::{Error, Invalid};
use crate::message::watch::{
    WatchCancelRequest, WatchCreateRequest, WatchProgressRequest, WatchRequest, WatchRequestKind,
    WatchResponse, WireEvent,
};

/// Names a subscription for as long as the client lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct WatchName(pub(super) u64);

/// Where the items of one subscription go.
pub(super) trait WatchSink {
    /// A server has created the watch, which delivers what comes after `point`.
    fn opened(&mut self, point: i64);
    /// Takes an item, or refuses it because the queue is full; the consumer then reports when it has
    /// emptied the queue.
    fn offer(&mut self, item: WatchItem) -> Result<(), QueueFull>;
    /// Ends the stream of items with this error.
    fn end(&mut self, end: WatchError);
}

/// The consumer's queue is full.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct QueueFull;

/// What the driver must find out or do.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RouterAction {
    /// Read `key` linearizably and pass the store's revision to `read`.
    Read { name: WatchName, key: Bytes },
    /// Read `key` at revision `after` and call `proven` or `end`, depending on whether that is
    /// compacted.
    Probe { name: WatchName, epoch: u64, after: i64, key: Bytes },
    /// Read the range with the client's own user: the server reports that this user may not watch
    /// it.
    Verify { name: WatchName, key: Bytes, range_end: Bytes },
    /// Leave this stream.
    Fail(String),
}

/// All subscriptions of one client.
#[derive(Debug)]
pub(super) struct Router<S> {
    subscriptions: HashMap<WatchName, Subscription<S>>,
    /// Which subscription an id of the present stream belongs to.
    routes: HashMap<i64, WatchName>,
    /// Creations sent and not answered, oldest first.
    unanswered: VecDeque<CreateRequest>,
    outgoing_requests: VecDeque<OutgoingRequest>,
    actions: VecDeque<RouterAction>,
    next_id: i64,
    link: RouterStream,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RouterStream {
    Down,
    Up(VersionQuirks),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CreateRequest {
    Watch(WatchName, u64),
    /// The watchdog's creation of an empty range, which every server refuses.
    Heartbeat,
}

#[derive(Debug)]
enum OutgoingRequest {
    Create(WatchName),
    Cancel(i64),
    Progress,
    Heartbeat,
}

impl<S: WatchSink> Router<S> {
    pub(super) fn new() -> Self {
        Self {
            subscriptions: HashMap::new(),
            routes: HashMap::new(),
            unanswered: VecDeque::new(),
            outgoing_requests: VecDeque::new(),
            actions: VecDeque::new(),
            next_id: 1,
            link: RouterStream::Down,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.subscriptions.is_empty()
    }

    /// Whether any subscription wants a stream now; slow consumers may not.
    pub(super) fn wants_stream(&self) -> bool {
        self.subscriptions.values().any(Subscription::is_waiting)
    }

    /// A key that one of the subscriptions may read.
    pub(super) fn some_key(&self) -> Option<Bytes> {
        self.subscriptions.values().next().map(|subscription| subscription.key.clone())
    }

    /// A new watcher.
    pub(super) fn subscribe(&mut self, name: WatchName, spec: WatchSpec, sink: S) {
        let subscription = Subscription::new(spec, sink);
        if subscription.is_unread() {
            // Sent beside the creation, not after it: one round trip instead of two.
            self.actions.push_back(RouterAction::Read { name, key: subscription.key.clone() });
        }
        self.subscriptions.insert(name, subscription);
        self.create(name);
    }

    /// The consumer is gone.
    pub(super) fn unsubscribe(&mut self, name: WatchName) {
        if let Some(id) = self.subscriptions.remove(&name).and_then(|subscription| subscription.id()) {
            self.cancel(id);
        }
    }

    /// The consumer has room again.
    pub(super) fn drained(&mut self, name: WatchName) {
        self.with(name, Subscription::drained);
    }

    /// A new stream is open: all subscriptions are created on it, oldest first. Progress of its server
    /// is ignored until `trust` is called.
    pub(super) fn connected(&mut self) {
        self.link = RouterStream::Up(VersionQuirks::default());
        let mut names: Vec<WatchName> = self.subscriptions.keys().copied().collect();
        names.sort_unstable();
        for name in names {
            self.create(name);
        }
    }

    /// What the version of the current stream's server can be trusted with.
    pub(super) fn trust(&mut self, trust: VersionQuirks) {
        if self.link != RouterStream::Down {
            self.link = RouterStream::Up(trust);
        }
    }

    /// The stream is lost, and with it all ids and unanswered requests.
    pub(super) fn lost(&mut self) {
        self.link = RouterStream::Down;
        // Ids are valid on one stream only; the next one creates every watch under a new id.
        self.routes.clear();
        self.unanswered.clear();
        self.outgoing_requests.clear();
        self.subscriptions.values_mut().for_each(Subscription::lose);
    }

    /// Requests something that a live server answers at once: progress, and a watch of an empty range,
    /// which it refuses. Progress alone is not answered while any watcher of the stream is behind or
    /// starts in the future.
    pub(super) fn request_sign_of_life(&mut self) {
        self.outgoing_requests.push_back(OutgoingRequest::Progress);
        self.outgoing_requests.push_back(OutgoingRequest::Heartbeat);
    }

    /// A response of the stream.
    pub(super) fn handle(&mut self, response: WatchResponse) {
        if response.created {
            self.answered(&response);
        } else if response.canceled {
            // The reply to a cancellation by this client finds no route: `cancel` removed it.
            if let Some(name) = self.routes.remove(&response.watch_id) {
                self.refused(name, &response);
            }
        } else if response.events.is_empty() {
            self.progressed(&response);
        } else if let Some(name) = self.routes.get(&response.watch_id).copied() {
            self.happened(name, response);
        }
    }

    /// The linearizable read found the store at `revision`.
    pub(super) fn read(&mut self, name: WatchName, revision: i64) {
        self.with(name, |subscription, needs| subscription.read(revision, needs));
    }

    /// The starting point is not compacted.
    pub(super) fn proven(&mut self, name: WatchName, epoch: u64) {
        self.with(name, |subscription, needs| subscription.proven(epoch, needs));
    }

    /// The starting point is compacted: revisions may be missing.
    pub(super) fn disproven(&mut self, name: WatchName, epoch: u64, after: i64) {
        if self.subscriptions.get(&name).is_some_and(|subscription| subscription.is_probing(epoch)) {
            // The server does not report how far it compacted, only that it did so beyond the
            // point.
            self.end(name, WatchError::Compacted { at: after.saturating_add(1) });
        }
    }

    /// Ends one subscription and passes the reason to its consumer.
    pub(super) fn end(&mut self, name: WatchName, end: WatchError) {
        if let Some(subscription) = self.subscriptions.remove(&name) {
            if let Some(id) = subscription.id() {
                self.cancel(id);
            }
            subscription.end(end);
        }
    }

    /// Ends all subscriptions with one error.
    pub(super) fn end_all(&mut self, error: &Error) {
        for (_, subscription) in self.subscriptions.drain() {
            subscription.end(WatchError::Lost(error.clone()));
        }
        self.lost();
    }

    pub(super) fn poll_action(&mut self) -> Option<RouterAction> {
        self.actions.pop_front()
    }

    /// Nothing can be sent any more: the stream is about to end.
    pub(super) fn discard_requests(&mut self) {
        self.outgoing_requests.clear();
    }

    pub(super) fn has_requests(&self) -> bool {
        !self.outgoing_requests.is_empty()
    }

    /// The next request to send, if there is one.
    pub(super) fn poll_request(&mut self) -> Option<WatchRequest> {
        while let Some(outgoing) = self.outgoing_requests.pop_front() {
            let kind = match outgoing {
                OutgoingRequest::Create(name) => {
                    let wanted =
                        self.subscriptions.get_mut(&name).filter(|subscription| subscription.is_waiting());
                    let Some(subscription) = wanted else { continue };
                    // The client chooses the ids, so none is ever used twice on one stream.
                    let request = subscription.create(self.next_id);
                    self.next_id += 1;
                    self.unanswered.push_back(CreateRequest::Watch(name, subscription.epoch()));
                    WatchRequestKind::Create(request)
                }
                OutgoingRequest::Cancel(watch_id) => {
                    WatchRequestKind::Cancel(WatchCancelRequest { watch_id })
                }
                OutgoingRequest::Progress => WatchRequestKind::Progress(WatchProgressRequest {}),
                OutgoingRequest::Heartbeat => {
                    self.unanswered.push_back(CreateRequest::Heartbeat);
                    let watch_id = self.next_id;
                    self.next_id += 1;
                    // A range that ends before it begins: refused by every version of etcd.
                    WatchRequestKind::Create(WatchCreateRequest {
                        key: Bytes::from_static(b"b"),
                        range_end: Bytes::from_static(b"a"),
                        watch_id,
                        ..WatchCreateRequest::default()
                    })
                }
            };
            return Some(WatchRequest { request: Some(kind) });
        }
        None
    }

    fn create(&mut self, name: WatchName) {
        let is_waiting = self.subscriptions.get(&name).is_some_and(Subscription::is_waiting);
        if is_waiting && self.link != RouterStream::Down {
            self.outgoing_requests.push_back(OutgoingRequest::Create(name));
        }
    }

    fn cancel(&mut self, id: i64) {
        self.routes.remove(&id);
        self.outgoing_requests.push_back(OutgoingRequest::Cancel(id));
    }

    fn answered(&mut self, response: &WatchResponse) {
        let (name, epoch) = match self.unanswered.pop_front() {
            Some(CreateRequest::Watch(name, epoch)) => (name, epoch),
            Some(CreateRequest::Heartbeat) => return,
            None => return self.fail("the server created a watch without a request"),
        };
        // The watcher may have been dropped, or created again on this stream, since the request.
        let is_wanted =
            self.subscriptions.get(&name).is_some_and(|subscription| subscription.epoch() == epoch);
        if response.canceled {
            if is_wanted {
                self.refused(name, response);
            }
        } else if is_wanted {
            self.routes.insert(response.watch_id, name);
            let server_at = response.header.map_or(0, |header| header.revision);
            let id = response.watch_id;
            self.with(name, |subscription, needs| subscription.created(id, server_at, needs));
        } else {
            // No consumer reads it: the watch would only cost the server memory.
            self.cancel(response.watch_id);
        }
    }

    fn refused(&mut self, name: WatchName, response: &WatchResponse) {
        match Refusal::parse(response) {
            Refusal::Compacted(at) => self.finish(name, WatchError::Compacted { at }),
            Refusal::Invalid(reason) => {
                self.finish(name, WatchError::Lost(Error::Invalid(Invalid::Other(reason))));
            }
            Refusal::Suspect(reason) => {
                tracing::debug!(reason, "a watch was refused");
                let Some(subscription) = self.subscriptions.get_mut(&name) else { return };
                // etcd 3.4 reports an expired token in the same way, so the watcher does not end before
                // a read of its range was refused too.
                subscription.lose();
                let (key, range_end) = (subscription.key.clone(), subscription.range_end.clone());
                self.actions.push_back(RouterAction::Verify { name, key, range_end });
            }
            Refusal::Retry(reason) => self.fail(&reason),
        }
    }

    /// Ends a subscription that the server has removed already, so that no cancellation is needed.
    fn finish(&mut self, name: WatchName, end: WatchError) {
        if let Some(subscription) = self.subscriptions.remove(&name) {
            subscription.end(end);
        }
    }

    fn happened(&mut self, name: WatchName, response: WatchResponse) {
        let more = if response.fragment { More::Yes } else { More::No };
        let Some(events) = response.events.into_iter().map(parse_event).collect::<Option<Vec<_>>>() else {
            return self.fail("the server sent an event without a key");
        };
        let mut result = Ok(());
        self.with(name, |subscription, needs| result = subscription.events(events, more, needs));
        if result.is_err() {
            self.fail("the server sent revisions out of order");
        }
    }

    fn progressed(&mut self, response: &WatchResponse) {
        let revision = response.header.map_or(0, |header| header.revision);
        if !self.trusts(|trust| trust.progress) {
            return;
        }
        // A requested progress covers all watchers of the stream, a periodic one only its own.
        if response.watch_id == FOR_ALL {
            let names: Vec<WatchName> = self.routes.values().copied().collect();
            for name in names {
                self.with(name, |subscription, needs| subscription.progress(revision, needs));
            }
        } else if let Some(name) = self.routes.get(&response.watch_id).copied() {
            self.with(name, |subscription, needs| subscription.progress(revision, needs));
        }
    }

    fn trusts(&self, what: impl FnOnce(VersionQuirks) -> bool) -> bool {
        match self.link {
            RouterStream::Up(trust) => what(trust),
            RouterStream::Down => false,
        }
    }

    fn fail(&mut self, reason: &str) {
        self.actions.push_back(RouterAction::Fail(reason.to_owned()));
    }

    fn with(&mut self, name: WatchName, step: impl FnOnce(&mut Subscription<S>, &mut Vec<SubscriptionNeed>)) {
        let Some(subscription) = self.subscriptions.get_mut(&name) else { return };
        let mut needs = Vec::new();
        step(subscription, &mut needs);
        let (epoch, key) = (subscription.epoch(), subscription.key.clone());
        for need in needs {
            match need {
                SubscriptionNeed::Point => {
                    self.actions.push_back(RouterAction::Read { name, key: key.clone() });
                }
                // It started in the server's future: hardly any history was read for it, and none
                // is missing.
                SubscriptionNeed::Probe { was_at_end: true, .. } if self.trusts(|trust| trust.history) => {
                    self.proven(name, epoch);
                }
                SubscriptionNeed::Probe { after, .. } => {
                    self.actions.push_back(RouterAction::Probe { name, epoch, after, key: key.clone() });
                }
                SubscriptionNeed::Stop { id } => self.cancel(id),
                SubscriptionNeed::Create => self.create(name),
            }
        }
    }
}

/// The id of a progress response that covers every watcher of the stream.
const FOR_ALL: i64 = -1;

fn parse_event(wire: WireEvent) -> Option<WatchEvent> {
    let kv = wire.kv?;
    let prev = wire.prev_kv.map(Into::into);
    Some(match wire.kind {
        0 => WatchEvent::Put { kv: kv.into(), prev },
        _ => WatchEvent::Delete { key: kv.key, revision: kv.mod_revision, prev },
    })
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests;
