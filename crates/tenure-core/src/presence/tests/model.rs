//! Random histories of a store, followed with breaks and new listings: in the end each set equals
//! the store.

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;

use super::*;
use crate::change::Change;
use crate::snapshot::SnapshotDiff;

#[derive(Clone, Debug)]
enum ModelStep {
    /// A node writes its record, as a new incarnation if it had no key.
    Put(u8, bool),
    /// A node's key is deleted.
    Delete(u8),
    /// The watch delivers its pending changes.
    Read,
    /// The watch breaks. A listing begins, and this many pages arrive before it breaks too.
    Break(usize),
    /// A listing completes.
    List,
}

fn steps() -> impl Strategy<Value = Vec<ModelStep>> {
    let step = prop_oneof![
        4 => (0..6_u8, prop::bool::weighted(0.85)).prop_map(|(node, is_good)| ModelStep::Put(node, is_good)),
        3 => (0..6_u8).prop_map(ModelStep::Delete),
        2 => Just(ModelStep::Read),
        1 => (0..3_usize).prop_map(ModelStep::Break),
        1 => Just(ModelStep::List),
    ];
    prop::collection::vec(step, 1..80)
}

/// The current state of the store, and the changes since the watch was opened.
#[derive(Default)]
struct Model {
    revision: i64,
    pairs: BTreeMap<Bytes, KeyValue>,
    history: VecDeque<Change>,
}

impl Model {
    fn put(&mut self, node: u8, is_good: bool) {
        self.revision += 1;
        let key = key(&node.to_string());
        let created = self.pairs.get(&key).map_or(Revision(self.revision), |pair| pair.created);
        let value = if is_good { at(&self.revision.to_string()) } else { "broken".into() };
        let put = pair(key.clone(), value, created.0, self.revision);
        self.pairs.insert(key, put.clone());
        self.history.push_back(Change::Put { pair: put, previous: None });
    }

    fn delete(&mut self, node: u8) {
        let key = key(&node.to_string());
        if self.pairs.remove(&key).is_some() {
            self.revision += 1;
            let revision = Revision(self.revision);
            self.history.push_back(Change::Delete { key, revision, previous: None });
        }
    }
}

/// A consumer that sees the events only.
#[derive(Default)]
struct Listener {
    /// Address and token by node, from the events.
    members: BTreeMap<NodeId, (Option<String>, Token)>,
    bad: std::collections::BTreeSet<NodeId>,
    /// The last token of each node, which must only grow.
    tokens: BTreeMap<NodeId, Token>,
    has_snapshot: bool,
    is_stale: bool,
}

impl Listener {
    fn handle(&mut self, event: PresenceEvent<NodeId, MemberRecord>) {
        match event {
            PresenceEvent::Snapshot(snapshot) => {
                assert!(!std::mem::replace(&mut self.has_snapshot, true), "the snapshot is reported once");
                self.bad = snapshot.set_aside().iter().map(|aside| aside.id.clone()).collect();
                snapshot.members().iter().for_each(|member| self.join(member));
            }
            PresenceEvent::Joined(member) => self.join(&member),
            PresenceEvent::Updated { before, now } => {
                assert_eq!(before.token, now.token);
                let known = self.members.insert(now.id.clone(), (now.record.address.clone(), now.token));
                assert_eq!(known, Some((before.record.address.clone(), before.token)));
            }
            PresenceEvent::Left { member, .. } => {
                let known = self.members.remove(&member.id);
                assert_eq!(known, Some((member.record.address.clone(), member.token)));
            }
            PresenceEvent::Unreadable(aside) => drop(self.bad.insert(aside.id)),
            PresenceEvent::Cleared { id, .. } => assert!(self.bad.remove(&id)),
            PresenceEvent::Stale { .. } => assert!(!std::mem::replace(&mut self.is_stale, true)),
            PresenceEvent::Fresh { .. } => assert!(std::mem::replace(&mut self.is_stale, false)),
        }
        assert!(self.has_snapshot, "the snapshot is reported first");
    }

    fn join(&mut self, member: &Presence<NodeId, MemberRecord>) {
        let before = self.members.insert(member.id.clone(), (member.record.address.clone(), member.token));
        assert_eq!(before, None, "a present member does not join");
        let last = self.tokens.insert(member.id.clone(), member.token);
        assert!(last.is_none_or(|last| last <= member.token), "incarnations only grow");
    }
}

fn deliver(items: &mut Vec<FeedItem>, set: &mut PresenceSet<NodePresence>, listener: &mut Listener) {
    for item in items.drain(..) {
        let is_whole = matches!(item, FeedItem::Synced(_));
        let mut events = Vec::new();
        set.handle_item(item, Moment::ORIGIN, &mut events);
        let is_allowed = is_whole || matches!(events[..], [] | [PresenceEvent::Stale { .. }]);
        assert!(is_allowed, "half a listing was reported: {events:?}");
        events.into_iter().for_each(|event| listener.handle(event));
    }
}

/// Runs a history. At each `Synced`, and at the end, the listener has what the store had at that
/// revision.
fn run_history(steps: Vec<ModelStep>) {
    let mut model = Model { revision: 1, ..Model::default() };
    let (mut diff, mut set) = (SnapshotDiff::new(), PresenceSet::new(NodePresence(layout())));
    let (mut listener, mut items) = (Listener::default(), Vec::new());
    for step in steps.into_iter().chain([ModelStep::List, ModelStep::Read]) {
        match step {
            ModelStep::Put(node, is_good) => model.put(node, is_good),
            ModelStep::Delete(node) => model.delete(node),
            ModelStep::Read if diff.synced_at().is_some() => {
                for change in model.history.drain(..) {
                    diff.handle_batch(change.revision(), vec![change], &mut items);
                }
            }
            ModelStep::Read => {}
            ModelStep::Break(pages) => {
                diff.handle_break(&mut items);
                let pairs: Vec<KeyValue> = model.pairs.values().cloned().collect();
                for page in pairs.chunks(2).take(pages) {
                    diff.handle_page(Revision(model.revision), page.to_vec(), &mut items);
                }
                diff.handle_break(&mut items);
            }
            ModelStep::List => {
                diff.handle_break(&mut items);
                let pairs = model.pairs.values().cloned().collect();
                diff.handle_page(Revision(model.revision), pairs, &mut items);
                diff.handle_listed(&mut items);
                model.history.clear();
            }
        }
        deliver(&mut items, &mut set, &mut listener);
    }
    let is_good = |pair: &&KeyValue| pair.value != "broken";
    let there: BTreeMap<NodeId, (Option<String>, Token)> = model
        .pairs
        .values()
        .filter(is_good)
        .map(|pair| {
            let id = NodePresence(layout()).id(&pair.key).unwrap();
            (id, (MemberRecord::decode(&pair.value).unwrap().address, Token(pair.created)))
        })
        .collect();
    assert_eq!(listener.members, there);
    assert_eq!(listener.members.len() + listener.bad.len(), model.pairs.len());
    let shown = set.snapshot().unwrap();
    assert_eq!(shown.revision, Revision(model.revision));
    let shown: BTreeMap<_, _> = shown
        .members()
        .iter()
        .map(|member| (member.id.clone(), (member.record.address.clone(), member.token)))
        .collect();
    assert_eq!(shown, there, "events add up to the snapshot");
}

proptest! {
    #[test]
    fn every_set_converges_to_the_store(steps in steps()) {
        run_history(steps);
    }
}
