//! Tasks that are ours: begun, stopped, lost, let go.
//!
//! Whatever happens to a task only notes a fact about it and then calls [`Node::advance`], which looks at all of them and does the next thing.
//! So nothing depends on the order in which facts arrive.

use crate::name::TaskId;
use crate::record::Record;
use crate::revision::{Revision, Token};
use crate::task::{Checkpoint, State, StateKind, StateRecord};
use crate::time::Moment;

use super::action::{Action, Start, StopReason};
use super::draft::Writer;
use super::event::{Now, Outcome, Won};
use super::held::{Handler, Held, Pressure, Write};
use super::mailbox::{Mail, MailChange};
use super::notice::{LossReason, Notice, ReleaseReason};
use super::settings::{ABORT_WITHIN, LOST_GRACE, SET_ASIDE_FOR};
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
    pub(super) fn hold(&mut self, task: TaskId, created: Revision, nonce: String, won: Won, now: Now) {
        let over = self.is_past(&task, created, &won);
        let (record, unreadable) = match won.state.as_ref().map(|pair| StateRecord::decode(&pair.value)) {
            None => (StateRecord::default(), None),
            Some(Ok(record)) => (record, None),
            Some(Err(bad)) => {
                (StateRecord::default(), Some(format!("its state cannot be read: {}", bad.reason())))
            }
        };
        let posted = self.board.get(&task).and_then(|card| card.record.clone().ok()).unwrap_or_default();
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
        if let Some(mail) = self.mailbox.get(&task) {
            held.see_command(Some(mail.clone()), mail.modified);
        }
        self.notices.push_back(Notice::Claimed { task: task.clone(), token: held.token });
        if let Some(why) = unreadable.or_else(|| unfit(&held)) {
            let until = (!held.record.state.is_terminal()).then(|| now.at + SET_ASIDE_FOR);
            self.offers.set_aside(&task, until);
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
            self.scales.part(&task);
        }
        if let Some(why) = held.over {
            self.notices.push_back(Notice::Lost { task: task.clone(), token: held.token, why });
        }
        self.by_lease.entry(held.lease).or_default().insert(task.clone());
        self.held.insert(task.clone(), held);
        self.advance(&task, now);
    }

    /// Does the next thing about a task, from all that is known about it.
    pub(super) fn advance(&mut self, task: &TaskId, now: Now) {
        let Some(mut held) = self.held.remove(task) else { return };
        if let Some(until) = held.sleeps_until.take() {
            self.sleepers.remove(&(until, task.clone()));
        }
        if held.over.is_some() && held.handler == Handler::None {
            return self.let_go(task, &held, Departure::Lost, now);
        }
        self.press(task, &mut held, now);
        if held.over.is_none() && matches!(held.write, Write::Idle) {
            let epoch = self.next_epoch();
            let writer = Writer { node: &self.settings.node, policy: self.policy.as_ref(), now };
            match held.draft(task, epoch, &writer) {
                Some(draft) => {
                    self.actions.push_back(Action::Save(Box::new(draft.save.clone())));
                    held.write = Write::Asked(Box::new(draft));
                }
                None => {
                    self.answer_asks(task, &mut held);
                    if held.handler == Handler::None {
                        self.rest(task, &mut held);
                    }
                }
            }
        }
        self.held.insert(task.clone(), held);
    }

    /// Nothing has to be written, so the progress that was to be kept is what is stored already.
    fn answer_asks(&mut self, task: &TaskId, held: &mut Held) {
        held.checkpoint = None;
        let asks = std::mem::take(&mut held.asks);
        if !asks.is_empty() {
            let (task, token) = (task.clone(), held.token);
            self.actions.push_back(Action::CheckpointAnswered { task, token, asks, result: Ok(()) });
        }
    }

    /// Nothing has to be written, and no handler runs: it begins, or the task is let be.
    fn rest(&mut self, task: &TaskId, held: &mut Held) {
        match held.record.state {
            State::Runnable => {
                held.handler = Handler::Running;
                let (token, attempt) = (held.token, held.record.attempt());
                self.actions.push_back(Action::Start(Box::new(Start {
                    task: task.clone(),
                    token,
                    lease: held.lease,
                    record: held.posted.clone(),
                    props: held.props.clone(),
                    state: held.record.clone(),
                })));
                self.notices.push_back(Notice::Started { task: task.clone(), token, attempt });
            }
            State::Sleeping { until } => {
                held.sleeps_until = Some(until);
                self.sleepers.insert((until, task.clone()));
            }
            State::Paused => {}
            State::Fault => unreachable!("the policy has decided about a fault"),
            State::Completed | State::Failed | State::Killed => {
                unreachable!("what has ended is released")
            }
        }
    }

    /// Asks the handler to stop, if something wants it to; sooner, if that has become urgent.
    fn press(&mut self, task: &TaskId, held: &mut Held, now: Now) {
        let Some(why) = held.why_stop() else { return };
        let grace =
            if held.over.is_some() { LOST_GRACE.min(self.settings.grace) } else { self.settings.grace };
        let mut latest = now.at + grace;
        if let Standing::Ending { deadline } = self.standing {
            // So that an abort has the time to work.
            latest = latest.min((deadline - ABORT_WITHIN).max(now.at));
        }
        let token = held.token;
        match held.handler {
            Handler::None => {}
            Handler::Running => {
                held.handler = Handler::Stopping { why, until: latest, pressure: Pressure::Asked };
                self.timers.set(Timer::Stop(task.clone()), latest);
                self.actions.push_back(Action::Stop { task: task.clone(), token, why, until: latest });
            }
            Handler::Stopping { why: before, until, pressure: Pressure::Asked } => {
                let until = until.min(latest);
                // What was asked for a command alone is said again if it is more than that now.
                let is_news = why != before && before == StopReason::Command;
                let why = if is_news { why } else { before };
                held.handler = Handler::Stopping { why, until, pressure: Pressure::Asked };
                self.timers.set(Timer::Stop(task.clone()), until);
            }
            Handler::Stopping { pressure: Pressure::Aborted | Pressure::Stuck, .. } => {}
        }
    }

    /// A handler's grace is over, or its abort should have worked by now.
    pub(super) fn stop_due(&mut self, task: &TaskId, now: Now) {
        let Some(held) = self.held.get_mut(task) else { return };
        let Handler::Stopping { pressure, until, .. } = &mut held.handler else { return };
        let token = held.token;
        match pressure {
            Pressure::Asked => {
                *pressure = Pressure::Aborted;
                *until = now.at + ABORT_WITHIN;
                self.timers.set(Timer::Stop(task.clone()), now.at + ABORT_WITHIN);
                self.actions.push_back(Action::Abort { task: task.clone(), token });
            }
            Pressure::Aborted => {
                *pressure = Pressure::Stuck;
                self.notices.push_back(Notice::Stuck { task: task.clone(), token });
                self.order_stuck(task, now);
            }
            Pressure::Stuck => {}
        }
    }

    pub(super) fn handle_ended(&mut self, task: &TaskId, token: Token, outcome: Outcome, now: Now) {
        let Some(held) = self.held.get_mut(task).filter(|held| held.token == token) else { return };
        if held.handler == Handler::None {
            return;
        }
        held.end_handler(outcome);
        self.timers.clear(&Timer::Stop(task.clone()));
        self.order_stopped(task, now);
        self.advance(task, now);
    }

    pub(super) fn handle_checkpoint(
        &mut self,
        task: TaskId,
        token: Token,
        ask: u64,
        blob: Checkpoint,
        now: Now,
    ) {
        match self.held.get_mut(&task) {
            Some(held) if held.token == token && held.over.is_none() => {
                held.checkpoint = Some(blob);
                held.asks.push(ask);
                self.advance(&task, now);
            }
            Some(_) | None => {
                let result = Err("the claim is over".to_owned());
                self.actions.push_back(Action::CheckpointAnswered { task, token, asks: vec![ask], result });
            }
        }
    }

    pub(super) fn handle_mail(&mut self, change: MailChange, now: Now) {
        let (task, mail, at) = match change {
            MailChange::Came(task, mail) => {
                let at = mail.modified;
                (task, Some(mail), at)
            }
            MailChange::Went(task, at) => (task, None, at),
        };
        if let Some(held) = self.held.get_mut(&task)
            && held.see_command(mail, at)
        {
            self.advance(&task, now);
        }
    }

    /// A task is to be nobody's; says whether it was ours.
    pub(super) fn want_release(&mut self, task: &TaskId, why: ReleaseReason, now: Now) -> bool {
        let Some(held) = self.held.get_mut(task) else { return false };
        held.release.get_or_insert(why);
        self.scales.part(task);
        self.advance(task, now);
        true
    }

    /// A claim may not be relied upon any more: stop, and write nothing.
    pub(super) fn lose(&mut self, task: &TaskId, why: LossReason, now: Now) {
        let Some(held) = self.held.get_mut(task) else { return };
        if held.over.is_none() {
            held.over = Some(why);
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
        // Whoever deletes a task deletes its owner too; if somebody has not, nobody could ever claim the next life of it.
        if held.over == Some(LossReason::Deleted)
            && self.board.owner_of(task).is_some_and(|owner| owner.token == held.token)
        {
            self.give_back(task.clone(), held.token);
        }
        self.order_departed(task, how, now);
        self.reconsider(task.clone(), now.at, now.at);
    }

    /// Those whose time has come wake.
    pub(super) fn wake_sleepers(&mut self, now: Now) {
        while let Some((until, _)) = self.sleepers.first()
            && *until <= now.wall
            && let Some((_, task)) = self.sleepers.pop_first()
        {
            if let Some(held) = self.held.get_mut(&task) {
                held.sleeps_until = None;
            }
            self.advance(&task, now);
        }
    }

    /// Everything is to be nobody's.
    pub(super) fn release_all(&mut self, why: ReleaseReason, now: Now) {
        let tasks: Vec<TaskId> = self.held.keys().cloned().collect();
        for task in tasks {
            self.want_release(&task, why, now);
        }
    }

    /// Handlers that still run.
    pub(super) fn running(&self) -> Vec<TaskId> {
        let running = self.held.iter().filter(|(_, held)| held.handler != Handler::None);
        running.map(|(task, _)| task.clone()).collect()
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

/// The moment that is this far away on the wall clock, as long as nobody sets it.
pub(super) fn moment_of(until: crate::record::WallTime, now: Now) -> Moment {
    now.at + std::time::Duration::from_millis(until.0.saturating_sub(now.wall.0))
}
