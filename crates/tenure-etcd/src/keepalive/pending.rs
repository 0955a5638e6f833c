//! Which renewal a reply belongs to: the oldest unanswered one of that lease.
//!
//! A reply to a keep-alive carries the lease and nothing else. If two were sent and one reply came,
//! it may be the reply to either. A holder that counted from the younger send could rely on its
//! lease for longer than the server keeps it. Therefore a reply belongs to the oldest unanswered
//! send, and a new stream begins with none: a late reply of an old stream matches no send.
//!
//! **Invariant**: the stamp handed out is never later than the moment the answered request was sent.
//! **Invariant**: what is kept is bounded by the leases and the callers that wait now, not by the calls ever made.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

/// Sends of one lease that may be unanswered at once. A third caller gets the reply to the second
/// send: it learns no less than with a send of its own, and a server that does not reply is not
/// flooded with repetitions.
const SENDS_MAX: usize = 2;

/// One caller that waits for a renewal.
pub(super) trait RenewalCaller {
    /// The caller was dropped.
    fn is_gone(&self) -> bool;
}

/// All renewals that are wanted, or sent and unanswered.
#[derive(Debug)]
pub(super) struct PendingRenewals<C> {
    /// Not sent yet, in this order.
    order: VecDeque<i64>,
    wanted: HashMap<i64, WantedRenewal<C>>,
    /// Sent on the current stream, oldest first.
    sent: HashMap<i64, VecDeque<SentRenewal<C>>>,
    /// When each send becomes overdue.
    patience_ends: BTreeMap<(Duration, u64), i64>,
    next_send: u64,
}

#[derive(Debug)]
struct WantedRenewal<C> {
    patience: Duration,
    callers: Vec<C>,
}

#[derive(Debug)]
struct SentRenewal<C> {
    number: u64,
    at: Duration,
    patience: Duration,
    callers: Vec<C>,
}

/// A reply with the callers that waited for it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct AnsweredRenewal<C> {
    /// When the request was sent, at the latest.
    pub(super) sent_at: Duration,
    pub(super) callers: Vec<C>,
}

impl<C: RenewalCaller> PendingRenewals<C> {
    pub(super) fn new() -> Self {
        Self {
            order: VecDeque::new(),
            wanted: HashMap::new(),
            sent: HashMap::new(),
            patience_ends: BTreeMap::new(),
            next_send: 0,
        }
    }

    /// A caller wants `lease` renewed, and allows one server this long to reply.
    pub(super) fn request(&mut self, lease: i64, patience: Duration, caller: C) {
        if let Some(sends) = self.sent.get_mut(&lease)
            && sends.len() >= SENDS_MAX
            && let Some(youngest) = sends.back_mut()
        {
            // Joining an unanswered send costs this caller a little validity, because the stamp is
            // older than its request, and spares the server another request.
            youngest.callers.retain(|caller| !caller.is_gone());
            youngest.callers.push(caller);
            return;
        }
        self.want(lease, patience, vec![caller]);
    }

    /// Whether anything waits to be sent.
    pub(super) fn has_wanted(&self) -> bool {
        !self.order.is_empty()
    }

    /// The next lease to send; the stamp is `now`, taken before the sending.
    pub(super) fn poll_send(&mut self, now: Duration) -> Option<i64> {
        while let Some(lease) = self.order.pop_front() {
            let Some(mut wanted) = self.wanted.remove(&lease) else { continue };
            // A renewal that no caller waits for would extend a lease that may be abandoned.
            wanted.callers.retain(|caller| !caller.is_gone());
            if wanted.callers.is_empty() {
                continue;
            }
            let number = self.next_send;
            self.next_send += 1;
            self.patience_ends.insert((now.saturating_add(wanted.patience), number), lease);
            let send = SentRenewal { number, at: now, patience: wanted.patience, callers: wanted.callers };
            self.sent.entry(lease).or_default().push_back(send);
            return Some(lease);
        }
        None
    }

    /// A reply for `lease` arrived. `None` if no send of it is unanswered.
    pub(super) fn answered(&mut self, lease: i64) -> Option<AnsweredRenewal<C>> {
        let sends = self.sent.get_mut(&lease)?;
        // The oldest: its stamp is the earliest, so validity can only be too short, never too long.
        let oldest = sends.pop_front()?;
        if sends.is_empty() {
            self.sent.remove(&lease);
        }
        self.patience_ends.remove(&(oldest.at.saturating_add(oldest.patience), oldest.number));
        Some(AnsweredRenewal { sent_at: oldest.at, callers: oldest.callers })
    }

    /// When the first unanswered send is overdue.
    pub(super) fn patience_end(&self) -> Option<Duration> {
        self.patience_ends.first_key_value().map(|((end, _), _)| *end)
    }

    /// The server ended the stream because of one request. It handles them one by one, so the
    /// refused one is the oldest unanswered of all leases.
    pub(super) fn refused(&mut self) -> Vec<C> {
        let fronts = self.sent.iter().filter_map(|(lease, sends)| Some((sends.front()?.number, *lease)));
        let oldest = fronts.min().and_then(|(_, lease)| self.answered(lease));
        oldest.map_or_else(Vec::new, |oldest| oldest.callers)
    }

    /// The stream is lost: everything unanswered is sent again, with a new stamp.
    pub(super) fn lost(&mut self) {
        self.patience_ends.clear();
        let mut sends: Vec<(i64, SentRenewal<C>)> = self
            .sent
            .drain()
            .flat_map(|(lease, sends)| sends.into_iter().map(move |send| (lease, send)))
            .collect();
        // In the old order: the lease that has waited longest is closest to its expiry.
        sends.sort_unstable_by_key(|(_, send)| send.number);
        for (lease, send) in sends {
            self.want(lease, send.patience, send.callers);
        }
    }

    /// Removes and returns all waiting callers.
    pub(super) fn take_all(&mut self) -> Vec<C> {
        self.patience_ends.clear();
        self.order.clear();
        let wanted = self.wanted.drain().flat_map(|(_, wanted)| wanted.callers);
        wanted
            .chain(self.sent.drain().flat_map(|(_, sends)| sends.into_iter().flat_map(|send| send.callers)))
            .collect()
    }

    fn want(&mut self, lease: i64, patience: Duration, mut callers: Vec<C>) {
        callers.retain(|caller| !caller.is_gone());
        if callers.is_empty() {
            return;
        }
        match self.wanted.get_mut(&lease) {
            Some(wanted) => {
                wanted.callers.retain(|caller| !caller.is_gone());
                wanted.callers.append(&mut callers);
                wanted.patience = wanted.patience.min(patience);
            }
            None => {
                self.order.push_back(lease);
                self.wanted.insert(lease, WantedRenewal { patience, callers });
            }
        }
    }
}

#[cfg(test)]
mod tests;
