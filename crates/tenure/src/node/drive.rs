//! The task behind a node: moves news and answers into the machine, and carries out what it wants.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tenure_core::fence::Fence;
use tenure_core::layout::{Key, Layout};
use tenure_core::name::{NodeId, TaskId};
use tenure_core::node::request::Habit;
use tenure_core::node::{Action, Event, Feed as Followed, Node as Machine, Notice, Now, Tally};
use tenure_core::record::{NodeLoad, NodeRecord, NodeState};
use tenure_core::revision::Token;
use tenure_core::time::Moment;
use tokio::sync::{broadcast, mpsc, watch};
use tracing::{debug, info, warn};

use super::claims::{self, Claimed, Loans};
use super::feeds::{Feeds, News};
use super::leases::EndedLeases;
use super::measure::Measure;
use super::options::Gauge;
use super::results::Results;
use super::run::Handlers;
use super::words::{NodeEnd, Tenancy};
use super::writes::{self, Outbox, Write};
use crate::clock::{Clock, wall_time};
use crate::dice;
use crate::leftover::Leftover;
use crate::membership::{Membership, Standing};
use crate::news;
use crate::session::Session;
use crate::store::Store;

/// Requests with writes under way together: one travels while the other is worked on.
const WRITES_IN_FLIGHT: usize = 2;

/// What a user asks of the task.
pub(super) enum Wish {
    /// End by then.
    Shutdown(Moment),
}

/// Everything the task holds.
pub(super) struct Driver {
    pub(super) machine: Machine,
    pub(super) store: Store,
    pub(super) session: Session,
    pub(super) layout: Layout,
    pub(super) node: NodeId,
    pub(super) handlers: Handlers,
    pub(super) gauge: Option<Gauge>,
    pub(super) grace: Duration,
    pub(super) wishes: mpsc::UnboundedReceiver<Wish>,
    pub(super) notices: broadcast::Sender<Notice>,
    pub(super) tenancy: watch::Sender<Tenancy>,
    pub(super) tally: news::Sender<Tally>,
    pub(super) measure: Measure,
}

/// Something that was begun and will end with an event.
type Doing = Pin<Box<dyn Future<Output = Done> + Send>>;

enum Done {
    Claimed(Claimed),
    Written(Vec<Event>),
    Left,
}

/// What woke the task.
enum Woken {
    Told(Event),
    Done(Done),
    Standing(Standing),
    Wish(Wish),
    Gauge,
    LeaseEnded,
    Seen(Followed, News),
}

/// What is under way.
struct UnderWay {
    doing: FuturesUnordered<Doing>,
    outbox: Outbox,
    writes: usize,
    loans: Loans,
    habit: Arc<Mutex<Habit>>,
    results: Arc<Results>,
    leases: EndedLeases,
    place: mpsc::UnboundedSender<PlaceWish>,
    /// Whether the node has its place, as the machine was told last.
    incarnation: Option<Token>,
    end: Option<Vec<TaskId>>,
}

