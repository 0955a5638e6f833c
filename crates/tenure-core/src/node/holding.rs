//! How a task becomes ours, and how it is ours no more.

use crate::name::TaskId;
use crate::record::Record;
use crate::revision::{Revision, Token};
use crate::task::{StateKind, StateRecord};

use super::action::Action;
use super::event::{Now, Won};
use super::held::{Handler, Held, Write};
use super::mailbox::Mail;
use super::notice::{LossReason, Notice, ReleaseReason};
use super::settings::SET_ASIDE_FOR;
use super::timers::Timer;
use super::{Node, Standing};

/// How a task left us.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Departure {
    Released,
    Ended(StateKind),
    Lost,
}

impl Node {
    /// A claim was won.
    pub(super) fn hold(&mut self, task: &TaskId, created: Revision, nonce: String, won: Won, now: Now) {
        let over = self.is_past(task, created, &won);
        let (record, unreadable) = match won.state.as_ref().map(|pair| StateRecord::decode(&pair.value)) {
            None => (StateRecord::default(), None),
            Some(Ok(record)) => (record, None),
            Some(Err(bad)) => {
                (StateRecord::default(), Some(format!("its state cannot be read: {}", bad.reason())))
            }
        };
        let posted = self.board.get(task).and_then(|card| card.record.clone().ok()).unwrap_or_default();
        let command = won.command.as_ref().map(Mail::read);
        let mut held = Held {
            nonce,
            token: won.token,
            lease: won.lease,
            created,
            posted,
            props: won.props,
            record,
            state_seen: won.state.map_or(Revision::ZERO, |pair| pair.modified),
            command,
            command_known: won.revision,
            handler: Handler::None,
            outcome: None,
            release: None,
            is_stop_ordered: false,
            over,
            checkpoint: None,
            asks: Vec::new(),
            write: Write::Idle,
            backoff: Held::new_backoff(),
            sleeps_until: None,
        };
        if let Some(mail) = self.mailbox.get(task) {
            held.see_command(Some(mail.clone()), mail.modified);
        }
        self.notices.push_back(Notice::Claimed { task: task.clone(), token: held.token });
        if let Some(why) = unreadable.or_else(|| unfit(&held)) {
            let until = (!held.record.state.is_terminal()).then(|| now.at + SET_ASIDE_FOR);
            self.offers.set_aside(task, until);
            self.notices.push_back(Notice::SetAside { task: task.clone(), why });
            held.release = Some(ReleaseReason::SetAside);
        } else {
            held.release = match self.standing {
                Standing::Working => None,
                Standing::Draining => Some(ReleaseReason::Drain),
                Standing::Ending { .. } | Standing::Leaving | Standing::Finished => {
                    Some(ReleaseReason::Shutdown)
                }
            };
        }
        if held.release.is_some() || held.over.is_some() {
            self.scales.part(task);
        }
        if let Some(why) = held.over {
            self.notices.push_back(Notice::Lost { task: task.clone(), token: held.token, why });
        }
        self.by_lease.entry(held.lease).or_default().insert(task.clone());
        self.held.insert(task.clone(), Box::new(held));
        self.advance(task, now);
    }

    /// A claim may not be relied upon any more: stop, and write nothing.
    pub(super) fn lose(&mut self, task: &TaskId, why: LossReason, now: Now) {
        let Some(held) = self.held.get_mut(task) else { return };
        if held.over.is_none() {
            held.over = Some(why);
            // Somebody else has it because we gave it away; only the answer is missing.
            if held.is_giving_up() && why == LossReason::Owner {
                self.scales.cooling.note(task, self.settings.cool_down, self.company.peers(), now.at);
            }
            held.write = Write::Idle;
            let (token, asks) = (held.token, std::mem::take(&mut held.asks));
            if !asks.is_empty() {
                let result = Err("the claim is over".to_owned());
                self.actions.push_back(Action::CheckpointAnswered {
                    task: task.clone(),
                    token,
                    asks,
                    result,
                });
            }
            self.notices.push_back(Notice::Lost { task: task.clone(), token, why });
            self.timers.clear(&Timer::Retry(task.clone()));
            self.scales.part(task);
        }
        self.advance(task, now);
    }

    /// The board shows that a claim is over. One that we are just giving up is what we wanted: its answer will say so.
    pub(super) fn claim_vanished(&mut self, task: &TaskId, token: Token, now: Now) {
        let held = self.held.get(task).filter(|held| held.token == token);
        if held.is_some_and(|held| !held.is_giving_up()) {
            self.lose(task, LossReason::Owner, now);
        }
    }

    /// The board shows that a task was deleted. One that we are just ending is what we wanted.
    pub(super) fn task_deleted(&mut self, task: &TaskId, created: Revision, now: Now) {
        let held = self.held.get(task).filter(|held| held.created == created);
        if held.is_some_and(|held| !held.is_giving_up()) {
            self.lose(task, LossReason::Deleted, now);
        }
    }

    /// A task is not ours any more, and nothing of it runs.
    pub(super) fn let_go(&mut self, task: &TaskId, held: &Held, how: Departure, now: Now) {
        if let Some(until) = held.sleeps_until {
            self.sleepers.remove(&(until, task.clone()));
        }
        if let Some(tasks) = self.by_lease.get_mut(&held.lease) {
            tasks.remove(task);
            if tasks.is_empty() {
                self.by_lease.remove(&held.lease);
            }
        }
        self.scales.part(task);
        self.scales.see(task);
        self.timers.clear(&Timer::Stop(task.clone()));
        self.timers.clear(&Timer::Retry(task.clone()));
        self.actions.push_back(Action::LetGo { nonce: held.nonce.clone() });
        let is_shown = || self.board.owner_of(task).is_some_and(|owner| owner.token == held.token);
        let is_left_behind = match held.over {
            // Whoever deletes a task deletes its owner too; if somebody has not, nobody could ever claim the next life of it.
            Some(LossReason::Deleted) => is_shown(),
            // The lease of the claim may be another than that of the node's key, and renewed for as long as the process lives.
            Some(LossReason::Place) => true,
            Some(LossReason::Lease | LossReason::Owner) | None => false,
        };
        if is_left_behind {
            self.give_back(task.clone(), held.token);
        }
        self.order_departed(task, how, now);
        self.reconsider(task.clone(), now.at, now.at);
    }
}

/// Why a task cannot be run although its records can be read.
fn unfit(held: &Held) -> Option<String> {
    if held.record.state.is_terminal() {
        return Some(format!("it has ended before: it is {}", held.record.state));
    }
    let props = held.props.as_ref()?;
    let is_json = serde_json::from_slice::<serde::de::IgnoredAny>(props).is_ok();
    (!is_json).then(|| "its props are not JSON".to_owned())
}
