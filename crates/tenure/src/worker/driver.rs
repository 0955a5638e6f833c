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
use super::claims::{self, ClaimLeases, ClaimReplies};
use super::feeds::{FeedUpdate, WorkerFeeds};
use super::handlers::RunningHandlers;
use super::metrics::WorkerMetrics;
use super::status::{WorkerEnd, WorkerStatus};
use super::writes::{self, StateWriteQueue};
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

/// Requests with writes in flight: the driver builds the next while the store processes the other.
const WRITES_IN_FLIGHT: usize = 2;

/// A request of a [`Worker`](super::Worker) handle to its driver.
pub(super) enum WorkerRequest {
    /// Shut down by this time.
    Shutdown(Moment),
}

/// The machine of a worker, and everything that its outputs need.
pub(super) struct WorkerDriver {
    pub(super) machine: WorkerMachine,
    pub(super) store: Store,
    pub(super) session: Session,
    pub(super) layout: Layout,
    pub(super) node: NodeId,
    pub(super) handlers: RunningHandlers,
    pub(super) gauge: Option<ResourceGauge>,
    pub(super) grace: Duration,
    pub(super) requests: mpsc::UnboundedReceiver<WorkerRequest>,
    pub(super) events: broadcast::Sender<WorkerEvent>,
    pub(super) status: watch::Sender<WorkerStatus>,
    pub(super) stats: ordered_watch::OrderedSender<WorkerStats>,
    pub(super) metrics: WorkerMetrics,
}

/// The reply to a request.
enum WorkerReply {
    Claimed(ClaimReplies),
    Written(Vec<WorkerInput>),
    Left,
}

/// An input that does not come from the store as a reply.
enum WorkerDriverInput {
    LeaseOver(LeaseId, LossReason),
    MemberStatus(Standing),
    WorkerRequest(WorkerRequest),
    Handler(WorkerInput),
    Seen(FeedId, FeedUpdate),
}

/// Requests and leases in flight.
struct InFlightWork {
    inbox: Arc<Inbox<WorkerReply>>,
    write_queue: StateWriteQueue,
    writes: usize,
    leases: ClaimLeases,
    history: Arc<Mutex<ClaimModeHistory>>,
    member_key: mpsc::UnboundedSender<MemberKeyRequest>,
    /// The token of the stored member key, as the machine has it.
    incarnation: Option<Token>,
    end: Option<Vec<TaskId>>,
}

/// The driver with its feeds and timers, as one task.
struct WorkerTask {
    driver: WorkerDriver,
    in_flight: InFlightWork,
    feeds: WorkerFeeds,
    member_status: watch::Receiver<Standing>,
    clock: Arc<dyn Clock>,
    measure_at: Option<Moment>,
    /// Why it ends, if the machine did not decide that.
    why: Option<WorkerEnd>,
    end: Option<WorkerEnd>,
}

impl WorkerDriver {
    /// Runs until the machine has nothing more to do; returns why it ended.
    pub(super) async fn drive(self, membership: Membership) -> WorkerEnd {
        let clock = self.session.clock().clone();
        let (member_key, requests) = mpsc::unbounded_channel();
        let member_status = membership.status();
        let first = membership.current_status();
        let feeds = match WorkerFeeds::open(&self.store, &self.layout) {
            Ok(feeds) => feeds,
            Err(error) => return WorkerEnd::Store(error),
        };
        let inbox = Arc::new(Inbox::default());
        let in_flight = InFlightWork {
            inbox: inbox.clone(),
            write_queue: StateWriteQueue::default(),
            writes: 0,
            leases: ClaimLeases::default(),
            history: Arc::default(),
            member_key,
            incarnation: None,
            end: None,
        };
        let keeping = keep_member_key(membership, requests);
        inbox.send(async move {
            keeping.await;
            WorkerReply::Left
        });
        let measure_at = self.gauge.as_ref().map(|_| clock.now());
        let mut task = WorkerTask {
            driver: self,
            in_flight,
            feeds,
            member_status,
            clock: clock.clone(),
            measure_at,
            why: None,
            end: None,
        };
        task.driver.see_membership(&first, &mut task.in_flight, &clock);
        driver::run(&mut task, &inbox, &clock).await;
        task.end.unwrap_or(WorkerEnd::Left { running: Vec::new() })
    }

