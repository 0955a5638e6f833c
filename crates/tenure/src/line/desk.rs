//! The task behind a desk: moves answers and sightings into the lines, and the lines' wishes to the store.
//!
//! Whoever stands in line or leaves it tells its line so and goes to sleep. The task is called for that only if it would not look at the line by itself:
//! while it is awake it looks at all lines before it rests, and while much is under way the next answer wakes it.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tenure_core::layout::{Layout, Place, Rank};
use tenure_core::line::{Action, Mode, Ticket};
use tenure_core::revision::Token;
use tenure_core::time::Moment;
use tokio::sync::Notify;

use super::acquired::{self, Due, RECORD_AFTER};
use super::alarm::Alarm;
use super::ask::{self, Question, Regard, Terms};
use super::lined::{Lined, Sitter, Words};
use super::lines::{Lines, Slot};
use super::outbox::{Outbox, Wish};
use super::pace::{Flight, FlightId, Flights};
use super::post::{Answers, Post};
use super::watches::{Sighting, Watches};
use super::{Arrival, Seat, SeatState};
use crate::clock::Clock;
use crate::dice;
use crate::news;
use crate::session::{LendError, Loan, Session};
use crate::store::{LeaseId, Store};

/// What the handles, the seats and the task have in common.
pub(super) struct Shared {
    session: Session,
    store: Store,
    clock: Arc<dyn Clock>,
    regard: Regard,
    /// The prefix of the enter guards.
    guards: Bytes,
    /// Below the nonces of all places of this desk, which follow each other: another desk on the same lease throws one far away.
    nonce_first: u64,
    inner: Mutex<Inner>,
    /// Whoever has what is inside must not wait for this.
    post: Mutex<Post>,
    /// Calls the task.
    bell: Notify,
}

struct Inner {
    regard: Regard,
    lines: Lines,
    /// How many stand in all lines.
    seated: usize,
    /// What is to be asked.
    outbox: Outbox,
    /// What is being asked.
    flights: Flights,
    /// The lease that is lent for each TTL.
    loans: BTreeMap<Option<Duration>, Loan>,
    /// Loans whose end the task does not wait for yet.
    new_loans: Vec<Loan>,
    /// Whether the task was called, or is at work: it looks at everything here before it rests.
    is_awake: bool,
    is_closing: bool,
}

/// The end of a loan.
type Ending = Pin<Box<dyn Future<Output = LeaseId> + Send>>;

/// Whether others are about to stand in line in the same moment. Whoever had to wait for a lease did not wait alone, and in which order those who
/// waited are woken is left to chance: they go through the task, and travel together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Crowding {
    Unlikely,
    Likely,
}

/// What woke the task.
enum Event {
    Told,
    Answered(FlightId, Answers),
    Seen(Sighting),
    Lost(LeaseId),
    Time,
}

/// What the task does when it has done everything.
enum Rest {
    /// There is more.
    No,
    /// Until something happens, or until then.
    Until(Option<Moment>),
    /// For ever.
    Done,
}

/// Runs until the desk is closed and every line is left.
pub(super) async fn drive(shared: Arc<Shared>) {
    let mut endings: FuturesUnordered<Ending> = FuturesUnordered::new();
    let mut watches = Watches::new(shared.store.clone());
    let mut alarm = Alarm::new(shared.clock.clone());
    let mut words = Words::default();
    loop {
        if shared.step(&mut watches, &mut words) {
            // Whoever was told something and wants something of the store now gets a word in: it travels along.
            tokio::task::yield_now().await;
            shared.step(&mut watches, &mut words);
        }
        shared.send();
        for loan in std::mem::take(&mut shared.lock().new_loans) {
            endings.push(Box::pin(async move {
                loan.lost().await;
                loan.lease()
            }));
        }
        match shared.rest() {
            Rest::No => continue,
            Rest::Until(wake) => alarm.set(wake),
            Rest::Done => break,
        }
        let event = tokio::select! {
            biased;
            Some(lease) = endings.next(), if !endings.is_empty() => Event::Lost(lease),
            (flight, answers) = poll_fn(|cx| shared.post().poll(cx)) => Event::Answered(flight, answers),
            () = shared.bell.notified() => Event::Told,
            sighting = watches.next() => Event::Seen(sighting),
            () = alarm.ring() => Event::Time,
        };
        shared.handle(event);
    }
    watches.close().await;
}

