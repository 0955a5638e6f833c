//! The transitions of a waiter: enter, hold, pass on, leave, lose.

use crate::layout::{PriorityClass, QueueKey};
use crate::lease::LeaseId;
use crate::loss::LossReason;
use crate::revision::{RequestId, Token};
use crate::sabotage::{SabotageRule, is_broken};
use crate::time::Moment;

use super::waiter::{NextRequest, PredecessorRead, Waiter, WaiterState};
use super::{
    AfterLeave, EnterGuard, HolderCount, LockMode, PredecessorLookup, QueueEvent, QueueOutput, WaitQueue,
    WaiterId,
};

impl WaitQueue {
    pub(super) fn count(&mut self) -> u64 {
        self.counter += 1;
        self.counter
    }

    /// Returns a new key. In a queue without local waiters it reuses one, if no request for it can
    /// still be in flight.
    pub(super) fn new_key(&mut self, lease: LeaseId, rank: PriorityClass) -> QueueKey {
        if self.waiters.is_empty() {
            self.nonce_floor = self.nonce_floor();
            self.nonce = self.nonce_floor;
        }
        self.nonce = self.nonce.wrapping_add(1);
        QueueKey::ranked(lease, self.nonce, rank)
    }

    pub(super) fn lease_of(&self, id: WaiterId) -> Option<LeaseId> {
        self.waiters.get(&id).map(|waiter| waiter.queue_key.lease)
    }

    pub(super) fn send_enter(&mut self, id: WaiterId) {
        let epoch = RequestId(self.count());
        let Some(lease) = self.lease_of(id) else { return };
        let guard = self.guard(lease);
        self.change(id, WaiterState::Entering { epoch, guard });
        if let Some(waiter) = self.waiters.get(&id) {
            let (queue_key, mode, may_be_stored) = (waiter.queue_key, waiter.mode, waiter.may_be_stored());
            let lookup = self.lookup(mode, may_be_stored);
            self.actions.push_back(QueueOutput::Enter {
                id,
                epoch,
                queue_key,
                mode,
                lookup,
                may_be_stored,
                guard,
            });
        }
    }

    /// Decides what an enter must read. A shareable mode always reads, because it needs the modes
    /// of its predecessors.
    pub(super) fn lookup(&self, mode: LockMode, may_be_stored: bool) -> PredecessorLookup {
        let has_local_queue = !(self.index.queue.is_empty() && self.index.holding.is_empty());
        if mode == LockMode::Exclusive && has_local_queue {
            // A local waiter is before this one and passes the hold on: the enter only puts.
            PredecessorLookup::Skip
        } else if self.waiters.len() == 1 && !may_be_stored {
            // A waiter is forgotten only when its key is deleted, so no other local key is stored.
            PredecessorLookup::Others
        } else {
            PredecessorLookup::All
        }
    }

    pub(super) fn send_leave(&mut self, id: WaiterId, token: Option<Token>) {
        let epoch = RequestId(self.count());
        let after = self.after_leave(id);
        // The hold ends with this request. A retry must still name it, because the first reply may
        // be lost.
        if let Some(waiter) = self.waiters.get_mut(&id)
            && let WaiterState::Holding { token, .. } = waiter.state
        {
            waiter.held = Some(token);
        }
        self.change(id, WaiterState::Leaving { token, next: NextRequest::Sent { epoch } });
        if let Some(waiter) = self.waiters.get(&id) {
            let settles = waiter.unsettled.filter(|_| !is_broken(SabotageRule::SettledEnter));
            let (queue_key, held) = (waiter.queue_key, waiter.held);
            self.actions.push_back(QueueOutput::Leave { id, epoch, queue_key, after, settles, held });
        }
    }