    fn handle(&mut self, event: WorkerInput, clock: &Arc<dyn Clock>) {
        self.metrics.handled(&event);
        self.machine.handle(event, now(clock));
    }

    /// Notifies the machine when the member key is stored or lost.
    fn see_membership(&mut self, status: &Standing, in_flight: &mut InFlightWork, clock: &Arc<dyn Clock>) {
        let token = match status {
            Standing::Member(token) => Some(*token),
            Standing::Lost | Standing::Displaced(_) | Standing::Left => None,
        };
        if in_flight.incarnation == token {
            return;
        }
        if in_flight.incarnation.take().is_some() {
            self.handle(WorkerInput::SessionLost, clock);
        }
        if let Some(incarnation) = token {
            in_flight.incarnation = token;
            self.handle(WorkerInput::Joined { incarnation }, clock);
        }
    }

    fn finish(&mut self, done: WorkerReply, in_flight: &mut InFlightWork, clock: &Arc<dyn Clock>) {
        match done {
            WorkerReply::Claimed(mut claimed) => {
                in_flight.leases.end(&mut claimed);
                let ClaimReplies { epoch, replies, .. } = claimed;
                self.handle(WorkerInput::ClaimReplies { epoch, replies }, clock);
            }
            WorkerReply::Written(events) => {
                in_flight.writes -= 1;
                for event in events {
                    self.handle(event, clock);
                }
            }
            WorkerReply::Left => self.handle(WorkerInput::OwnKeyDeleted, clock),
        }
    }

    /// Carries out the outputs of the machine, and publishes its events and status.
    fn act(&mut self, in_flight: &mut InFlightWork) {
        while let Some(action) = self.machine.poll_output() {
            self.carry_out(action, in_flight);
        }
        while in_flight.writes < WRITES_IN_FLIGHT && !in_flight.write_queue.is_empty() {
            let writes = in_flight.write_queue.next_request();
            let (store, layout, node) = (self.store.clone(), self.layout.clone(), self.node.clone());
            let sending = writes::send(store, layout, node, writes);
            in_flight.inbox.send(async move { WorkerReply::Written(sending.await) });
            in_flight.writes += 1;
        }
        while let Some(notice) = self.machine.poll_event() {
            log(&self.node, &notice);
            self.metrics.count(&notice);
            if let WorkerEvent::Lost { task, token, why } = &notice {
                self.handlers.lose(task.clone(), *token, *why);
            }
            // There may be no reader.
            let _ = self.events.send(notice);
        }
        self.metrics.owns(self.machine.owned());
        let status = WorkerStatus {
            tasks: self.machine.owned(),
            peers: self.machine.peers(),
            is_member: in_flight.incarnation.is_some(),
        };
        self.status.send_if_modified(|shown| {
            let is_changed = *shown != status;
            *shown = status;
            is_changed
        });
        self.stats.send_replace(self.machine.stats());
    }