impl Shared {
    pub(super) fn new(session: &Session, layout: &Layout, regard: Regard) -> Shared {
        // Half of all numbers is left to count upwards.
        let nonce_first = dice::nonce() / 2;
        let inner = Inner {
            regard,
            lines: Lines::new(nonce_first),
            seated: 0,
            outbox: Outbox::default(),
            flights: Flights::default(),
            loans: BTreeMap::new(),
            new_loans: Vec::new(),
            is_awake: true,
            is_closing: false,
        };
        Shared {
            store: session.store().clone(),
            clock: session.clock().clone(),
            session: session.clone(),
            regard,
            guards: layout.enter_guards().first().clone(),
            nonce_first,
            inner: Mutex::new(inner),
            post: Mutex::default(),
            bell: Notify::new(),
        }
    }

    /// A lease to stand on, and whether others may have waited for it too.
    pub(super) async fn loan(
        &self,
        ttl: Option<Duration>,
        within: Duration,
    ) -> Result<(Loan, Crowding), LendError> {
        if let Some(loan) = self.lock().loans.get(&ttl).filter(|loan| loan.is_valid()) {
            return Ok((loan.clone(), Crowding::Unlikely));
        }
        let lend = self.session.lend().within(within);
        let loan = match ttl {
            Some(ttl) => lend.ttl(ttl).await?,
            None => lend.await?,
        };
        let mut inner = self.lock();
        inner.loans.insert(ttl, loan.clone());
        inner.new_loans.push(loan.clone());
        inner.call(&self.bell);
        Ok((loan, Crowding::Likely))
    }

    pub(super) fn stand(
        self: &Arc<Shared>,
        line: Bytes,
        (mode, rank): (Mode, Rank),
        value: Bytes,
        (loan, crowding): (Loan, Crowding),
    ) -> Seat {
        let (state, news) = news::channel(SeatState::Entering);
        let sitter = Box::new(Sitter::new(state, value, loan.clone()));
        let mut inner = self.lock();
        let (slot, ticket) = inner.stand(&line, (mode, rank), sitter);
        match crowding {
            Crowding::Unlikely => self.hurry(inner, slot, self.clock.now()),
            Crowding::Likely => inner.call(&self.bell),
        }
        Seat { shared: self.clone(), line, slot, ticket, loan, news }
    }

    /// Leaves in the background, from wherever.
    pub(super) fn leave(&self, slot: Slot, ticket: Ticket) {
        let now = self.clock.now();
        let mut inner = self.lock();
        if inner.lines.tell(slot, |lined| lined.leave(ticket, now)).is_some() {
            inner.call(&self.bell);
        }
    }

    /// Leaves at once; only for who runs in a task.
    pub(super) fn leave_at_once(&self, slot: Slot, ticket: Ticket) {
        let now = self.clock.now();
        let mut inner = self.lock();
        if inner.lines.tell(slot, |lined| lined.leave(ticket, now)).is_some() {
            self.hurry(inner, slot, now);
        }
    }

    /// Sends what a line wants here and now if nobody else could travel along; otherwise it is the task's business.
    fn hurry(&self, mut inner: MutexGuard<'_, Inner>, slot: Slot, now: Moment) {
        // The task looks at the line before it rests; or an answer wakes it, or the alarm that is set while many wait for one.
        if inner.is_awake || inner.is_patient(now) {
            return;
        }
        let may_send = inner.is_alone(slot, now) && tokio::runtime::Handle::try_current().is_ok();
        match self.post.try_lock() {
            Ok(post) if may_send && post.is_awaited() => self.send_alone(inner, post, slot, now),
            Ok(_) | Err(_) => inner.call(&self.bell),
        }
    }

    /// Sends what a line wants whose one place is all that this desk has. The task has nothing to do until there is an answer: then the line is looked at
    /// anyway, and what it wants watched can wait so long.
    fn send_alone(
        &self,
        mut inner: MutexGuard<'_, Inner>,
        mut post: MutexGuard<'_, Post>,
        slot: Slot,
        now: Moment,
    ) {
        let mut words = Words::default();
        let is_on_time = inner.listen(slot, &mut words, now);
        let request = inner.next_request(now);
        if request.is_none() || !is_on_time {
            inner.call(&self.bell);
        }
        drop(inner);
        words.say();
        if let Some((flight, request)) = request {
            post.send(flight, self.ask(request));
            if let Some((flight, answers)) = post.begin() {
                drop(post);
                self.handle(Event::Answered(flight, answers));
                self.bell.notify_one();
            }
        }
    }

