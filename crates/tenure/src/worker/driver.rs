//! The driver of a worker: feeds replies, feed items and handler events to the machine, and carries out its outputs.

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_core::fence::Fence;
use tenure_core::id::{NodeId, TaskId};
use tenure_core::layout::{Key, Layout};
use tenure_core::record::{MemberRecord, MemberState, NodeLoad};
use tenure_core::revision::Token;
use tenure_core::time::Moment;
use tenure_core::worker::request::{ClaimModeHistory, NodeWrite};
use tenure_core::worker::{
    FeedId, InputTime, WorkerEvent, WorkerInput, WorkerMachine, WorkerOutput, WorkerStats,
};
use tokio::sync::{broadcast, mpsc, watch};
use tracing::{debug, info, warn};

use super::builder::ResourceGauge;
use super::claims::{self, Claimed, Loans};
use super::feeds::{Feeds, News};
use super::handlers::Handlers;
use super::measure::Measure;
use super::status::{WorkerEnd, WorkerStatus};
use super::writes::{self, Outbox};
use crate::clock::{Clock, wall_time};
use crate::driver::requests::Inbox;
use crate::driver::{self, Drive, DriverEvent as Woken, NextStep};
use crate::hold::LossReason;
use crate::member::Membership;
use crate::ordered_watch;
use crate::rng;
use crate::session::RegistrationStatus as Standing;
use crate::session::Session;
use crate::store::{LeaseId, Store};

/// Requests with writes under way together: one travels while the other is worked on.
const WRITES_IN_FLIGHT: usize = 2;

/// What a user asks of the task.
pub(super) enum Wish {
    /// End by then.
    Shutdown(Moment),
}

/// Everything the task holds.
pub(super) struct Driver {
    pub(super) machine: WorkerMachine,
    pub(super) store: Store,
    pub(super) session: Session,
    pub(super) layout: Layout,
    pub(super) node: NodeId,
    pub(super) handlers: Handlers,
    pub(super) gauge: Option<ResourceGauge>,
    pub(super) grace: Duration,
    pub(super) wishes: mpsc::UnboundedReceiver<Wish>,
    pub(super) events: broadcast::Sender<WorkerEvent>,
    pub(super) status: watch::Sender<WorkerStatus>,
    pub(super) stats: ordered_watch::OrderedSender<WorkerStats>,
    pub(super) measure: Measure,
}

/// The reply to a request.
enum Done {
    Claimed(Claimed),
    Written(Vec<WorkerInput>),
    Left,
}

/// What happens outside.
enum Input {
    LeaseOver(LeaseId, LossReason),
    Standing(Standing),
    Wish(Wish),
    Handler(WorkerInput),
    Seen(FeedId, News),
}

/// What is in flight.
struct UnderWay {
    inbox: Arc<Inbox<Done>>,
    outbox: Outbox,
    writes: usize,
    loans: Loans,
    habit: Arc<Mutex<ClaimModeHistory>>,
    place: mpsc::UnboundedSender<PlaceWish>,
    /// Whether the node has its place, as the machine was told last.
    incarnation: Option<Token>,
    end: Option<Vec<TaskId>>,
}

/// The driver's task.
struct NodeTask {
    driver: Driver,
    under_way: UnderWay,
    feeds: Feeds,
    standing: watch::Receiver<Standing>,
    clock: Arc<dyn Clock>,
    measure_at: Option<Moment>,
    /// Why it ends, if the machine did not decide that.
    why: Option<WorkerEnd>,
    end: Option<WorkerEnd>,
}

