//! The lease on which a node keeps the results of commands: one for many of them, for an hour, and then the next.
//!
//! A lease on which no result came to lie is ended by the node that goes: nobody else knows that it is empty.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use tenure_core::layout::{RESULTS_LEASE_FOR, RESULTS_LEASE_TTL};
use tenure_core::time::Moment;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::clock::Clock;
use crate::dice;
use crate::leftover::{Leftover, may_arrive_until};
use crate::store::{LeaseId, Store, StoreError, TxnReply};

/// The lease on which results of commands are kept.
pub(super) struct Results {
    clock: Arc<dyn Clock>,
    leases: Mutex<Leases>,
}

#[derive(Default)]
struct Leases {
    current: Option<Current>,
    /// One of which it is not known whether it was granted: asked for again, it is not granted twice.
    doubtful: Option<Doubtful>,
    /// Whose hour is over, and which may be empty.
    over: Vec<Leftover>,
}

/// The one for new results.
struct Current {
    lease: LeaseId,
    since: Moment,
    /// Whether a result lies under it.
    holds: bool,
    /// Results that may lie under it, and until when their requests may be carried out.
    may_hold: BTreeMap<Bytes, Instant>,
}

#[derive(Clone, Copy)]
struct Doubtful {
    lease: LeaseId,
    since: Moment,
    may_come_until: Instant,
}

impl Results {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Results {
        Results { clock, leases: Mutex::default() }
    }

    /// The lease for results that are about to be written.
    pub(super) async fn lease_for<'a>(
        &self,
        store: &Store,
        results: impl IntoIterator<Item = &'a Bytes>,
    ) -> Result<LeaseId, StoreError> {
        let mut leases = self.leases.lock().await;
        let now = self.clock.now();
        if let Some(current) = &mut leases.current
            && now.since(current.since) < RESULTS_LEASE_FOR
        {
            current.will_hold(results);
            return Ok(current.lease);
        }
        let asked = leases.ask(now);
        match store.grant(RESULTS_LEASE_TTL, Some(asked.lease)).await {
            // An earlier request was carried out, and its answer lost.
            Ok(_) | Err(StoreError::LeaseExists) => {}
            Err(error) => return Err(unsent(error)),
        }
        let mut current =
            Current { lease: asked.lease, since: asked.since, holds: false, may_hold: BTreeMap::new() };
        current.will_hold(results);
        leases.take_over(current);
        leases.end_over(store).await;
        Ok(asked.lease)
    }

    /// What came of a request that puts a result under a lease.
    pub(super) async fn note(&self, lease: LeaseId, result: Bytes, reply: &Result<TxnReply, StoreError>) {
        let mut leases = self.leases.lock().await;
        let Some(current) = leases.current.as_mut().filter(|current| current.lease == lease) else { return };
        match reply {
            Ok(reply) if reply.succeeded => {
                current.holds = true;
                current.may_hold.clear();
            }
            Err(StoreError::LeaseNotFound) => leases.current = None,
            Err(error) if error.is_ambiguous() => current.will_hold([&result]),
            Ok(_) | Err(_) => drop(current.may_hold.remove(&result)),
        }
    }

    /// The leases under which nothing lies, or may.
    pub(super) async fn unused(&self) -> Vec<Leftover> {
        let mut leases = self.leases.lock().await;
        let mut unused = std::mem::take(&mut leases.over);
        unused.extend(leases.current.take().and_then(Current::into_leftover));
        let doubtful = leases.doubtful.take();
        unused
            .extend(doubtful.map(|asked| Leftover::doubtful(asked.lease, Vec::new(), asked.may_come_until)));
        unused
    }
}

impl Leases {
    /// The one to ask for now: the same as before, until it is known to be granted.
    fn ask(&mut self, now: Moment) -> Doubtful {
        let may_come_until = may_arrive_until();
        let doubtful = self.doubtful.get_or_insert_with(|| Doubtful {
            lease: LeaseId::from_random(dice::bytes()),
            since: now,
            may_come_until,
        });
        doubtful.may_come_until = may_come_until;
        *doubtful
    }

    fn take_over(&mut self, next: Current) {
        self.doubtful = None;
        let before = self.current.replace(next);
        self.over.extend(before.and_then(Current::into_leftover));
    }

    /// The store answers: ends those whose hour is over.
    async fn end_over(&mut self, store: &Store) {
        for leftover in std::mem::take(&mut self.over) {
            if !leftover.is_settled(store).await {
                self.over.push(leftover);
            }
        }
    }
}

impl Current {
    /// These are about to be put under it, or may have been.
    fn will_hold<'a>(&mut self, results: impl IntoIterator<Item = &'a Bytes>) {
        if !self.holds {
            let until = may_arrive_until();
            self.may_hold.extend(results.into_iter().map(|result| (result.clone(), until)));
        }
    }

    fn into_leftover(self) -> Option<Leftover> {
        if self.holds {
            return None;
        }
        Some(match self.may_hold.values().max() {
            Some(&until) => Leftover::doubtful(self.lease, self.may_hold.into_keys().collect(), until),
            None => Leftover::empty(self.lease),
        })
    }
}