    /// Sends what is to be asked, as far as it may be.
    fn send(&self) {
        let now = self.clock.now();
        loop {
            let request = self.lock().next_request(now);
            let Some((flight, request)) = request else { break };
            self.post().send(flight, self.ask(request));
        }
    }

    fn ask(&self, request: Vec<Question>) -> impl Future<Output = Answers> + Send + 'static {
        let terms = Terms { regard: self.regard, nonce_first: self.nonce_first, guards: self.guards.clone() };
        ask::ask(self.session.clone(), terms, request)
    }

    /// Writes into a queue key of this process when its term began. Immediately if a candidate of another process may wait behind it: the mark
    /// saves that one from reading the queue. No caller waits for the reply.
    pub(super) fn record_term(&self, slot: Slot, ticket: Ticket, arrival: Arrival) {
        let now = self.clock.now();
        let mut inner = self.lock();
        let has_followers = |lined: &Lined| {
            let place = lined.machine.place(ticket).map(|(place, _)| place);
            place.is_some_and(|place| !lined.machine.is_followed_by_ours(place))
        };
        let is_urgent = arrival == Arrival::AfterOthers && inner.lines.get(slot).is_some_and(has_followers);
        let due = if is_urgent { now } else { now + RECORD_AFTER };
        if inner.lines.tell(slot, |lined| lined.record_acquired(ticket, now, due)).is_some() {
            inner.call(&self.bell);
        }
    }

    /// Sends what is to be written about holds that lasted. No caller waits for the reply.
    fn record_acquired(&self, dues: Vec<Due>, now: Moment) {
        let unawaited = self.lock().flights.begin(Flight { since: now, len: 0 });
        self.post().send(unawaited, acquired::record(self.store.clone(), self.regard, dues));
    }

    /// Where a ticket's place is, and since when; none if it is not there.
    pub(super) fn stands_at(&self, slot: Slot, ticket: Ticket) -> Option<(Place, Token)> {
        let inner = self.lock();
        let (place, token) = inner.lines.get(slot)?.machine.place(ticket)?;
        Some((place, token?))
    }

    pub(super) fn store(&self) -> &Store {
        &self.store
    }

    /// Nobody can stand in line any more; who has a seat keeps it until it is dropped.
    pub(super) fn begin_close(&self) {
        let mut inner = self.lock();
        inner.is_closing = true;
        inner.call(&self.bell);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn post(&self) -> MutexGuard<'_, Post> {
        self.post.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets lines look at the clock, tells their notices, takes their wishes. Says whether something will be sent and somebody could travel along.
    fn step(&self, watches: &mut Watches, words: &mut Words) -> bool {
        let now = self.clock.now();
        let mut inner = self.lock();
        inner.lines.look_at_clock(now);
        let mut dues = Vec::new();
        while let Some(slot) = inner.lines.next_noted() {
            inner.listen(slot, words, now);
            if let Some(lined) = inner.lines.get_mut(slot) {
                lined.watch(watches, now);
                dues.extend(std::iter::from_fn(|| lined.next_unrecorded(slot, now)));
            }
            inner.lines.settle(slot);
        }
        let has_company = inner.seated > 1 && inner.allowance(now) > 0;
        drop(inner);
        words.say();
        if !dues.is_empty() {
            self.record_acquired(dues, now);
        }
        has_company
    }

    /// Whether the task may rest now. Nobody calls it before it has said so.
    fn rest(&self) -> Rest {
        let now = self.clock.now();
        let mut inner = self.lock();
        let is_told = inner.lines.noted_len() > 0 && !inner.is_patient(now);
        if is_told || !inner.new_loans.is_empty() || inner.allowance(now) > 0 {
            return Rest::No;
        }
        if inner.is_closing && inner.is_idle() && inner.lines.is_empty() {
            return Rest::Done;
        }
        inner.is_awake = false;
        let wakes = [inner.lines.next_wake(), inner.flights.patience_ends(now)];
        Rest::Until(wakes.into_iter().flatten().min())
    }

    fn handle(&self, event: Event) {
        let now = self.clock.now();
        let mut inner = self.lock();
        inner.is_awake = true;
        match event {
            Event::Told | Event::Time => {}
            Event::Answered(flight, answers) => {
                inner.flights.end(flight);
                for (slot, answer) in answers {
                    inner.lines.tell(slot, |lined| lined.answer(answer, now));
                }
            }
            Event::Lost(lease) => {
                inner.loans.retain(|_, loan| loan.lease() != lease);
                inner.lines.lose_lease(lease, now);
            }
            Event::Seen(sighting) => {
                // What was seen of a line may be told when that was left, and another one is in its slot.
                if let Some(slot) = inner.lines.slot(&sighting.line) {
                    inner.lines.tell(slot, |lined| lined.see(sighting.seen, self.regard, now));
                }
            }
        }
    }
}

