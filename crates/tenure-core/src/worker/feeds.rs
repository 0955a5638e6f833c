//! Passes items of the feeds to the parts of the machine that they concern.

use bytes::Bytes;

use crate::id::CommandId;
use crate::layout::Key;
use crate::snapshot::FeedItem;

use super::WorkerMachine;
use super::event::WorkerEvent;
use super::input::{FeedId, InputTime};

impl WorkerMachine {
    pub(super) fn handle_feed(&mut self, feed: FeedId, item: FeedItem, now: InputTime) {
        match feed {
            FeedId::Tasks => {
                let mut changes = Vec::new();
                self.board.handle_item(item, &mut changes);
                self.claim_queue.peak.see(self.board.unowned().tasks, now.at);
                let shifted = self.board.take_shifted();
                let has_shifted = !shifted.is_empty();
                for node in shifted {
                    self.peers.set_load(&node, self.board.load_of(&node), now.at);
                }
                self.stats.changes += changes.len() as u64;
                for change in changes {
                    self.handle_board(change, now);
                }
                if has_shifted {
                    self.recheck_rank_delays(now);
                }
            }
            FeedId::Nodes => {
                self.sweep.see(&item);
                match &item {
                    FeedItem::Put(pair) => {
                        if let Some(id) = self.node_command_id(&pair.key) {
                            return self.node_commands.see_put(id, pair);
                        }
                        self.report_foreign_command(&pair.key);
                    }
                    FeedItem::Delete { key, .. } => {
                        if let Some(id) = self.node_command_id(key) {
                            return self.node_commands.see_delete(id);
                        }
                        self.node_commands.postponed.remove(key);
                    }
                    FeedItem::Synced(_) => self.node_commands.see_synced(),
                    FeedItem::SnapshotBegin => {}
                }
                if self.peers.handle_node(item, now.at) {
                    self.peers_changed(now);
                }
            }
            FeedId::Frozen => {
                let was_frozen = self.peers.is_self_frozen();
                if self.peers.handle_frozen(item, now.at) {
                    self.peers_changed(now);
                }
                self.report_frozen(was_frozen);
            }
            FeedId::Commands => {
                self.sweep.see(&item);
                for change in self.task_commands.handle_item(item, now.wall) {
                    self.handle_task_command(change, now);
                }
            }
        }
    }

    /// Reports a foreign key among the commands to this worker, once.
    fn report_foreign_command(&mut self, key: &Bytes) {
        let is_foreign =
            self.layout.parse(key).is_none() && self.layout.node_commands(&self.config.node).contains(key);
        if is_foreign && self.node_commands.postponed.insert(key.clone()) {
            let key = key.escape_ascii().to_string();
            self.events.push_back(WorkerEvent::CommandSetAside { key });
        }
    }

    /// The id of the command to this worker that a key holds.
    fn node_command_id(&self, key: &[u8]) -> Option<CommandId> {
        match self.layout.parse(key)? {
            Key::NodeCommand(node, id) if node == self.config.node => Some(id),
            _ => None,
        }
    }
}