    /// Decides what a release must read for local successors. Any choice is safe: a missing read
    /// costs the next waiter one of its own.
    fn after_leave(&self, id: WaiterId) -> AfterLeave {
        // No local waiter can profit from a read.
        let Some(waiter) = self.waiters.get(&id).filter(|_| self.waiters.len() > 1) else {
            return AfterLeave::Nothing;
        };
        let is_first = match waiter.state {
            // A key that holds exclusively has no predecessor.
            WaiterState::Holding { .. } => waiter.mode == LockMode::Exclusive,
            // Its successor has another predecessor then.
            WaiterState::Waiting { .. } => return AfterLeave::Nothing,
            WaiterState::Entering { .. } | WaiterState::BackingOff { .. } | WaiterState::Leaving { .. } => {
                false
            }
        };
        let behind = waiter.token().and_then(|token| self.index.queue.range(token..).next());
        let next = behind.and_then(|(token, next)| Some((*token, self.waiters.get(next)?)));
        match next {
            Some((token, next)) if next.predecessor() == Some(waiter.queue_key) && is_first => {
                AfterLeave::Successor(next.queue_key, token)
            }
            // The next waiter watches its own predecessor, which is another key.
            Some((_, next))
                if next.predecessor().is_some_and(|predecessor| predecessor != waiter.queue_key) =>
            {
                AfterLeave::Nothing
            }
            Some(_) | None => AfterLeave::Queue,
        }
    }

    pub(super) fn hold(&mut self, id: WaiterId, token: Token) {
        self.change(id, WaiterState::Holding { token, read: PredecessorRead::Idle });
        self.notices.push_back(QueueEvent::Held { id, token });
    }

    /// Decides for each shareable waiter in the snapshot: it holds, waits, or is refused because it
    /// counts permits differently.
    ///
    /// A snapshot that contains a waiter's key is at least as new as that key, so it contains every
    /// predecessor. Predecessors only become fewer.
    pub(super) fn admit(&mut self) {
        let mut holder_count = HolderCount::default();
        let mut decided = Vec::new();
        for (token, mode) in &self.snapshot {
            let in_use = holder_count.permits();
            let holds = holder_count.holds(*mode);
            if let Some(&id) = self.index.shareable.get(token) {
                decided.push((id, *token, holds, in_use));
            }
        }
        for (id, token, holds, in_use) in decided {
            let Some(waiter) = self.waiters.get_mut(&id) else { continue };
            match (waiter.mode, in_use) {
                // A different permit count would make two waiters disagree on which keys hold.
                (LockMode::Permit { of }, Some(in_use)) if of != in_use => {
                    (waiter.is_wanted, waiter.was_reported) = (false, true);
                    self.notices.push_back(QueueEvent::PermitsDiffer { id, requested: of, in_use });
                    self.send_leave(id, Some(token));
                }
                _ if holds => self.hold(id, token),
                _ if !std::mem::replace(&mut waiter.was_shown, true) => {
                    self.notices.push_back(QueueEvent::Waits { id });
                }
                _ => {}
            }
        }
    }

    /// Handles the delete of a local key by another client, or with its lease.
    pub(super) fn vanish(&mut self, id: WaiterId, now: Moment) {
        let Some(waiter) = self.waiters.get_mut(&id) else { return };
        let (queue_key, token) = (waiter.queue_key, waiter.token());
        let unsettled = waiter.unsettled;
        match waiter.state {
            WaiterState::Holding { .. } => self.lose(id, LossReason::Deleted),
            // It did not hold, so only its turn is lost. If its lease ended, the reply to the next
            // enter shows it.
            WaiterState::Waiting { .. } => self.move_to_new_key(id),
            // The reply to the request in flight decides.
            WaiterState::Entering { .. } | WaiterState::BackingOff { .. } | WaiterState::Leaving { .. } => {
                return;
            }
        }
        // A lost enter could put the deleted key again, and no waiter would ever leave it.
        self.settle_key(queue_key, unsettled, now);
        self.wake_successor(token, now);
    }

    pub(super) fn move_to_new_key(&mut self, id: WaiterId) {
        let Some(left) = self.waiters.get(&id).map(|waiter| waiter.queue_key) else { return };
        // A new key, because a request for the old one may still be in flight and would delete or
        // revive it.
        let queue_key = self.new_key(left.lease, left.rank());
        self.nonce_floor = self.nonce;
        self.queue_keys.remove(&left);
        self.queue_keys.insert(queue_key, id);
        if let Some(waiter) = self.waiters.get_mut(&id) {
            waiter.queue_key = queue_key;
            waiter.unsettled = None;
            waiter.holder = None;
        }
        self.send_enter(id);
    }