impl Driver {
    /// Runs until the machine has nothing more to do; returns why it ended.
    pub(super) async fn drive(self, membership: Membership) -> WorkerEnd {
        let clock = self.session.clock().clone();
        let (place, wishes) = mpsc::unbounded_channel();
        let standing = membership.status();
        let first = membership.current_status();
        let feeds = match Feeds::open(&self.store, &self.layout) {
            Ok(feeds) => feeds,
            Err(error) => return WorkerEnd::Store(error),
        };
        let inbox = Arc::new(Inbox::default());
        let under_way = UnderWay {
            inbox: inbox.clone(),
            outbox: Outbox::default(),
            writes: 0,
            loans: Loans::default(),
            habit: Arc::default(),
            place,
            incarnation: None,
            end: None,
        };
        let keeping = keep_place(membership, wishes);
        inbox.send(async move {
            keeping.await;
            Done::Left
        });
        let measure_at = self.gauge.as_ref().map(|_| clock.now());
        let mut task = NodeTask {
            driver: self,
            under_way,
            feeds,
            standing,
            clock: clock.clone(),
            measure_at,
            why: None,
            end: None,
        };
        task.driver.see_standing(&first, &mut task.under_way, &clock);
        driver::run(&mut task, &inbox, &clock).await;
        task.end.unwrap_or(WorkerEnd::Left { running: Vec::new() })
    }

    fn handle(&mut self, event: WorkerInput, clock: &Arc<dyn Clock>) {
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
            self.handle(WorkerInput::SessionLost, clock);
        }
        if let Some(incarnation) = token {
            under_way.incarnation = token;
            self.handle(WorkerInput::Joined { incarnation }, clock);
        }
    }

    fn finish(&mut self, done: Done, under_way: &mut UnderWay, clock: &Arc<dyn Clock>) {
        match done {
            Done::Claimed(mut claimed) => {
                under_way.loans.end(&mut claimed);
                let Claimed { epoch, answers, .. } = claimed;
                self.handle(WorkerInput::ClaimReplies { epoch, replies: answers }, clock);
            }
            Done::Written(events) => {
                under_way.writes -= 1;
                for event in events {
                    self.handle(event, clock);
                }
            }
            Done::Left => self.handle(WorkerInput::OwnKeyDeleted, clock),
        }
    }

    /// Carries out what the machine wants, and tells what it has to say.
    fn act(&mut self, under_way: &mut UnderWay) {
        while let Some(action) = self.machine.poll_output() {
            self.carry_out(action, under_way);
        }
        while under_way.writes < WRITES_IN_FLIGHT && !under_way.outbox.is_empty() {
            let writes = under_way.outbox.next_request();
            let (store, layout, node) = (self.store.clone(), self.layout.clone(), self.node.clone());
            let sending = writes::send(store, layout, node, writes);
            under_way.inbox.send(async move { Done::Written(sending.await) });
            under_way.writes += 1;
        }
        while let Some(notice) = self.machine.poll_event() {
            log(&self.node, &notice);
            self.measure.noticed(&notice);
            if let WorkerEvent::Lost { task, token, why } = &notice {
                self.handlers.lose(task.clone(), *token, *why);
            }
            // There may be no reader.
            let _ = self.events.send(notice);
        }
        self.measure.owns(self.machine.owned());
        let status = WorkerStatus {
            tasks: self.machine.owned(),
            peers: self.machine.peers(),
            is_member: under_way.incarnation.is_some(),
        };
        self.status.send_if_modified(|shown| {
            let is_news = *shown != status;
            *shown = status;
            is_news
        });
        self.stats.send_replace(self.machine.stats());
    }

    fn carry_out(&mut self, action: WorkerOutput, under_way: &mut UnderWay) {
        match action {
            WorkerOutput::Claim { epoch, claims } => {
                self.measure.tried(claims.len());
                let claims = under_way.loans.begin(claims);
                let (store, session) = (self.store.clone(), self.session.clone());
                let habit = under_way.habit.clone();
                let asking = claims::ask(store, session, self.layout.clone(), epoch, claims, habit);
                under_way.inbox.send(async move { Done::Claimed(asking.await) });
            }
            WorkerOutput::EndClaim { nonce } => under_way.loans.let_go(&nonce),
            WorkerOutput::ReleaseClaim { task, token, claim } => {
                under_way.outbox.push(NodeWrite::ReleaseClaim(task, token, claim));
            }
            WorkerOutput::Start(start) => {
                let key = self.layout.encode(&Key::TaskOwner(start.task.clone()));
                let fence = Fence { key, token: start.token };
                // The machine lets a loan go only when its task has ended here.
                if let Some(loan) = under_way.loans.of(start.lease) {
                    self.handlers.start(*start, fence, loan);
                }
            }
            WorkerOutput::Stop { task, token, why, until } => self.handlers.stop(task, token, why, until),
            WorkerOutput::Abort { task, token } => self.handlers.abort(task, token),
            WorkerOutput::RequestCheckpoint { task, token } => self.handlers.request_checkpoint(task, token),
            WorkerOutput::CheckpointReply { checkpoint_requests: asks, result, .. } => {
                self.handlers.reply_saved(&asks, &result);
            }
            WorkerOutput::WriteState(save) => under_way.outbox.push(NodeWrite::WriteState(save)),
            WorkerOutput::AckCommand(answer) => under_way.outbox.push(NodeWrite::AckCommand(answer)),
            WorkerOutput::Retain(ask) => under_way.outbox.push(NodeWrite::Retain(ask)),
            // The key is kept until the machine is done with it, so this is received.
            WorkerOutput::Announce(state) => drop(under_way.place.send(PlaceWish::Announce(state))),
            WorkerOutput::Publish(load) => drop(under_way.place.send(PlaceWish::Publish(load))),
            WorkerOutput::Leave => drop(under_way.place.send(PlaceWish::Leave)),
            WorkerOutput::Finish { running } => under_way.end = Some(running),
        }
    }
}

