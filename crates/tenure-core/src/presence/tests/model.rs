//! Random histories of a store, watched with breaks and new listings: whatever happened, followers end up with what is there.

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;

use super::*;
use crate::change::Change;
use crate::snapshot::SnapshotDiff;

#[derive(Clone, Debug)]
enum ModelStep {
    /// A node writes its record, in a new life if it had none.
    Put(u8, bool),
    /// A node's key goes.
    Delete(u8),
    /// The follower reads what its watch has for it.
    Read,
    /// The watch breaks, and a listing begins of which so many pages arrive before it breaks again.
    Break(usize),
    /// A listing is done to its end.
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

/// The store as it is, and the history since the follower's watch began.
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

/// One who hears the news and nothing else.
#[derive(Default)]
struct Listener {
    /// Address and token by node, as told.
    members: BTreeMap<NodeId, (Option<String>, Token)>,
    bad: std::collections::BTreeSet<NodeId>,
    /// The last token of each node, which must only grow.
    tokens: BTreeMap<NodeId, Token>,
    has_picture: bool,
    is_stale: bool,
}

impl Listener {
    fn hear(&mut self, news: PresenceEvent<NodeId, MemberRecord>) {
        match news {
            PresenceEvent::Snapshot(snapshot) => {
                assert!(!std::mem::replace(&mut self.has_picture, true), "the whole picture is told once");
                self.bad = snapshot.set_aside().iter().map(|aside| aside.id.clone()).collect();
                snapshot.members().iter().for_each(|member| self.join(member));
            }
            PresenceEvent::Joined(member) => self.join(&member),
            PresenceEvent::Updated { before, now } => {
                assert_eq!(before.token, now.token);
                let told = self.members.insert(now.id.clone(), (now.record.address.clone(), now.token));
                assert_eq!(told, Some((before.record.address.clone(), before.token)));
            }
            PresenceEvent::Left { member, .. } => {
                let told = self.members.remove(&member.id);
                assert_eq!(told, Some((member.record.address.clone(), member.token)));
            }
            PresenceEvent::Unreadable(aside) => drop(self.bad.insert(aside.id)),
            PresenceEvent::Cleared { id, .. } => assert!(self.bad.remove(&id)),
            PresenceEvent::Stale { .. } => assert!(!std::mem::replace(&mut self.is_stale, true)),
            PresenceEvent::Fresh { .. } => assert!(std::mem::replace(&mut self.is_stale, false)),
        }
        assert!(self.has_picture, "the whole picture is told first");
    }

    fn join(&mut self, member: &Presence<NodeId, MemberRecord>) {
        let before = self.members.insert(member.id.clone(), (member.record.address.clone(), member.token));
        assert_eq!(before, None, "one who is there does not join");
        let last = self.tokens.insert(member.id.clone(), member.token);
        assert!(last.is_none_or(|last| last <= member.token), "incarnations only grow");
    }
}

fn pass_on(items: &mut Vec<FeedItem>, roster: &mut PresenceSet<NodePresence>, listener: &mut Listener) {
    for item in items.drain(..) {
        let is_whole = matches!(item, FeedItem::Synced(_));
        let mut news = Vec::new();
        roster.handle_item(item, Moment::ORIGIN, &mut news);
        let may_speak = is_whole || matches!(news[..], [] | [PresenceEvent::Stale { .. }]);
        assert!(may_speak, "half a listing was told: {news:?}");
        news.into_iter().for_each(|news| listener.hear(news));
    }
}

/// Plays a history; at each whole picture, and at the end, the listener has what the store had at that revision.
fn play(steps: Vec<ModelStep>) {
    let mut model = Model { revision: 1, ..Model::default() };
    let (mut picture, mut roster) = (SnapshotDiff::new(), PresenceSet::new(NodePresence(layout())));
    let (mut listener, mut items) = (Listener::default(), Vec::new());
    for step in steps.into_iter().chain([ModelStep::List, ModelStep::Read]) {
        match step {
            ModelStep::Put(node, is_good) => model.put(node, is_good),
            ModelStep::Delete(node) => model.delete(node),
            ModelStep::Read if picture.whole_at().is_some() => {
                for change in model.history.drain(..) {
                    picture.handle_batch(change.revision(), vec![change], &mut items);
                }
            }
            ModelStep::Read => {}
            ModelStep::Break(pages) => {
                picture.handle_break(&mut items);
                let pairs: Vec<KeyValue> = model.pairs.values().cloned().collect();
                for page in pairs.chunks(2).take(pages) {
                    picture.handle_page(Revision(model.revision), page.to_vec(), &mut items);
                }
                picture.handle_break(&mut items);
            }
            ModelStep::List => {
                picture.handle_break(&mut items);
                let pairs = model.pairs.values().cloned().collect();
                picture.handle_page(Revision(model.revision), pairs, &mut items);
                picture.handle_listed(&mut items);
                model.history.clear();
            }
        }
        pass_on(&mut items, &mut roster, &mut listener);
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
    let shown = roster.snapshot().unwrap();
    assert_eq!(shown.revision, Revision(model.revision));
    let shown: BTreeMap<_, _> = shown
        .members()
        .iter()
        .map(|member| (member.id.clone(), (member.record.address.clone(), member.token)))
        .collect();
    assert_eq!(shown, there, "who only heard the news knows what the roster shows");
}

proptest! {
    #[test]
    fn whatever_happened_every_view_ends_up_with_what_is_there(steps in steps()) {
        play(steps);
    }
}
