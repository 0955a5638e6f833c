//! How a node ends: drained by an order, or shut down with its process.
//!
//! Stop, join, then release. What does not stop is named and not released: its claim lapses with its lease, and nobody else begins before that.

use crate::record::MemberState;
use crate::time::Moment;

use super::event::{Notice, ReleaseReason};
use super::input::Now;
use super::output::Action;
use super::timers::Timer;
use super::{Node, Standing};

impl Node {
    /// Everything is given away, and then the node leaves.
    pub(super) fn begin_drain(&mut self, now: Now) {
        self.standing = Standing::Draining;
        self.actions.push_back(Action::Announce(MemberState::Draining));
        self.notices.push_back(Notice::Draining { left: self.held.len() });
        self.weigh_in(now);
        self.release_all(ReleaseReason::Drain, now);
    }

    /// The process wants to end. Asked again, the earlier deadline counts.
    pub(super) fn begin_shutdown(&mut self, deadline: Moment, now: Now) {
        let deadline = match self.standing {
            Standing::Working | Standing::Draining => {
                self.actions.push_back(Action::Announce(MemberState::Draining));
                self.notices.push_back(Notice::ShuttingDown { left: self.held.len() });
                deadline
            }
            Standing::Ending { deadline: before } => before.min(deadline),
            Standing::Leaving | Standing::Finished => return,
        };
        self.standing = Standing::Ending { deadline };
        self.timers.set(Timer::Deadline, deadline);
        self.weigh_in(now);
        self.release_all(ReleaseReason::Shutdown, now);
    }

    /// Goes on with ending, if everything is gone that has to be.
    pub(super) fn check_ending(&mut self, now: Now) {
        let is_empty = self.held.is_empty() && !self.is_claiming();
        match self.standing {
            Standing::Working | Standing::Leaving | Standing::Finished => {}
            Standing::Draining => {
                if self.held.len() < self.drain_told {
                    self.drain_told = self.held.len();
                    self.notices.push_back(Notice::Draining { left: self.held.len() });
                }
                if is_empty {
                    self.finish_drain(now);
                }
            }
            Standing::Ending { deadline } => {
                if is_empty || deadline <= now.at {
                    self.leave();
                }
            }
        }
    }

    pub(super) fn leave(&mut self) {
        self.standing = Standing::Leaving;
        self.timers.clear(&Timer::Deadline);
        self.actions.push_back(Action::Leave);
    }

    pub(super) fn handle_left(&mut self) {
        if self.standing == Standing::Leaving {
            self.standing = Standing::Finished;
            self.actions.push_back(Action::Finish { running: self.running() });
        }
    }
}