impl Drive for NodeTask {
    type Input = Input;
    type Reply = Done;

    async fn step(&mut self) -> NextStep {
        self.driver.act(&mut self.under_way);
        if let Some(running) = self.under_way.end.take() {
            self.driver.handlers.abandon();
            // Requests in flight are dropped with the driver; they may be applied all the same.
            self.end = Some(self.why.take().unwrap_or(WorkerEnd::Left { running }));
            return NextStep::End;
        }
        let wake = self.driver.machine.next_wake(now(&self.clock));
        NextStep::Wait(wake.into_iter().chain(self.measure_at).min())
    }

    fn inputs(&mut self) -> (impl Future<Output = Input> + Send, impl Future<Output = Input> + Send) {
        let NodeTask { driver: Driver { handlers, wishes, .. }, under_way, feeds, standing, .. } = self;
        let loans = &mut under_way.loans;
        let rare = async move {
            tokio::select! {
                biased;
                (lease, why) = loans.next_end() => Input::LeaseOver(lease, why),
                Ok(()) = standing.changed() => Input::Standing(standing.borrow_and_update().clone()),
                Some(wish) = wishes.recv() => Input::Wish(wish),
            }
        };
        let frequent = async move {
            tokio::select! {
                biased;
                event = handlers.next() => Input::Handler(event),
                (feed, news) = feeds.next() => Input::Seen(feed, news),
            }
        };
        (rare, frequent)
    }

    fn handle(&mut self, event: Woken<Input, Done>) {
        let NodeTask { driver, under_way, clock, .. } = self;
        match event {
            Woken::Reply(done) => driver.finish(done, under_way, clock),
            Woken::Input(Input::LeaseOver(lease, why)) => {
                driver.handle(WorkerInput::LeaseLost { lease, why }, clock);
            }
            Woken::Input(Input::Wish(Wish::Shutdown(deadline))) => {
                driver.handle(WorkerInput::Shutdown { deadline }, clock);
            }
            Woken::Input(Input::Handler(event)) => driver.handle(event, clock),
            Woken::Input(Input::Standing(standing)) => self.handle_standing(&standing),
            Woken::Input(Input::Seen(feed, news)) => self.handle_news(feed, news),
            Woken::Wake => {
                driver.handle(WorkerInput::Time, clock);
                self.measure();
            }
        }
    }
}

