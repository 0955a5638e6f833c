//! The lines of a desk, each in a slot.
//!
//! A line is found by its name when somebody comes to stand in it, and from then on by the number of its slot: most locks are taken and given
//! back within a millisecond, and a name that is hashed and counted at every step of that was a good part of the work.
//!
//! **Invariant**: a slot that is used again counts its tickets and epochs on from where all lines that were left had come to. So whoever comes late with
//! the slot of a line that was left, be it a seat or an answer, finds nobody there.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use bytes::Bytes;
use tenure_core::lease::LeaseId;
use tenure_core::line::EnterGuard;
use tenure_core::time::Moment;

use super::lined::Lined;

/// How many lines that were left keep their memory for those that are entered next. Each is about a kilobyte; more locks than this are seldom taken
/// in one round trip.
const SPARE_MAX: usize = 64;

/// Where a line is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Slot(usize);

/// All lines in which somebody of this process stands.
pub(super) struct Lines {
    slots: Vec<Option<Box<Lined>>>,
    /// Slots whose lines were left.
    free: Vec<Slot>,
    /// How many of those kept their memory.
    spare_len: usize,
    names: HashMap<Bytes, Slot>,
    /// Lines that have something to say, each once.
    noted: VecDeque<Slot>,
    /// When slots want to look at the clock. One that rings for nothing is set again then: that is cheaper than to move it with each lock.
    wakes: BTreeSet<(Moment, Slot)>,
    /// From which nonce a line that is entered anew counts on: no late request for it can touch what was left before.
    nonce_floor: u64,
    /// The largest number of all lines that were left.
    counter: u64,
    /// The newest enter guard of each lease, as queues that were left have seen it.
    guards: BTreeMap<LeaseId, EnterGuard>,
}