    /// Ensures that a lost enter of an abandoned key cannot be applied any more.
    pub(super) fn settle_key(&mut self, queue_key: QueueKey, unsettled: Option<EnterGuard>, now: Moment) {
        let Some(unsettled) = unsettled else { return };
        let id = WaiterId(self.count());
        let ownerless = Waiter::ownerless(queue_key, unsettled, now);
        self.index.insert(id, &ownerless);
        self.waiters.insert(id, Box::new(ownerless));
        self.queue_keys.insert(queue_key, id);
        self.send_leave(id, None);
    }

    /// Returns the enter guard of a lease, as it was last seen.
    pub(super) fn guard(&self, lease: LeaseId) -> EnterGuard {
        self.guards.get(&lease).copied().unwrap_or_default()
    }

    /// Records the enter guard of a lease that the store returned.
    pub(super) fn record_guard(&mut self, lease: LeaseId, guard: EnterGuard) {
        self.guards.insert(lease, guard);
    }

    /// Ends a waiter: reported as a loss if it still waited or held, otherwise as a release.
    pub(super) fn lose(&mut self, id: WaiterId, why: LossReason) {
        let Some(waiter) = self.waiters.get(&id) else { return };
        let notice = if waiter.is_wanted {
            Some(QueueEvent::Lost { id, why })
        } else {
            (!waiter.was_reported).then_some(QueueEvent::Released { id, was_there: false })
        };
        self.abandon(id);
        self.notices.extend(notice);
    }

    /// Ends a waiter with a key that was never stored.
    pub(super) fn end(&mut self, id: WaiterId) {
        self.forget(id);
        self.notices.push_back(QueueEvent::Released { id, was_there: false });
    }

    /// Removes a waiter while a request for its key may still be in flight.
    pub(super) fn abandon(&mut self, id: WaiterId) {
        self.nonce_floor = self.nonce;
        self.forget(id);
    }

    /// Removes a waiter with a key that is certainly deleted.
    pub(super) fn forget(&mut self, id: WaiterId) {
        if let Some(waiter) = self.waiters.remove(&id) {
            self.index.remove(id, &waiter);
            self.queue_keys.remove(&waiter.queue_key);
        }
    }

    /// Handles the delete of a local key. If the first key is local too, its waiter holds, or
    /// passes on in its turn. Otherwise the successor reads or watches its new predecessor.
    pub(super) fn pass_on(
        &mut self,
        (queue_key, token): (QueueKey, Option<Token>),
        first: &[(QueueKey, Token)],
    ) {
        let behind = token.and_then(|token| self.index.queue.range(token..).next());
        // The successor's predecessor is unknown now, and is read or set below.
        if let Some((_, &behind)) = behind {
            self.set_predecessor(behind, |predecessor| {
                predecessor.filter(|&predecessor| predecessor != queue_key)
            });
        }
        // Neighbours of one read stay neighbours: no key can enter between two others.
        for (earlier, later) in first.iter().zip(first.iter().skip(1)) {
            if let Some(&id) = self.queue_keys.get(&later.0) {
                self.set_predecessor(id, |_| Some(earlier.0));
            }
        }
        let local =
            first.first().and_then(|(queue_key, token)| Some((*self.queue_keys.get(queue_key)?, *token)));
        let Some((id, token)) = local else { return };
        let Some(waiter) = self.waiters.get(&id) else { return };
        match waiter.state {
            WaiterState::Waiting { .. } => self.hold(id, token),
            // The reply to its own enter is still in flight and adds nothing. If the enter was sent
            // twice, one of the requests may be applied after the key was left, and only the reply
            // shows that.
            WaiterState::Entering { .. } if waiter.is_wanted && waiter.unsettled.is_none() => {
                self.hold(id, token);
            }
            WaiterState::Entering { .. }
            | WaiterState::BackingOff { .. }
            | WaiterState::Holding { .. }
            | WaiterState::Leaving { .. } => {}
        }
    }

