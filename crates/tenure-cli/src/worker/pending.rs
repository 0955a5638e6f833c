//! Connections that have sent no request yet: how many there may be, and which one gives way.
//!
//! **Invariant**: a new connection is always admitted, so that a health probe is answered however many connections are idle.

use std::collections::VecDeque;
use std::net::IpAddr;

use tokio::sync::oneshot;

/// How many connections of one address may be without a request. A probe and a few scrapers from one host need less; more only cost descriptors.
const PER_PEER_MAX: usize = 16;

/// How many in all. Each costs a descriptor that tasks may need.
const TOTAL_MAX: usize = 64;

/// The connections that wait for a request, oldest first.
#[derive(Default)]
pub(super) struct PendingConnections {
    waiting: VecDeque<(IpAddr, oneshot::Sender<()>)>,
}

/// The admission of one connection. Dropping it frees its slot.
pub(super) struct Admission {
    evicted: oneshot::Receiver<()>,
}

impl Admission {
    /// Waits until the connection must give way to a newer one.
    pub(super) async fn evicted(&mut self) {
        // Both a message and a dropped sender mean that.
        let _ = (&mut self.evicted).await;
    }
}

impl PendingConnections {
    /// Admits a connection; evicts the oldest one of its address, or of all, if there are too many.
    pub(super) fn admit(&mut self, peer: IpAddr) -> Admission {
        self.waiting.retain(|(_, evict)| !evict.is_closed());
        if self.waiting.iter().filter(|(other, _)| *other == peer).count() >= PER_PEER_MAX {
            if let Some(oldest) = self.waiting.iter().position(|(other, _)| *other == peer) {
                self.waiting.remove(oldest);
            }
        } else if self.waiting.len() >= TOTAL_MAX {
            self.waiting.pop_front();
        }
        let (evict, evicted) = oneshot::channel();
        self.waiting.push_back((peer, evict));
        Admission { evicted }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn peer(n: u8) -> IpAddr {
        IpAddr::from([127, 0, 0, n])
    }

    fn is_evicted(admission: &mut Admission) -> bool {
        admission.evicted().now_or_never().is_some()
    }

    #[test]
    fn oldest_idle_connection_of_a_peer_gives_way() {
        let mut pending = PendingConnections::default();
        let mut other = pending.admit(peer(2));
        let mut admitted: Vec<Admission> = (0..PER_PEER_MAX).map(|_| pending.admit(peer(1))).collect();
        assert!(!admitted.iter_mut().any(is_evicted));
        let mut newest = pending.admit(peer(1));
        assert!(is_evicted(&mut admitted[0]) && !is_evicted(&mut admitted[1]));
        assert!(!is_evicted(&mut newest) && !is_evicted(&mut other));
    }

    #[test]
    fn oldest_of_all_gives_way_at_the_total() {
        let mut pending = PendingConnections::default();
        let mut admitted: Vec<Admission> =
            (0..TOTAL_MAX).map(|n| pending.admit(peer(u8::try_from(n).unwrap()))).collect();
        let mut newest = pending.admit(peer(200));
        assert!(is_evicted(&mut admitted[0]));
        assert!(!admitted[1..].iter_mut().any(is_evicted) && !is_evicted(&mut newest));
    }

    #[test]
    fn served_connection_frees_its_slot() {
        let mut pending = PendingConnections::default();
        for _ in 0..1_000 {
            drop(pending.admit(peer(1)));
        }
        let mut admitted: Vec<Admission> = (0..PER_PEER_MAX).map(|_| pending.admit(peer(1))).collect();
        assert!(!admitted.iter_mut().any(is_evicted));
    }
}
