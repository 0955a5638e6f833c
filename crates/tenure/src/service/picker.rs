//! Picks an instance from the local view.

use std::sync::{Arc, Mutex, PoisonError};

use tenure_core::id::InstanceId;
use tenure_core::rendezvous;

use super::{Instance, InstanceView};
use crate::rng;

/// Picks instances of a service from the last picture known, without asking the store.
///
/// Each way of picking is none if nobody is there, or if no picture has come yet ([`PresenceView::ready`](crate::presence::PresenceView::ready)).
#[derive(Debug)]
pub struct Picker {
    view: InstanceView,
    /// Whose turn it was last.
    last: Mutex<Option<InstanceId>>,
}

impl Picker {
    /// Picks from this view.
    pub fn new(view: InstanceView) -> Picker {
        Picker { view, last: Mutex::new(None) }
    }

    /// What is picked from.
    pub fn view(&self) -> &InstanceView {
        &self.view
    }

    /// Anybody, all as likely.
    pub fn random(&self) -> Option<Arc<Instance>> {
        // Without dice the first one is as good as any.
        self.pick_by(rng::try_bytes().map_or(0, u64::from_le_bytes))
    }

    /// The same instance for the same number while nobody comes or goes: for those who bring their own dice.
    pub fn pick_by(&self, number: u64) -> Option<Arc<Instance>> {
        let instances = self.view.snapshot()?;
        let len = u64::try_from(instances.len()).ok().filter(|len| *len > 0)?;
        // The high bits decide, so that small differences between numbers do not.
        let at = (u128::from(number) * u128::from(len)) >> 64;
        instances.members().get(usize::try_from(at).ok()?).cloned()
    }

    /// One after another, in the order of their ids. Who comes or goes takes nobody else's turn.
    pub fn round_robin(&self) -> Option<Arc<Instance>> {
        let instances = self.view.snapshot()?;
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let next = instances.after(last.as_ref())?.clone();
        *last = Some(next.id.clone());
        Some(next)
    }

    /// The same instance for the same key, in every process, whoever asks first. When one goes, only its own keys move.
    pub fn for_key(&self, key: impl AsRef<[u8]>) -> Option<Arc<Instance>> {
        let instances = self.view.snapshot()?;
        let candidates = instances.members().iter().map(WeightedInstance);
        rendezvous::pick(key.as_ref(), candidates).map(|meant| meant.0.clone())
    }
}

/// An instance, weighed by its id.
struct WeightedInstance<'a>(&'a Arc<Instance>);

impl AsRef<[u8]> for WeightedInstance<'_> {
    fn as_ref(&self) -> &[u8] {
        self.0.id.as_str().as_bytes()
    }
}
