//! The workers that can take a task, as one small number per task.
//!
//! Workers that accept the same tasks share one *profile*; a fleet has few of them, however many
//! workers it has. A task's *class* is the set of profiles that accept it. Balancers count by
//! class, so the cost of a decision grows neither with the number of tasks nor with their labels.
//!
//! **Invariant**: the number of a profile denotes the same tasks for as long as
//! [`Profiles::version`] is unchanged.

use std::collections::BTreeMap;

use super::worker_loads::Load;
use crate::record::{AcceptedTasks, TaskRecord};

/// The most profiles that are distinguished. Workers with a further one count as if they accepted
/// everything.
const PROFILES_MAX: usize = 128;

/// The number of a profile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Profile(u8);

/// The profiles that accept a task.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Class(u128);

impl Class {
    /// The tasks that every worker accepts.
    pub const ANY: Class = Class(u128::MAX);

    pub(super) fn only(profile: Profile) -> Class {
        Class(1 << profile.0)
    }

    pub(super) fn has(self, profile: Profile) -> bool {
        self.0 & (1 << profile.0) != 0
    }

    fn is_within(self, other: Class) -> bool {
        self.0 & !other.0 == 0
    }
}

/// The class of a task that is not classified yet: every worker accepts it.
impl Default for Class {
    fn default() -> Class {
        Class::ANY
    }
}

/// The profiles of a set of workers.
#[derive(Clone, Debug, Default)]
pub struct Profiles {
    slots: Vec<ProfileSlot>,
    version: u64,
}

#[derive(Clone, Debug, Default)]
struct ProfileSlot {
    wanted: AcceptedTasks,
    nodes: usize,
    /// How many of the workers have a limit.
    limited: usize,
    total: Load,
}

impl Profiles {
    /// Grows whenever a number gets another meaning. Then every task has to be classified again.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The class of a task.
    pub fn class_of(&self, record: &TaskRecord) -> Class {
        let accepting = self.slots.iter().enumerate().filter(|(_, slot)| slot.wanted.accepts(record));
        Class(accepting.fold(0, |class, (number, _)| class | 1 << number))
    }

    pub(super) fn wanted(&self, profile: Profile) -> &AcceptedTasks {
        &self.slots[usize::from(profile.0)].wanted
    }

    pub(super) fn enter(&mut self, wanted: &AcceptedTasks, load: Load) -> Profile {
        let known = self.slots.iter().position(|slot| slot.wanted == *wanted);
        let number = known.unwrap_or_else(|| self.assign(wanted));
        let slot = &mut self.slots[number];
        slot.nodes += 1;
        slot.total = slot.total + load;
        Profile(u8::try_from(number).expect("there are at most 128 profiles"))
    }

    fn assign(&mut self, wanted: &AcceptedTasks) -> usize {
        self.version += 1;
        if self.slots.len() < PROFILES_MAX {
            self.slots.push(ProfileSlot { wanted: wanted.clone(), ..ProfileSlot::default() });
            return self.slots.len() - 1;
        }
        let unused = self.slots.iter().position(|slot| slot.nodes == 0);
        let number = unused.unwrap_or(PROFILES_MAX - 1);
        let wanted = if unused.is_some() { wanted.clone() } else { AcceptedTasks::default() };
        self.slots[number].wanted = wanted;
        number
    }

    pub(super) fn leave(&mut self, profile: Profile, load: Load) {
        let slot = &mut self.slots[usize::from(profile.0)];
        slot.nodes -= 1;
        slot.total = slot.total - load;
    }

    pub(super) fn shift(&mut self, profile: Profile, before: Load, now: Load) {
        let slot = &mut self.slots[usize::from(profile.0)];
        slot.total = slot.total - before + now;
    }

    pub(super) fn limit(&mut self, profile: Profile, was_limited: bool, is_limited: bool) {
        let slot = &mut self.slots[usize::from(profile.0)];
        slot.limited = slot.limited + usize::from(is_limited) - usize::from(was_limited);
    }

    pub(super) fn count(&self, class: Class) -> usize {
        self.of(class).map(|slot| slot.nodes).sum()
    }

    pub(super) fn total(&self, class: Class) -> Load {
        self.of(class).fold(Load::default(), |sum, slot| sum + slot.total)
    }

    pub(super) fn has_limits(&self, class: Class) -> bool {
        self.of(class).any(|slot| slot.limited > 0)
    }

    fn of(&self, class: Class) -> impl Iterator<Item = &ProfileSlot> {
        let chosen = self.slots.iter().enumerate().filter(move |(number, _)| class.0 & (1 << number) != 0);
        chosen.map(|(_, slot)| slot)
    }
}

/// The load of each class.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Demand(BTreeMap<Class, Load>);

impl Demand {
    /// The load of one class.
    pub fn of(class: Class, load: Load) -> Demand {
        Demand(BTreeMap::from([(class, load)]))
    }

    /// Adds a load.
    pub fn add(&mut self, class: Class, load: Load) {
        let before = self.0.entry(class).or_default();
        *before = *before + load;
    }

    /// Subtracts a load.
    pub fn sub(&mut self, class: Class, load: Load) {
        if let Some(before) = self.0.get_mut(&class) {
            *before = *before - load;
            if before.tasks == 0 {
                self.0.remove(&class);
            }
        }
    }

    /// The load that only workers that accept this class can take. Tasks that other workers accept
    /// as well may go to them, and are not counted.
    pub fn within(&self, class: Class) -> Load {
        let inner = self.0.iter().filter(|(inner, _)| inner.is_within(class));
        inner.fold(Load::default(), |sum, (_, load)| sum + *load)
    }
}