impl Driver {
    /// Runs until the machine has nothing more to ask; says why it ended.
    pub(super) async fn drive(mut self, membership: Membership) -> NodeEnd {
        let clock = self.session.clock().clone();
        let (place, wishes) = mpsc::unbounded_channel();
        let mut standing = membership.changes();
        let first = membership.standing();
        let mut under_way = UnderWay {
            doing: FuturesUnordered::new(),
            outbox: Outbox::default(),
            writes: 0,
            loans: Loans::default(),
            habit: Arc::default(),
            results: Arc::new(Results::new(clock.clone())),
            leases: EndedLeases::new(self.store.clone()),
            place,
            incarnation: None,
            end: None,
        };
        let mut feeds = match Feeds::open(&self.store, &self.layout) {
            Ok(feeds) => feeds,
            Err(error) => return NodeEnd::Store(error),
        };
        let keeping = keep_place(membership, wishes);
        under_way.doing.push(Box::pin(async move {
            keeping.await;
            Done::Left
        }));
        let mut why = None;
        self.see_standing(&first, &mut under_way, &clock);
        let mut measure_at = self.gauge.as_ref().map(|_| clock.now());
        loop {
            self.act(&mut under_way);
            if let Some(running) = under_way.end.take() {
                self.handlers.abandon();
                // What is under way is given up; it may be carried out all the same.
                under_way.doing.clear();
                for leftover in under_way.results.unused().await {
                    under_way.leases.push(leftover);
                }
                under_way.leases.finish().await;
                return why.unwrap_or(NodeEnd::Left { running });
            }
            let wake = self.machine.next_wake(now(&clock));
            let woken = tokio::select! {
                biased;
                lease = under_way.loans.next_end() => Woken::Told(Event::LeaseOver { lease }),
                Ok(()) = standing.changed() => Woken::Standing(standing.borrow_and_update().clone()),
                Some(done) = under_way.doing.next(), if !under_way.doing.is_empty() => Woken::Done(done),
                Some(wish) = self.wishes.recv() => Woken::Wish(wish),
                event = self.handlers.next() => Woken::Told(event),
                () = sleep(&clock, wake) => Woken::Told(Event::Time),
                () = sleep(&clock, measure_at) => Woken::Gauge,
                () = under_way.leases.next(), if !under_way.leases.is_empty() => Woken::LeaseEnded,
                (feed, news) = feeds.next() => Woken::Seen(feed, news),
            };
            match woken {
                Woken::Seen(feed, news) => {
                    let now = now(&clock);
                    for item in news.items {
                        self.machine.handle(Event::Seen(feed, item), now);
                    }
                    if let Some(error) = news.end {
                        warn!(node = %self.node, %error, "the store cannot be followed any more: the node ends");
                        feeds.close();
                        if why.is_none() {
                            why = Some(NodeEnd::Store(error));
                            self.handle(Event::SessionLost, &clock);
                            self.handle(Event::Shutdown { deadline: clock.now() + self.grace }, &clock);
                        }
                    }
                }
                Woken::Told(event) => self.handle(event, &clock),
                Woken::Done(done) => self.finish(done, &mut under_way, &clock),
                Woken::Standing(now) => {
                    if matches!(now, Standing::Displaced(_)) && why.is_none() {
                        warn!(node = %self.node, "somebody else has this node's id: it ends");
                        why = Some(NodeEnd::Displaced);
                        self.see_standing(&now, &mut under_way, &clock);
                        self.handle(Event::Shutdown { deadline: clock.now() + self.grace }, &clock);
                    } else {
                        self.see_standing(&now, &mut under_way, &clock);
                    }
                }
                Woken::Wish(Wish::Shutdown(deadline)) => self.handle(Event::Shutdown { deadline }, &clock),
                // Nobody has to know.
                Woken::LeaseEnded => {}
                Woken::Gauge => {
                    if let Some(gauge) = &self.gauge {
                        let event = Event::Measured(gauge.read());
                        measure_at = Some(clock.now() + gauge.every);
                        self.handle(event, &clock);
                    }
                }
            }
        }
    }

    fn handle(&mut self, event: Event, clock: &Arc<dyn Clock>) {
        self.measure.told(&event);
        self.machine.handle(event, now(clock));
    }

    /// Tells the machine whether the node has its place.
    fn see_standing(&mut self, standing: &Standing, under_way: &mut UnderWay, clock: &Arc<dyn Clock>) {
        let token = match standing {
            Standing::Member(token) => Some(*token),
            Standing::Lost | Standing::Displaced(_) | Standing::Left => None,
        };
        if under_way.incarnation == token {
            return;
        }
        if under_way.incarnation.take().is_some() {
            self.handle(Event::SessionLost, clock);
        }
        if let Some(incarnation) = token {
            under_way.incarnation = token;
            self.handle(Event::Joined { incarnation }, clock);
        }
    }

    fn finish(&mut self, done: Done, under_way: &mut UnderWay, clock: &Arc<dyn Clock>) {
        match done {
            Done::Claimed(mut claimed) => {
                under_way.loans.end(&mut claimed);
                let Claimed { epoch, answers, .. } = claimed;
                self.handle(Event::ClaimsAnswered { epoch, answers }, clock);
            }
            Done::Written(events) => {
                under_way.writes -= 1;
                for event in events {
                    self.handle(event, clock);
                }
            }
            Done::Left => self.handle(Event::Left, clock),
        }
    }

    /// Carries out what the machine wants, and tells what it has to say.
    fn act(&mut self, under_way: &mut UnderWay) {
        while let Some(action) = self.machine.poll_action() {
            self.carry_out(action, under_way);
        }
        while under_way.writes < WRITES_IN_FLIGHT && !under_way.outbox.is_empty() {
            let writes = under_way.outbox.next_request();
            let (store, layout, node) = (self.store.clone(), self.layout.clone(), self.node.clone());
            let sending = writes::send(store, layout, node, under_way.results.clone(), writes);
            under_way.doing.push(Box::pin(async move { Done::Written(sending.await) }));
            under_way.writes += 1;
        }
        while let Some(notice) = self.machine.poll_notice() {
            log(&self.node, &notice);
            self.measure.noticed(&notice);
            // Nobody has to listen.
            let _ = self.notices.send(notice);
        }
        self.measure.owns(self.machine.owned());
        let tenancy = Tenancy {
            tasks: self.machine.owned(),
            peers: self.machine.peers(),
            is_member: under_way.incarnation.is_some(),
        };
        self.tenancy.send_if_modified(|shown| {
            let is_news = *shown != tenancy;
            *shown = tenancy;
            is_news
        });
        self.tally.send_replace(self.machine.tally());
    }