    fn carry_out(&mut self, action: WorkerOutput, in_flight: &mut InFlightWork) {
        match action {
            WorkerOutput::Claim { epoch, claims } => {
                self.metrics.sent_claims(claims.len());
                let claims = in_flight.leases.begin(claims);
                let (store, session) = (self.store.clone(), self.session.clone());
                let history = in_flight.history.clone();
                let asking = claims::send(store, session, self.layout.clone(), epoch, claims, history);
                in_flight.inbox.send(async move { WorkerReply::Claimed(asking.await) });
            }
            WorkerOutput::EndClaim { nonce } => in_flight.leases.release(&nonce),
            WorkerOutput::ReleaseClaim { task, token, claim } => {
                in_flight.write_queue.push(NodeWrite::ReleaseClaim(task, token, claim));
            }
            WorkerOutput::Start(start) => {
                let key = self.layout.encode(&Key::TaskOwner(start.task.clone()));
                let fence = Fence { key, token: start.token };
                // The machine releases a claim only when its handler has ended, so the lease is still in use.
                if let Some(lease) = in_flight.leases.of(start.lease) {
                    self.handlers.start(*start, fence, lease);
                }
            }
            WorkerOutput::Stop { task, token, why, until } => self.handlers.stop(task, token, why, until),
            WorkerOutput::Abort { task, token } => self.handlers.abort(task, token),
            WorkerOutput::RequestCheckpoint { task, token } => self.handlers.request_checkpoint(task, token),
            WorkerOutput::CheckpointReply { checkpoint_requests: asks, result, .. } => {
                self.handlers.reply_saved(&asks, &result);
            }
            WorkerOutput::WriteState(save) => in_flight.write_queue.push(NodeWrite::WriteState(save)),
            WorkerOutput::AckCommand(answer) => in_flight.write_queue.push(NodeWrite::AckCommand(answer)),
            WorkerOutput::Retain(ask) => in_flight.write_queue.push(NodeWrite::Retain(ask)),
            // The key is kept until the machine is done with it, so this is received.
            WorkerOutput::Announce(state) => {
                drop(in_flight.member_key.send(MemberKeyRequest::Announce(state)));
            }
            WorkerOutput::Publish(load) => drop(in_flight.member_key.send(MemberKeyRequest::Publish(load))),
            WorkerOutput::Leave => drop(in_flight.member_key.send(MemberKeyRequest::Leave)),
            WorkerOutput::Finish { running } => in_flight.end = Some(running),
        }
    }
}

impl Drive for WorkerTask {
    type Input = WorkerDriverInput;
    type Reply = WorkerReply;

    async fn step(&mut self) -> NextStep {
        self.driver.act(&mut self.in_flight);
        if let Some(running) = self.in_flight.end.take() {
            self.driver.handlers.abandon();
            // Requests in flight are dropped with the driver; they may be applied all the same.
            self.end = Some(self.why.take().unwrap_or(WorkerEnd::Left { running }));
            return NextStep::End;
        }
        let wake = self.driver.machine.next_wake(now(&self.clock));
        NextStep::Wait(wake.into_iter().chain(self.measure_at).min())
    }

    fn inputs(
        &mut self,
    ) -> (impl Future<Output = WorkerDriverInput> + Send, impl Future<Output = WorkerDriverInput> + Send)
    {
        let WorkerTask {
            driver: WorkerDriver { handlers, requests, .. },
            in_flight,
            feeds,
            member_status,
            ..
        } = self;
        let leases = &mut in_flight.leases;
        let rare = async move {
            tokio::select! {
                biased;
                (lease, why) = leases.next_end() => WorkerDriverInput::LeaseOver(lease, why),
                Ok(()) = member_status.changed() => {
                    WorkerDriverInput::MemberStatus(member_status.borrow_and_update().clone())
                }
                Some(request) = requests.recv() => WorkerDriverInput::WorkerRequest(request),
            }
        };
        let frequent = async move {
            tokio::select! {
                biased;
                event = handlers.next() => WorkerDriverInput::Handler(event),
                (feed, news) = feeds.next() => WorkerDriverInput::Seen(feed, news),
            }
        };
        (rare, frequent)
    }

