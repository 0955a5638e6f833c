//! The session of each process in the world: its lease, its renewals, its loss and its node key.

use std::time::Duration;

use super::{MARGIN, RENEW_EVERY, TTL, WorkerWorld, WorldItem};
use crate::layout::Key;
use crate::lease::LeaseId;
use crate::loss::LossReason;
use crate::revision::Token;
use crate::txn::{Condition, Op, Txn};
use crate::worker::WorkerInput;

impl WorkerWorld {
    /// A session that was not renewed in time is lost before its lease can be.
    pub(in crate::worker::tests) fn lapse(&mut self) {
        for n in 0..self.processes.len() {
            if self.processes[n].lapses_at().is_some_and(|at| at <= self.now) {
                self.lose_session(n);
            }
        }
    }

    pub(in crate::worker::tests) fn lose_session(&mut self, n: usize) {
        let process = &mut self.processes[n];
        process.valid_until = None;
        process.incarnation = None;
        // The driver learns of its lease handles first. What the worker requests until it learns
        // the rest is sent under an ended lease.
        if let Some(lease) = process.lease {
            self.deliver(n, WorkerInput::LeaseLost { lease, why: LossReason::Lapsed });
        }
        self.processes[n].lease = None;
        self.deliver(n, WorkerInput::SessionLost);
        self.soon(WorldItem::Join(n), n);
    }

    /// Its own key is gone, and its lease is not: as when the key still hung on the lease before.
    pub(in crate::worker::tests) fn lose_member_key(&mut self, n: usize) {
        self.processes[n].incarnation = None;
        self.deliver(n, WorkerInput::SessionLost);
    }

    pub(in crate::worker::tests) fn renew(&mut self, n: usize) {
        let Some(lease) = self.processes[n].lease else { return };
        if !self.processes[n].is_cut {
            match self.store.renew(lease, self.now) {
                Some(ttl) => self.processes[n].valid_until = Some(self.now + ttl - MARGIN),
                None => return self.lose_session(n),
            }
        }
        self.later(WorldItem::Renew(n), n, RENEW_EVERY);
    }

    /// Puts the node's own key under a new lease, unless another life of it is still there.
    pub(in crate::worker::tests) fn join(&mut self, n: usize) {
        if self.processes[n].lease.is_some() || self.processes[n].finished.is_some() {
            return;
        }
        let again = Duration::from_millis(700);
        if self.processes[n].is_cut {
            return self.later(WorldItem::Join(n), n, again);
        }
        self.leases += 1;
        let lease = LeaseId::new(self.leases).unwrap();
        let ttl = self.store.grant(lease, TTL, self.now).unwrap();
        let key = self.layout.encode(&Key::Node(self.processes[n].config.node.clone()));
        let txn = Txn::new().when(Condition::absent(key.clone())).then(Op::put_leased(
            key,
            self.processes[n].node_record(),
            lease,
        ));
        let reply = self.store.apply(&txn, self.now).unwrap();
        if !reply.succeeded {
            return self.later(WorldItem::Join(n), n, again);
        }
        let incarnation = Token(reply.revision);
        let process = &mut self.processes[n];
        process.lease = Some(lease);
        process.incarnation = Some(incarnation);
        process.valid_until = Some(self.now + ttl - MARGIN);
        self.later(WorldItem::Renew(n), n, RENEW_EVERY);
        self.deliver(n, WorkerInput::Joined { incarnation });
    }

    /// The session has another lease for what is claimed from now on.
    pub(in crate::worker::tests) fn change_lease(&mut self, n: usize) {
        self.leases += 1;
        let lease = LeaseId::new(self.leases).unwrap();
        self.store.grant(lease, TTL * 1_000, self.now).unwrap();
        self.processes[n].lease = Some(lease);
    }
}