    fn carry_out(&mut self, action: Action, under_way: &mut UnderWay) {
        match action {
            Action::Claim { epoch, claims } => {
                self.measure.tried(claims.len());
                let claims = under_way.loans.begin(claims);
                let (store, session) = (self.store.clone(), self.session.clone());
                let habit = under_way.habit.clone();
                let asking = claims::ask(store, session, self.layout.clone(), epoch, claims, habit);
                under_way.doing.push(Box::pin(async move { Done::Claimed(asking.await) }));
            }
            Action::LetGo { nonce } => under_way.loans.let_go(&nonce),
            Action::GiveBack { task, token, claim } => {
                under_way.outbox.push(Write::GiveBack(task, token, claim));
            }
            Action::Start(start) => {
                let key = self.layout.encode(&Key::TaskOwner(start.task.clone()));
                let fence = Fence { key, token: start.token };
                // The machine lets a loan go only when its task has ended here.
                if let Some(loan) = under_way.loans.of(start.lease) {
                    self.handlers.start(*start, fence, loan);
                }
            }
            Action::Stop { task, token, why, until } => self.handlers.stop(task, token, why, until),
            Action::Abort { task, token } => self.handlers.abort(task, token),
            Action::AskCheckpoint { task, token } => self.handlers.ask_checkpoint(task, token),
            Action::CheckpointAnswered { asks, result, .. } => {
                self.handlers.answer_checkpoint(&asks, &result);
            }
            Action::Save(save) => under_way.outbox.push(Write::Save(save)),
            Action::Answer(answer) => under_way.outbox.push(Write::Answer(answer)),
            Action::Retain(ask) => under_way.outbox.push(Write::Retain(ask)),
            Action::EndLease { lease } => under_way.leases.push(Leftover::empty(lease)),
            // The place is kept until the machine is done with it, so somebody listens.
            Action::Announce(state) => drop(under_way.place.send(PlaceWish::Announce(state))),
            Action::Publish(load) => drop(under_way.place.send(PlaceWish::Publish(load))),
            Action::Leave => drop(under_way.place.send(PlaceWish::Leave)),
            Action::Finish { running } => under_way.end = Some(running),
        }
    }
}

/// What the machine wants of the node's own key.
enum PlaceWish {
    Announce(NodeState),
    Publish(NodeLoad),
    Leave,
}

/// Keeps the node's own key, as it is wished, until it is to go or nobody wishes anything any more.
async fn keep_place(membership: Membership, mut wishes: mpsc::UnboundedReceiver<PlaceWish>) {
    let mut next = wishes.recv().await;
    while let Some(wish) = next {
        next = match wish {
            PlaceWish::Announce(state) => {
                let change = |record: &mut NodeRecord| record.state = state;
                change_record(&membership, change, &mut wishes).await
            }
            PlaceWish::Publish(load) => {
                let change = |record: &mut NodeRecord| record.load = Some(load);
                change_record(&membership, change, &mut wishes).await
            }
            PlaceWish::Leave => {
                let node = membership.id().clone();
                if let Err(error) = membership.leave().await {
                    info!(%node, %error, "the node's key is left to its lease");
                }
                return;
            }
        };
    }
}

/// Changes the node's own record, and returns the next wish. A newer one does not wait for the reply: what was changed stays wanted.
async fn change_record(
    membership: &Membership,
    change: impl FnOnce(&mut NodeRecord),
    wishes: &mut mpsc::UnboundedReceiver<PlaceWish>,
) -> Option<PlaceWish> {
    tokio::select! {
        biased;
        changed = membership.update(change) => {
            if let Err(error) = changed {
                debug!(node = %membership.id(), %error, "node record not updated yet");
            }
            wishes.recv().await
        }
        newer = wishes.recv() => newer,
    }
}

/// Logs what happened. What was set aside needs an operator.
fn log(node: &NodeId, notice: &Notice) {
    match notice {
        Notice::SetAside { task, why } => info!(%node, %task, %why, "task set aside"),
        Notice::CommandSetAside { key } => info!(%node, %key, "node command set aside"),
        _ => debug!(%node, ?notice, "node"),
    }
}

fn now(clock: &Arc<dyn Clock>) -> Now {
    Now { at: clock.now(), wall: wall_time(), jitter: dice::throw() }
}

async fn sleep(clock: &Arc<dyn Clock>, wake: Option<Moment>) {
    match wake {
        Some(wake) => clock.sleep_until(wake).await,
        None => std::future::pending().await,
    }
}