impl NodeTask {
    fn handle_standing(&mut self, standing: &Standing) {
        let NodeTask { driver, under_way, clock, .. } = self;
        let is_displaced = matches!(standing, Standing::Displaced(_)) && self.why.is_none();
        if is_displaced {
            warn!(node = %driver.node, "node id taken");
            self.why = Some(WorkerEnd::Replaced);
        }
        driver.see_standing(standing, under_way, clock);
        if is_displaced {
            driver.handle(WorkerInput::Shutdown { deadline: clock.now() + driver.grace }, clock);
        }
    }

    fn handle_news(&mut self, feed: FeedId, news: News) {
        let NodeTask { driver, clock, .. } = self;
        let at = now(clock);
        for item in news.items {
            driver.machine.handle(WorkerInput::FeedItem(feed, item), at);
        }
        let Some(error) = news.end else { return };
        warn!(node = %driver.node, %error, "the store cannot be followed any more: the node ends");
        self.feeds.close();
        if self.why.is_none() {
            self.why = Some(WorkerEnd::Store(error));
            driver.handle(WorkerInput::SessionLost, clock);
            driver.handle(WorkerInput::Shutdown { deadline: clock.now() + driver.grace }, clock);
        }
    }

    /// Reads the gauge when it is due.
    fn measure(&mut self) {
        let NodeTask { driver, clock, measure_at, .. } = self;
        if let Some(gauge) = &driver.gauge
            && measure_at.is_some_and(|at| at <= clock.now())
        {
            let event = WorkerInput::Measured(gauge.read());
            *measure_at = Some(clock.now() + gauge.every);
            driver.handle(event, clock);
        }
    }
}

/// What the machine wants of the node's own key.
enum PlaceWish {
    Announce(MemberState),
    Publish(NodeLoad),
    Leave,
}

/// Keeps the member key of the worker as the machine wants it, until it is to be deleted or the driver has ended.
async fn keep_place(membership: Membership, mut wishes: mpsc::UnboundedReceiver<PlaceWish>) {
    let mut next = wishes.recv().await;
    while let Some(wish) = next {
        next = match wish {
            PlaceWish::Announce(state) => {
                let change = |record: &mut MemberRecord| record.state = state;
                change_record(&membership, change, &mut wishes).await
            }
            PlaceWish::Publish(load) => {
                let change = |record: &mut MemberRecord| record.load = Some(load);
                change_record(&membership, change, &mut wishes).await
            }
            PlaceWish::Leave => {
                if let Err(error) = membership.unregister().await {
                    info!(%error, "the node's key is left to its lease");
                }
                return;
            }
        };
    }
}

/// Changes the node's own record, and returns the next wish. A newer one does not wait for the reply: what was changed stays wanted.
async fn change_record(
    membership: &Membership,
    change: impl FnOnce(&mut MemberRecord),
    wishes: &mut mpsc::UnboundedReceiver<PlaceWish>,
) -> Option<PlaceWish> {
    tokio::select! {
        biased;
        changed = membership.update(change) => {
            if let Err(error) = changed {
                debug!(?membership, %error, "node record not updated yet");
            }
            wishes.recv().await
        }
        newer = wishes.recv() => newer,
    }
}

/// Logs what happened. What was set aside needs an operator.
fn log(node: &NodeId, notice: &WorkerEvent) {
    match notice {
        WorkerEvent::SetAside { task, why } => info!(%node, %task, %why, "task set aside"),
        WorkerEvent::CommandSetAside { key } => info!(%node, %key, "node command set aside"),
        _ => debug!(%node, ?notice, "node"),
    }
}

fn now(clock: &Arc<dyn Clock>) -> InputTime {
    InputTime { at: clock.now(), wall: wall_time(), jitter: rng::jitter() }
}
