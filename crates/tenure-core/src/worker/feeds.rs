//! What the feeds say, and whom it concerns.

use bytes::Bytes;

use crate::id::CommandId;
use crate::layout::Key;
use crate::snapshot::FeedItem;

use super::WorkerMachine;
use super::event::WorkerEvent;
use super::input::{FeedId, InputTime};

impl WorkerMachine {
    pub(super) fn handle_seen(&mut self, feed: FeedId, item: FeedItem, now: InputTime) {
        match feed {
            FeedId::Tasks => {
                let mut changes = Vec::new();
                self.board.handle_item(item, &mut changes);
                self.offers.pile.see(self.board.unowned().tasks, now.at);
                let shifted = self.board.take_shifted();
                let has_shifted = !shifted.is_empty();
                for node in shifted {
                    self.company.set_load(&node, self.board.load_of(&node), now.at);
                }
                self.tally.changes += changes.len() as u64;
                for change in changes {
                    self.handle_board(change, now);
                }
                if has_shifted {
                    self.look_behind(now);
                }
            }
            FeedId::Nodes => {
                self.sweep.see(&item);
                match &item {
                    FeedItem::Put(pair) => {
                        if let Some(id) = self.order_id(&pair.key) {
                            return self.orders.see_put(id, pair);
                        }
                        self.set_aside_foreign(&pair.key);
                    }
                    FeedItem::Delete { key, .. } => {
                        if let Some(id) = self.order_id(key) {
                            return self.orders.see_delete(id);
                        }
                        self.orders.aside.remove(key);
                    }
                    FeedItem::Synced(_) => self.orders.see_whole(),
                    FeedItem::SnapshotBegin => {}
                }
                if self.company.handle_node(item, now.at) {
                    self.company_changed(now);
                }
            }
            FeedId::Frozen => {
                let was_frozen = self.company.am_frozen();
                if self.company.handle_frozen(item, now.at) {
                    self.company_changed(now);
                }
                self.tell_frozen(was_frozen);
            }
            FeedId::Commands => {
                self.sweep.see(&item);
                for change in self.mailbox.handle_item(item, now.wall) {
                    self.handle_mail(change, now);
                }
            }
        }
    }

    /// Reports a key among the commands to this node that is none of the layout's, once.
    fn set_aside_foreign(&mut self, key: &Bytes) {
        let is_foreign =
            self.layout.parse(key).is_none() && self.layout.node_commands(&self.settings.node).contains(key);
        if is_foreign && self.orders.aside.insert(key.clone()) {
            let key = key.escape_ascii().to_string();
            self.notices.push_back(WorkerEvent::CommandSetAside { key });
        }
    }

    /// Which command to this node lies under a key.
    fn order_id(&self, key: &[u8]) -> Option<CommandId> {
        match self.layout.parse(key)? {
            Key::NodeCommand(node, id) if node == self.settings.node => Some(id),
            _ => None,
        }
    }
}
