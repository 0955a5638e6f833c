//! Picks an instance from the local view.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure_core::id::InstanceId;
use tenure_core::rendezvous;
use tenure_core::time::Moment;

use super::{Instance, InstanceView};
use crate::rng;

/// Picks instances of a service from the last known snapshot, without a request.
///
/// Each method returns none if no instance is registered, or if no snapshot has arrived yet ([`PresenceView::ready`](crate::presence::PresenceView::ready)).
#[derive(Debug)]
pub struct Picker {
    view: InstanceView,
    /// The instance that was picked last.
    last: Mutex<Option<InstanceId>>,
    /// The instances that are marked down, and until when.
    down: Mutex<BTreeMap<InstanceId, Moment>>,
}

impl Picker {
    /// Picks from this view.
    pub fn new(view: InstanceView) -> Picker {
        Picker { view, last: Mutex::new(None), down: Mutex::default() }
    }

    /// The view that it picks from.
    pub fn view(&self) -> &InstanceView {
        &self.view
    }

    /// How old the snapshot is that it picks from; none before the first one has arrived.
    pub fn age(&self) -> Option<Duration> {
        self.view.age()
    }

    /// Does not pick this instance for this long, for example after a failed request. If all instances are marked, all are picked from.
    pub fn mark_down(&self, id: &InstanceId, duration: Duration) {
        let mut down = self.down.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.view.now();
        down.retain(|_, until| *until > now);
        down.insert(id.clone(), now + duration);
    }

    /// A random instance, all with the same probability.
    pub fn random(&self) -> Option<Arc<Instance>> {
        // Without random numbers the first instance is as good as any.
        self.pick_by(rng::try_bytes().map_or(0, u64::from_le_bytes))
    }

    /// The same instance for the same number while no instance joins or leaves: for callers with their own random numbers.
    pub fn pick_by(&self, number: u64) -> Option<Arc<Instance>> {
        let instances = self.eligible()?;
        let len = u64::try_from(instances.len()).ok().filter(|len| *len > 0)?;
        // The high bits decide, so that small differences between numbers do not.
        let at = (u128::from(number) * u128::from(len)) >> 64;
        instances.get(usize::try_from(at).ok()?).cloned()
    }

    /// One after another, in the order of their ids. An instance that joins or leaves does not make another one skip its turn.
    pub fn round_robin(&self) -> Option<Arc<Instance>> {
        let instances = self.eligible()?;
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let next = last.as_ref().map_or(0, |last| instances.partition_point(|one| one.id <= *last));
        let next = instances.get(next).or_else(|| instances.first())?.clone();
        *last = Some(next.id.clone());
        Some(next)
    }

    /// The same instance for the same key, in every process that has marked the same instances. When an instance leaves, only its own keys
    /// move.
    pub fn for_key(&self, key: impl AsRef<[u8]>) -> Option<Arc<Instance>> {
        let instances = self.eligible()?;
        rendezvous::pick(key.as_ref(), instances.iter().map(WeightedInstance)).map(|picked| picked.0.clone())
    }

    /// The instances that are not marked down, in the order of their ids; all of them if each is marked.
    fn eligible(&self) -> Option<Vec<Arc<Instance>>> {
        let snapshot = self.view.snapshot()?;
        let down = self.down.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.view.now();
        let is_up = |instance: &&Arc<Instance>| down.get(&instance.id).is_none_or(|until| *until <= now);
        let up: Vec<Arc<Instance>> = snapshot.members().iter().filter(is_up).cloned().collect();
        // With every instance marked, a try is better than none.
        Some(if up.is_empty() { snapshot.members().to_vec() } else { up })
    }
}

/// An instance, weighed by its id.
struct WeightedInstance<'a>(&'a Arc<Instance>);

impl AsRef<[u8]> for WeightedInstance<'_> {
    fn as_ref(&self) -> &[u8] {
        self.0.id.as_str().as_bytes()
    }
}