/// Whatever became of the lease, the write that needed it was not sent.
fn unsent(error: StoreError) -> StoreError {
    match error {
        StoreError::Ambiguous(cause) => StoreError::Unavailable(cause),
        error => error,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tenure_core::layout::{Key, Layout};
    use tenure_core::name::{CommandId, Namespace, NodeId};
    use tenure_core::node::{Answer, Mark};
    use tenure_core::revision::{Epoch, Revision};

    use super::super::writes::{Write, send};
    use super::*;
    use crate::clock::BootClock;
    use crate::testing::World;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    struct Bench {
        store: Store,
        layout: Layout,
        node: NodeId,
        order: CommandId,
        results: Arc<Results>,
    }

    impl Bench {
        fn on(store: Store) -> Bench {
            let layout = Layout::new(&Namespace::parse("t").unwrap());
            let order = CommandId::parse("019a0000-0000-7000-8000-000000000001").unwrap();
            let results = Arc::new(Results::new(Arc::new(BootClock)));
            Bench { store, layout, node: NodeId::parse("n").unwrap(), order, results }
        }

        /// Answers the command as it was put then.
        fn answer(&self, modified: Revision) -> impl Future<Output = ()> + Send + 'static {
            let answer = Answer {
                epoch: Epoch(1),
                order: self.order.clone(),
                modified,
                mark: Mark::Keep,
                result: Some("{}".into()),
            };
            let writes = vec![Write::Answer(Box::new(answer))];
            let (layout, node) = (self.layout.clone(), self.node.clone());
            let sending = send(self.store.clone(), layout, node, self.results.clone(), writes);
            async move { drop(sending.await) }
        }

        async fn put_command(&self, store: &Store) -> Revision {
            let key = self.layout.encode(&Key::NodeCommand(self.node.clone(), self.order.clone()));
            store.put(key, "{}").await.unwrap()
        }
    }

    /// Ends what can be ended now; says how many are left.
    async fn end(unused: &mut Vec<Leftover>, store: &Store) -> usize {
        for leftover in std::mem::take(unused) {
            if !leftover.is_settled(store).await {
                unused.push(leftover);
            }
        }
        unused.len()
    }

    /// Found by the rig: a command was replaced while its answer was on its way, and the lease for it stayed empty for a day.
    #[tokio::test]
    async fn a_lease_for_results_is_unused_until_a_result_lies_under_it() {
        let (store, other) = (Store::memory(), Store::memory());
        for (store, is_there) in [(store, false), (other, true)] {
            let bench = Bench::on(store.clone());
            assert!(bench.results.unused().await.is_empty(), "none was granted");
            let put = bench.put_command(&store).await;
            bench.answer(if is_there { put } else { Revision(put.0 + 7) }).await;
            assert_eq!(store.leases().await.unwrap().len(), 1);
            let mut unused = bench.results.unused().await;
            assert_eq!((unused.len(), end(&mut unused, &store).await), (usize::from(!is_there), 0));
            assert_eq!(store.leases().await.unwrap().len(), usize::from(is_there));
        }
    }

    /// The request was given up: the result may be there, may come, or may never come. The lease stays while that is not known, and goes with the doubt.
    #[tokio::test]
    async fn a_lease_whose_only_result_is_in_doubt_ends_when_it_is_known_not_to_be_there() {
        for arrives in [false, true] {
            let world = World::new();
            let store = world.store("onlooker");
            let bench = Bench::on(world.store("node"));
            let put = bench.put_command(&store).await;
            world.latency("node", s(1));
            let answering = tokio::spawn(bench.answer(put));
            world.advance(s(2)).await;
            if arrives {
                world.lose_answers("node");
            } else {
                world.partition("node");
            }
            world.advance(s(8)).await;
            answering.await.unwrap();
            world.heal("node");
            world.latency("node", Duration::ZERO);
            let mut unused = bench.results.unused().await;
            assert_eq!(unused.len(), 1);
            assert_eq!(end(&mut unused, &bench.store).await, usize::from(!arrives), "it may come yet");
            world.advance(s(11)).await;
            assert_eq!(end(&mut unused, &bench.store).await, 0);
            assert_eq!(store.leases().await.unwrap().len(), usize::from(arrives));
        }
    }

    #[tokio::test]
    async fn a_lease_for_results_that_is_granted_after_it_was_given_up_ends_too() {
        let world = World::new();
        let store = world.store("onlooker");
        let bench = Bench::on(world.store("node"));
        world.arrive_late("node", true);
        world.latency("node", s(8));
        let answering = tokio::spawn(bench.answer(Revision(1)));
        world.advance(s(6)).await;
        answering.await.unwrap();
        world.arrive_late("node", false);
        world.latency("node", Duration::ZERO);
        let mut unused = bench.results.unused().await;
        assert_eq!(unused.len(), 1);
        assert_eq!(end(&mut unused, &bench.store).await, 1, "it may be granted yet");
        world.advance(s(3)).await;
        assert_eq!(store.leases().await.unwrap().len(), 1, "it was granted late");
        assert_eq!(end(&mut unused, &bench.store).await, 0);
        assert_eq!(store.leases().await.unwrap(), []);
    }

    #[tokio::test]
    async fn a_lease_whose_hour_is_over_ends_if_nothing_lies_under_it() {
        let world = World::new();
        let mut bench = Bench::on(world.store("node"));
        bench.results = Arc::new(Results::new(Arc::new(world.clock("node"))));
        bench.answer(Revision(7)).await;
        let first = bench.store.leases().await.unwrap();
        world.advance(RESULTS_LEASE_FOR).await;
        bench.answer(Revision(7)).await;
        let second = bench.store.leases().await.unwrap();
        assert!(first.len() == 1 && second.len() == 1 && first != second, "{first:?} {second:?}");
    }
}
