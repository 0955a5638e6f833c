//! Picks an instance from the local view.

use std::sync::{Arc, Mutex, PoisonError};

use tenure_core::id::InstanceId;
use tenure_core::rendezvous;

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
}

impl Picker {
    /// Picks from this view.
    pub fn new(view: InstanceView) -> Picker {
        Picker { view, last: Mutex::new(None) }
    }

    /// The view that it picks from.
    pub fn view(&self) -> &InstanceView {
        &self.view
    }

    /// A random instance, all with the same probability.
    pub fn random(&self) -> Option<Arc<Instance>> {
        // Without random numbers the first instance is as good as any.
        self.pick_by(rng::try_bytes().map_or(0, u64::from_le_bytes))
    }

    /// The same instance for the same number while no instance joins or leaves: for callers with their own random numbers.
    pub fn pick_by(&self, number: u64) -> Option<Arc<Instance>> {
        let instances = self.view.snapshot()?;
        let len = u64::try_from(instances.len()).ok().filter(|len| *len > 0)?;
        // The high bits decide, so that small differences between numbers do not.
        let at = (u128::from(number) * u128::from(len)) >> 64;
        instances.members().get(usize::try_from(at).ok()?).cloned()
    }

    /// One after another, in the order of their ids. An instance that joins or leaves does not make another one skip its turn.
    pub fn round_robin(&self) -> Option<Arc<Instance>> {
        let instances = self.view.snapshot()?;
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let next = instances.after(last.as_ref())?.clone();
        *last = Some(next.id.clone());
        Some(next)
    }

    /// The same instance for the same key, in every process. When an instance leaves, only its own keys move.
    pub fn for_key(&self, key: impl AsRef<[u8]>) -> Option<Arc<Instance>> {
        let instances = self.view.snapshot()?;
        let candidates = instances.members().iter().map(WeightedInstance);
        rendezvous::pick(key.as_ref(), candidates).map(|picked| picked.0.clone())
    }
}

/// An instance, weighed by its id.
struct WeightedInstance<'a>(&'a Arc<Instance>);

impl AsRef<[u8]> for WeightedInstance<'_> {
    fn as_ref(&self) -> &[u8] {
        self.0.id.as_str().as_bytes()
    }
}