    fn handle(&mut self, event: Woken<WorkerDriverInput, WorkerReply>) {
        let WorkerTask { driver, in_flight, clock, .. } = self;
        match event {
            Woken::Reply(done) => driver.finish(done, in_flight, clock),
            Woken::Input(WorkerDriverInput::LeaseOver(lease, why)) => {
                driver.handle(WorkerInput::LeaseLost { lease, why }, clock);
            }
            Woken::Input(WorkerDriverInput::WorkerRequest(WorkerRequest::Shutdown(deadline))) => {
                driver.handle(WorkerInput::Shutdown { deadline }, clock);
            }
            Woken::Input(WorkerDriverInput::Handler(event)) => driver.handle(event, clock),
            Woken::Input(WorkerDriverInput::MemberStatus(status)) => self.handle_member_status(&status),
            Woken::Input(WorkerDriverInput::Seen(feed, news)) => self.handle_update(feed, news),
            Woken::Wake => {
                driver.handle(WorkerInput::Time, clock);
                self.measure();
            }
        }
    }
}

impl WorkerTask {
    fn handle_member_status(&mut self, status: &Standing) {
        let WorkerTask { driver, in_flight, clock, .. } = self;
        let is_displaced = matches!(status, Standing::Displaced(_)) && self.why.is_none();
        if is_displaced {
            warn!(node = %driver.node, "node id taken");
            self.why = Some(WorkerEnd::Replaced);
        }
        driver.see_membership(status, in_flight, clock);
        if is_displaced {
            driver.handle(WorkerInput::Shutdown { deadline: clock.now() + driver.grace }, clock);
        }
    }

    fn handle_update(&mut self, feed: FeedId, update: FeedUpdate) {
        let WorkerTask { driver, clock, .. } = self;
        let at = now(clock);
        for item in update.items {
            driver.machine.handle(WorkerInput::FeedItem(feed, item), at);
        }
        let Some(error) = update.end else { return };
        warn!(node = %driver.node, %error, "worker feed failed");
        self.feeds.close();
        if self.why.is_none() {
            self.why = Some(WorkerEnd::Store(error));
            driver.handle(WorkerInput::SessionLost, clock);
            driver.handle(WorkerInput::Shutdown { deadline: clock.now() + driver.grace }, clock);
        }
    }

    /// Reads the gauge when it is due.
    fn measure(&mut self) {
        let WorkerTask { driver, clock, measure_at, .. } = self;
        if let Some(gauge) = &driver.gauge
            && measure_at.is_some_and(|at| at <= clock.now())
        {
            let event = WorkerInput::Measured(gauge.read());
            *measure_at = Some(clock.now() + gauge.every);
            driver.handle(event, clock);
        }
    }
}

/// A change of the member key, as the machine requests it.
enum MemberKeyRequest {
    Announce(MemberState),
    Publish(NodeLoad),
    Leave,
}

/// Keeps the member key of the worker as the machine wants it, until it is to be deleted or the driver has ended.
async fn keep_member_key(membership: Membership, mut requests: mpsc::UnboundedReceiver<MemberKeyRequest>) {
    let mut next = requests.recv().await;
    while let Some(request) = next {
        next = match request {
            MemberKeyRequest::Announce(state) => {
                let change = |record: &mut MemberRecord| record.state = state;
                change_record(&membership, change, &mut requests).await
            }
            MemberKeyRequest::Publish(load) => {
                let change = |record: &mut MemberRecord| record.load = Some(load);
                change_record(&membership, change, &mut requests).await
            }
            MemberKeyRequest::Leave => {
                if let Err(error) = membership.unregister().await {
                    info!(%error, "member key not deleted");
                }
                return;
            }
        };
    }
}

/// Changes the member record, and returns the next request. A newer request does not wait for the reply: the session goes on storing the change.
async fn change_record(
    membership: &Membership,
    change: impl FnOnce(&mut MemberRecord),
    requests: &mut mpsc::UnboundedReceiver<MemberKeyRequest>,
) -> Option<MemberKeyRequest> {
    tokio::select! {
        biased;
        changed = membership.update(change) => {
            if let Err(error) = changed {
                debug!(?membership, %error, "member record not updated");
            }
            requests.recv().await
        }
        newer = requests.recv() => newer,
    }
}

/// Logs an event. A record that was set aside needs an operator.
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