    /// Sets or clears the known predecessor of a waiter.
    fn set_predecessor(&mut self, id: WaiterId, change: impl FnOnce(Option<QueueKey>) -> Option<QueueKey>) {
        if let Some(waiter) = self.waiters.get_mut(&id)
            && let WaiterState::Waiting { predecessor, .. } = &mut waiter.state
        {
            *predecessor = change(*predecessor);
        }
    }

    /// The first local waiter must know its predecessor, unless that one is local: then it passes
    /// the hold on.
    fn check_first(&mut self, now: Moment) {
        let Some((&token, &id)) = self.index.queue.first_key_value() else { return };
        let Some(waiter) = self.waiters.get(&id) else { return };
        let WaiterState::Waiting { predecessor: None, read: PredecessorRead::Idle, .. } = waiter.state else {
            return;
        };
        // A local key with a lower token is still stored or being deleted. Its reply passes the
        // hold on or wakes this waiter.
        let is_older = |own: Option<Token>| own.is_some_and(|own| own < token);
        let mut holding = self.index.holding.iter().filter_map(|id| self.waiters.get(id));
        if !holding.any(|waiter| is_older(waiter.token()))
            && !self.waiters.values().any(|waiter| is_older(waiter.token()))
        {
            self.wake(id, now);
        }
    }

    /// Whether a key is local and older than this token. Then its successor learns of its delete
    /// without a watch.
    pub(super) fn will_pass_on(&self, queue_key: QueueKey, token: Option<Token>) -> bool {
        let local = self.queue_keys.get(&queue_key).and_then(|id| self.waiters.get(id));
        local.and_then(|waiter| waiter.token()).is_some_and(|predecessor| Some(predecessor) < token)
    }

    /// Returns the first local waiter, if this is its predecessor.
    pub(super) fn first_successor(&self, predecessor: QueueKey) -> Option<WaiterId> {
        let &id = self.index.queue.values().next()?;
        let waiter = self.waiters.get(&id)?;
        (waiter.predecessor() == Some(predecessor)).then_some(id)
    }

    /// Makes the next local waiter behind a deleted local key read.
    pub(super) fn wake_successor(&mut self, token: Option<Token>, now: Moment) {
        let Some(token) = token else { return };
        if let Some((_, &id)) = self.index.queue.range(token..).next() {
            self.wake(id, now);
        }
    }

    pub(super) fn wake(&mut self, id: WaiterId, now: Moment) {
        let Some(waiter) = self.waiters.get(&id) else { return };
        self.change(id, waiter.reading_again(now));
    }

    /// Whether a read is useful: only the first waiter can hold next, and a holder reads its own
    /// key.
    pub(super) fn may_read(&self, id: WaiterId) -> bool {
        self.index.holding.contains(&id) || self.index.queue.values().next() == Some(&id)
    }

    /// Sends the reads that are due.
    pub(super) fn send_due_reads(&mut self, now: Moment) {
        self.check_first(now);
        let due = |id: &&WaiterId| {
            self.may_read(**id)
                && self.waiters.get(id).and_then(|waiter| waiter.read_at()).is_some_and(|at| at <= now)
        };
        let due: Vec<WaiterId> = self.index.reads.iter().filter(due).copied().collect();
        for id in due {
            let epoch = RequestId(self.count());
            let Some(waiter) = self.waiters.get(&id) else { continue };
            let (queue_key, predecessor, mut state) =
                (waiter.queue_key, waiter.known_predecessor(), waiter.state);
            if let WaiterState::Waiting { token, read, .. } | WaiterState::Holding { token, read } =
                &mut state
            {
                *read = PredecessorRead::Sent { epoch, again: false };
                self.actions.push_back(QueueOutput::ReadPredecessor {
                    id,
                    epoch,
                    queue_key,
                    token: *token,
                    predecessor,
                });
            }
            self.change(id, state);
        }
    }

    /// Changes the state of a waiter, and the index with it.
    pub(super) fn change(&mut self, id: WaiterId, state: WaiterState) {
        let Some(waiter) = self.waiters.get_mut(&id) else { return };
        self.index.remove(id, waiter);
        waiter.state = state;
        self.index.insert(id, waiter);
    }
}