impl Lines {
    pub(super) fn new(nonce_first: u64) -> Lines {
        Lines {
            slots: Vec::new(),
            free: Vec::new(),
            spare_len: 0,
            names: HashMap::new(),
            noted: VecDeque::new(),
            wakes: BTreeSet::new(),
            nonce_floor: nonce_first,
            counter: 0,
            guards: BTreeMap::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// The line of this name, for one who stands in it from now on.
    pub(super) fn enter(&mut self, name: &Bytes) -> Slot {
        if let Some(&slot) = self.names.get(name) {
            return slot;
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            Slot(self.slots.len() - 1)
        });
        let lined = &mut self.slots[slot.0];
        self.spare_len -= usize::from(lined.is_some());
        let numbers = (self.nonce_floor, self.counter);
        lined.get_or_insert_default().begin(name.clone(), numbers, &self.guards);
        self.names.insert(name.clone(), slot);
        slot
    }

    /// Where the line of this name is; none if nobody of ours stands in it.
    pub(super) fn slot(&self, name: &Bytes) -> Option<Slot> {
        self.names.get(name).copied()
    }

    /// The line in a slot; none if it was left.
    pub(super) fn get(&self, slot: Slot) -> Option<&Lined> {
        self.slots[slot.0].as_deref().filter(|lined| lined.is_entered())
    }

    pub(super) fn get_mut(&mut self, slot: Slot) -> Option<&mut Lined> {
        self.slots[slot.0].as_deref_mut().filter(|lined| lined.is_entered())
    }

    /// All lines, in an order that chance has no part in.
    pub(super) fn all(&self) -> Vec<Slot> {
        (0..self.slots.len()).map(Slot).filter(|&slot| self.get(slot).is_some()).collect()
    }

    /// Tells a line something; it may have something to say then. None if it was left.
    pub(super) fn tell<T>(&mut self, slot: Slot, change: impl FnOnce(&mut Lined) -> T) -> Option<T> {
        let lined = self.slots[slot.0].as_deref_mut().filter(|lined| lined.is_entered())?;
        let told = change(lined);
        if !std::mem::replace(&mut lined.is_noted, true) {
            self.noted.push_back(slot);
        }
        Some(told)
    }

    /// A lease was lost, with all keys under it and its enter guard.
    pub(super) fn lose_lease(&mut self, lease: LeaseId, now: Moment) {
        for slot in self.all() {
            self.tell(slot, |lined| lined.machine.handle_lease_lost(lease, now));
        }
        self.guards.remove(&lease);
    }

    /// How many lines have something to say.
    pub(super) fn noted_len(&self) -> usize {
        self.noted.len()
    }

    /// The next line that has something to say.
    pub(super) fn next_noted(&mut self) -> Option<Slot> {
        let slot = self.noted.pop_front()?;
        if let Some(lined) = self.get_mut(slot) {
            lined.is_noted = false;
        }
        Some(slot)
    }

    /// Lets those lines look at the clock that wanted to by now.
    pub(super) fn look_at_clock(&mut self, now: Moment) {
        while let Some(&(at, slot)) = self.wakes.first()
            && at <= now
        {
            self.wakes.pop_first();
            if let Some(lined) = &mut self.slots[slot.0] {
                lined.wake = None;
            }
            self.tell(slot, |lined| lined.machine.handle_time(now));
        }
    }

    /// When the first of them wants to look at the clock.
    pub(super) fn next_wake(&self) -> Option<Moment> {
        self.wakes.first().map(|(at, _)| *at)
    }

    /// A line has said what it had to: it is woken when it wants to look at the clock next, or left if nobody of ours stands in it any more.
    pub(super) fn settle(&mut self, slot: Slot) {
        let Some(lined) = self.slots[slot.0].as_deref_mut().filter(|lined| lined.is_entered()) else {
            return;
        };
        if lined.machine.is_empty() {
            return self.leave(slot);
        }
        if let Some(wake) = lined.next_wake()
            && !lined.is_woken_by(wake)
        {
            if let Some(later) = lined.wake.replace(wake) {
                self.wakes.remove(&(later, slot));
            }
            self.wakes.insert((wake, slot));
        }
    }

    fn leave(&mut self, slot: Slot) {
        let Some(lined) = &mut self.slots[slot.0] else { return };
        self.nonce_floor = lined.machine.nonce_floor().max(self.nonce_floor);
        self.counter = lined.machine.counter().max(self.counter);
        for (&lease, &guard) in lined.machine.guards() {
            let newest = self.guards.entry(lease).or_default();
            *newest = guard.max(*newest);
        }
        if let Some(name) = lined.end() {
            self.names.remove(&name);
        }
        self.free.push(slot);
        if self.spare_len < SPARE_MAX {
            self.spare_len += 1;
        } else if let Some(wake) = self.slots[slot.0].take().and_then(|lined| lined.wake) {
            self.wakes.remove(&(wake, slot));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tenure_core::line::{Action, Entered, Mode, Ticket};

    use super::*;
    use crate::store::LeaseId;

    const NOW: Moment = Moment::from_ms(1_000);

    fn stand(lines: &mut Lines, name: &'static str) -> (Slot, Ticket) {
        let slot = lines.enter(&Bytes::from_static(name.as_bytes()));
        let stand = |lined: &mut Lined| lined.machine.stand(LeaseId::new(7).unwrap(), Mode::Exclusive);
        (slot, lines.tell(slot, stand).unwrap())
    }

    /// Answers what was asked, and lets the line settle.
    fn answer(lines: &mut Lines, slot: Slot, answer: Entered) {
        let lined = lines.get_mut(slot).unwrap();
        let Some(Action::Enter { ticket, epoch, .. }) = lined.machine.poll_action() else {
            panic!("it asks to enter")
        };
        lined.machine.handle_entered(ticket, epoch, answer, 0.0, NOW);
        while lined.machine.poll_notice().is_some() {}
        lines.settle(slot);
    }

    #[test]
    fn whoever_comes_late_to_a_slot_that_is_used_again_finds_nobody() {
        let mut lines = Lines::new(0);
        let (slot, former) = stand(&mut lines, "a/");
        answer(&mut lines, slot, Entered::LeaseGone);
        assert!(lines.get(slot).is_none() && lines.is_empty());
        assert_eq!(lines.tell(slot, |_| ()), None);
        let (again, ticket) = stand(&mut lines, "b/");
        assert_eq!(again, slot);
        assert_ne!(ticket, former);
        assert_eq!(lines.get(slot).unwrap().machine.place(former), None);
    }

    #[test]
    fn a_line_is_noted_once_and_found_by_its_name_until_it_is_left() {
        let mut lines = Lines::new(0);
        let (slot, _) = stand(&mut lines, "a/");
        assert_eq!(stand(&mut lines, "a/").0, slot);
        assert_eq!((lines.next_noted(), lines.next_noted()), (Some(slot), None));
        assert_eq!(lines.slot(&"a/".into()), Some(slot));
        assert_eq!(lines.slot(&"b/".into()), None);
        assert_eq!(lines.all(), [slot]);
    }

    #[test]
    fn a_slot_that_rang_for_nothing_rings_again_for_what_comes_next() {
        let mut lines = Lines::new(0);
        let (slot, _) = stand(&mut lines, "a/");
        answer(&mut lines, slot, Entered::NotDone);
        let first = lines.next_wake().expect("it tries again");
        lines.look_at_clock(first);
        assert_eq!(lines.next_wake(), None);
        answer(&mut lines, slot, Entered::NotDone);
        assert!(lines.next_wake().is_some());
        // The line is left, and the next in its slot has nothing to wait for.
        lines.look_at_clock(NOW + Duration::from_secs(9));
        answer(&mut lines, slot, Entered::LeaseGone);
        stand(&mut lines, "b/");
        lines.look_at_clock(NOW + Duration::from_secs(99));
        assert_eq!(lines.next_wake(), None);
    }

    #[test]
    fn a_thousand_lines_that_were_left_keep_no_more_memory_than_a_few() {
        let mut lines = Lines::new(0);
        let names: Vec<Bytes> = (0..1_000).map(|n| format!("{n}/").into()).collect();
        for name in &names {
            let slot = lines.enter(name);
            lines.settle(slot);
        }
        assert_eq!(lines.slots.len(), 1, "each was left before the next was entered");
        let slots: Vec<Slot> = names.iter().map(|name| lines.enter(name)).collect();
        for slot in slots {
            lines.settle(slot);
        }
        assert!(lines.is_empty());
        assert_eq!(lines.slots.iter().flatten().count(), SPARE_MAX);
        assert_eq!(lines.free.len(), 1_000);
    }
}