impl Inner {
    fn stand(&mut self, line: &Bytes, (mode, rank): (Mode, Rank), sitter: Box<Sitter>) -> (Slot, Ticket) {
        let slot = self.lines.enter(line);
        let lease = sitter.lease();
        let ticket = self.lines.tell(slot, |lined| {
            let ticket = lined.machine.stand_ranked(lease, mode, rank);
            lined.sitters.insert(ticket, sitter);
            ticket
        });
        self.seated += 1;
        (slot, ticket.expect("the line was just entered"))
    }

    /// Calls the task, unless it is awake.
    fn call(&mut self, bell: &Notify) {
        if !std::mem::replace(&mut self.is_awake, true) {
            bell.notify_one();
        }
    }

    /// Takes what a line has to say. Says whether it looks at the clock in time.
    fn listen(&mut self, slot: Slot, words: &mut Words, now: Moment) -> bool {
        let Some(lined) = self.lines.get_mut(slot) else { return true };
        let seated = lined.sitters.len();
        lined.say(slot, (self.regard, now), &mut self.outbox, words);
        self.seated -= seated - lined.sitters.len();
        lined.next_wake().is_none_or(|wake| lined.is_woken_by(wake))
    }

    /// Whether nothing is to be asked, and nothing is.
    fn is_idle(&self) -> bool {
        self.outbox.is_empty() && self.flights.is_empty()
    }

    /// Whether a line's one place is all there is, and its own wish the only one.
    fn is_alone(&self, slot: Slot, now: Moment) -> bool {
        // The task ends a watch before the place that it is for; otherwise the server tells it, and then it has to be made sure of.
        let is_unwatched = || self.lines.get(slot).is_some_and(|lined| !lined.may_be_watched(now));
        self.seated == 1 && self.is_idle() && is_unwatched()
    }

    /// How many may be sent now. What nobody waits for travels with something else, or when nothing is under way.
    fn allowance(&self, now: Moment) -> usize {
        let is_due = self.flights.is_empty() || self.outbox.is_urgent();
        if is_due { self.flights.allowance(self.outbox.len(), now) } else { 0 }
    }

    /// Whether those who have something to say wait for company or for an answer.
    fn is_patient(&self, now: Moment) -> bool {
        self.flights.allowance(self.outbox.len() + self.lines.noted_len(), now) == 0
    }

    /// The next request, if there is one and it may be sent.
    fn next_request(&mut self, now: Moment) -> Option<(FlightId, Vec<Question>)> {
        loop {
            let most = self.allowance(now);
            if most == 0 {
                return None;
            }
            let wishes = self.outbox.next_request(most);
            let mut questions = Vec::with_capacity(wishes.len());
            questions.extend(wishes.into_iter().filter_map(|wish| self.question(wish)));
            if !questions.is_empty() {
                let flight = self.flights.begin(Flight { since: now, len: questions.len() });
                return Some((flight, questions));
            }
        }
    }

    /// A wish, with what is to be put.
    fn question(&self, Wish { slot, line, action }: Wish) -> Option<Question> {
        let value = match action {
            // If its lease was lost while it waited for its turn to be sent, nobody would ever take its place away.
            Action::Enter { ticket, .. } => self.lines.get(slot)?.sitters.get(&ticket)?.value.clone(),
            Action::Look { .. } | Action::Leave { .. } => Bytes::new(),
        };
        Some(Question { slot, line, action, value })
    }
}
