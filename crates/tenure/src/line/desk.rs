//! The task behind a desk: moves answers and sightings into the lines, and the lines' wishes to the store.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tenure_core::layout::{Place, Rank};
use tenure_core::line::{Action, Left, Line, LossReason, Mode, Notice, Ticket, Watching};
use tenure_core::revision::Token;
use tenure_core::time::Moment;
use tokio::sync::{Notify, watch};

use super::ask::{self, Answer, Others, Regard};
use super::outbox::Outbox;
use super::watches::{Sighting, Watches};
use super::{Seat, SeatEnd, SeatState};
use crate::clock::Clock;
use crate::dice;
use crate::session::{LendError, Loan, Session};
use crate::store::{KeyValue, LeaseId, Store};

/// Requests under way together. With one, whoever comes next waits for a whole round trip; with many, nothing is left to travel together.
/// With 64 locks at once, three reached 2.08 times the bare calls and two 1.99, in one run each; four and six no more than three.
const IN_FLIGHT: usize = 3;

/// What the handles, the seats and the task have in common.
pub(super) struct Shared {
    session: Session,
    store: Store,
    clock: Arc<dyn Clock>,
    regard: Regard,
    /// Below the nonces of all places of this desk, which follow each other: another desk on the same lease throws one far away.
    nonce_first: u64,
    inner: Mutex<Inner>,
    /// Rung when a line was told something.
    bell: Notify,
}

#[derive(Default)]
struct Inner {
    lines: BTreeMap<Bytes, Lined>,
    /// The lease that is lent for each TTL.
    loans: BTreeMap<Option<Duration>, Loan>,
    /// Loans whose end the task does not wait for yet.
    new_loans: Vec<Loan>,
    /// Lines that have something to say.
    dirty: BTreeSet<Bytes>,
    /// When lines want to look at the clock.
    wakes: BTreeSet<(Moment, Bytes)>,
    /// The largest nonce of all lines that were left: one that is entered again must not use a key twice.
    nonce: u64,
    /// The largest number of all lines that were left: late answers to one must not be taken for answers to the next of its name.
    counter: u64,
    is_closing: bool,
}

/// One line, and who stands in it.
struct Lined {
    machine: Line,
    /// In boxes, as the places of a line are.
    sitters: BTreeMap<Ticket, Box<Sitter>>,
    wake: Option<Moment>,
    watching: Watching,
}

struct Sitter {
    state: watch::Sender<SeatState>,
    value: Bytes,
    loan: Loan,
    /// The preferred of the line when the place was seen to be its first.
    others: Others,
    /// The last that somebody has put in its place; kept while it waits, for what is asked of it then counts when it holds.
    touched: Option<KeyValue>,
}

/// A request under way.
type Asking = Pin<Box<dyn Future<Output = Vec<(Bytes, Answer)>> + Send>>;

/// The end of a loan.
type Ending = Pin<Box<dyn Future<Output = LeaseId> + Send>>;

/// What woke the task.
enum Event {
    Told,
    Answered(Vec<(Bytes, Answer)>),
    Seen(Sighting),
    Lost(LeaseId),
    Time,
}

/// Runs until the desk is closed and every line is left.
pub(super) async fn drive(shared: Arc<Shared>) {
    let mut outbox = Outbox::default();
    let mut asking: FuturesUnordered<Asking> = FuturesUnordered::new();
    let mut endings: FuturesUnordered<Ending> = FuturesUnordered::new();
    let mut watches = Watches::new(shared.store.clone());
    loop {
        let mut wake = shared.step(&mut outbox, &mut watches);
        if !outbox.is_empty() && asking.len() < IN_FLIGHT && shared.has_company() {
            // Whoever was told something and wants something of the store now gets a word in: it travels along. Nobody waits for company.
            tokio::task::yield_now().await;
            wake = shared.step(&mut outbox, &mut watches);
        }
        while asking.len() < IN_FLIGHT && !outbox.is_empty() {
            let request = shared.with_values(outbox.next_request());
            if request.is_empty() {
                continue;
            }
            asking.push(Box::pin(ask::ask(
                shared.store.clone(),
                (shared.regard, shared.nonce_first),
                request,
            )));
        }
        for loan in std::mem::take(&mut shared.lock().new_loans) {
            endings.push(Box::pin(async move {
                loan.lost().await;
                loan.lease()
            }));
        }
        if shared.is_done() && asking.is_empty() {
            break;
        }
        let event = tokio::select! {
            biased;
            Some(lease) = endings.next(), if !endings.is_empty() => Event::Lost(lease),
            Some(answers) = asking.next(), if !asking.is_empty() => Event::Answered(answers),
            () = shared.bell.notified() => Event::Told,
            sighting = watches.next() => Event::Seen(sighting),
            () = sleep(&shared, wake) => Event::Time,
        };
        shared.handle(event);
    }
    watches.close().await;
}

async fn sleep(shared: &Shared, wake: Option<Moment>) {
    match wake {
        Some(wake) => shared.clock.sleep_until(wake).await,
        None => std::future::pending().await,
    }
}

impl Shared {
    pub(super) fn new(session: &Session, regard: Regard) -> Shared {
        // Half of all numbers is left to count upwards.
        let nonce_first = dice::nonce() / 2;
        Shared {
            store: session.store().clone(),
            clock: session.clock().clone(),
            session: session.clone(),
            regard,
            nonce_first,
            inner: Mutex::new(Inner { nonce: nonce_first, ..Inner::default() }),
            bell: Notify::new(),
        }
    }

    pub(super) async fn loan(&self, ttl: Option<Duration>, within: Duration) -> Result<Loan, LendError> {
        if let Some(loan) = self.lock().loans.get(&ttl).filter(|loan| loan.is_valid()) {
            return Ok(loan.clone());
        }
        let lend = self.session.lend().within(within);
        let loan = match ttl {
            Some(ttl) => lend.ttl(ttl).await?,
            None => lend.await?,
        };
        let mut inner = self.lock();
        inner.loans.insert(ttl, loan.clone());
        inner.new_loans.push(loan.clone());
        drop(inner);
        self.bell.notify_one();
        Ok(loan)
    }

    pub(super) fn stand(
        self: &Arc<Shared>,
        line: Bytes,
        (mode, rank): (Mode, Rank),
        value: Bytes,
        loan: Loan,
    ) -> Seat {
        let (state, news) = watch::channel(SeatState::Entering);
        let mut inner = self.lock();
        let Inner { lines, nonce, counter, .. } = &mut *inner;
        let lined = lines.entry(line.clone()).or_insert_with(|| Lined::new(*nonce, *counter));
        let ticket = lined.machine.stand_ranked(loan.lease(), mode, rank);
        lined.sitters.insert(ticket, Box::new(Sitter::new(state, value, loan.clone())));
        inner.dirty.insert(line.clone());
        drop(inner);
        self.bell.notify_one();
        Seat { shared: self.clone(), line, ticket, loan, news }
    }

    pub(super) fn leave(&self, line: &Bytes, ticket: Ticket) {
        let now = self.clock.now();
        let mut inner = self.lock();
        let Some(lined) = inner.lines.get_mut(line) else { return };
        lined.machine.leave(ticket, now);
        inner.dirty.insert(line.clone());
        drop(inner);
        self.bell.notify_one();
    }

    /// Where a ticket's place is, and since when; none if it is not there.
    pub(super) fn stands_at(&self, line: &Bytes, ticket: Ticket) -> Option<(Place, Token)> {
        let inner = self.lock();
        let (place, token) = inner.lines.get(line)?.machine.place(ticket)?;
        Some((place, token?))
    }

    pub(super) fn store(&self) -> &Store {
        &self.store
    }

    /// Nobody can stand in line any more; who has a seat keeps it until it is dropped.
    pub(super) fn begin_close(&self) {
        self.lock().is_closing = true;
        self.bell.notify_one();
    }

    /// Whether more than one stands here, so that somebody could travel along.
    fn has_company(&self) -> bool {
        let inner = self.lock();
        let counts = inner.lines.values().map(|lined| lined.sitters.len());
        counts.filter(|&count| count > 0).take(2).sum::<usize>() > 1
    }

    fn is_done(&self) -> bool {
        let inner = self.lock();
        inner.is_closing && inner.lines.is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets lines look at the clock, tells their notices, takes their wishes. Says when the next one wants to look.
    fn step(&self, outbox: &mut Outbox, watches: &mut Watches) -> Option<Moment> {
        let now = self.clock.now();
        let mut inner = self.lock();
        let Inner { lines, dirty, wakes, nonce, counter, .. } = &mut *inner;
        while let Some((at, line)) = wakes.first()
            && *at <= now
        {
            let line = line.clone();
            wakes.pop_first();
            if let Some(lined) = lines.get_mut(&line) {
                lined.wake = None;
                lined.machine.handle_time(now);
                dirty.insert(line);
            }
        }
        for line in std::mem::take(dirty) {
            let Some(lined) = lines.get_mut(&line) else { continue };
            while let Some(notice) = lined.machine.poll_notice() {
                lined.tell(notice);
            }
            while let Some(action) = lined.machine.poll_action() {
                outbox.push(line.clone(), action);
            }
            let wanted = lined.machine.watching();
            if wanted != lined.watching {
                watches.change(&line, &lined.watching, &wanted);
                lined.watching = wanted;
            }
            let wake = lined.machine.next_wake();
            if wake != lined.wake {
                if let Some(before) = lined.wake {
                    wakes.remove(&(before, line.clone()));
                }
                wakes.extend(wake.map(|wake| (wake, line.clone())));
                lined.wake = wake;
            }
            if lined.machine.is_empty() {
                *nonce = lined.machine.nonce().max(*nonce);
                *counter = lined.machine.counter().max(*counter);
                lines.remove(&line);
            }
        }
        wakes.first().map(|(at, _)| *at)
    }

    /// Adds to each action what is to be put.
    fn with_values(&self, request: Vec<(Bytes, Action)>) -> Vec<(Bytes, Action, Bytes)> {
        let inner = self.lock();
        let value = |line: &Bytes, action: Action| match action {
            Action::Enter { ticket, .. } => {
                inner.lines.get(line)?.sitters.get(&ticket).map(|s| s.value.clone())
            }
            Action::Look { .. } | Action::Leave { .. } => None,
        };
        let mut whole = Vec::with_capacity(request.len());
        for (line, action) in request {
            match (value(&line, action), action) {
                (Some(value), _) => whole.push((line, action, value)),
                (None, Action::Look { .. } | Action::Leave { .. }) => {
                    whole.push((line, action, Bytes::new()));
                }
                // Its lease was lost while it waited for its turn to be sent: nobody would ever take its place away.
                (None, Action::Enter { .. }) => {}
            }
        }
        whole
    }

    fn handle(&self, event: Event) {
        let now = self.clock.now();
        let mut inner = self.lock();
        match event {
            Event::Told | Event::Time => {}
            Event::Answered(answers) => {
                for (line, answer) in answers {
                    inner.on_line(line, |lined| lined.answer(answer, now));
                }
            }
            Event::Lost(lease) => {
                inner.loans.retain(|_, loan| loan.lease() != lease);
                let lines: Vec<Bytes> = inner.lines.keys().cloned().collect();
                for line in lines {
                    inner.on_line(line, |lined| lined.machine.handle_lease_lost(lease, now));
                }
            }
            Event::Seen(Sighting::Watched(line, place)) => {
                inner.on_line(line, |lined| lined.machine.handle_watched(place, now));
            }
            Event::Seen(Sighting::Gone(line, place, revision)) => {
                inner.on_line(line, |lined| lined.machine.handle_gone(place, revision, now));
            }
            Event::Seen(Sighting::Put(line, place, pair)) => inner.on_line(line, |lined| {
                lined.machine.handle_put(place, now);
                lined.touch(place, pair);
            }),
            Event::Seen(Sighting::Picture(line, picture)) => {
                inner.on_line(line, |lined| lined.machine.handle_picture(&picture));
            }
        }
    }
}

impl Inner {
    fn on_line(&mut self, line: Bytes, change: impl FnOnce(&mut Lined)) {
        if let Some(lined) = self.lines.get_mut(&line) {
            change(lined);
            self.dirty.insert(line);
        }
    }
}

impl Lined {
    fn new(nonce: u64, counter: u64) -> Lined {
        Lined {
            machine: Line::new(nonce).counting_from(counter),
            sitters: BTreeMap::new(),
            wake: None,
            watching: Watching::default(),
        }
    }

    fn answer(&mut self, answer: Answer, now: Moment) {
        let jitter = if answer.is_failure() { dice::throw() } else { 0.0 };
        match answer {
            Answer::Entered(ticket, epoch, answer, others) => {
                self.note(ticket, others);
                self.machine.handle_entered(ticket, epoch, answer, jitter, now);
            }
            Answer::Looked(ticket, epoch, answer, others) => {
                self.note(ticket, others);
                self.machine.handle_looked(ticket, epoch, answer, jitter, now);
            }
            Answer::Left(ticket, epoch, answer, others) => {
                // Whoever is the first now was shown the line at the same revision.
                if let Left::Gone { first, .. } = &answer
                    && let Some(next) = first.first().and_then(|(place, _)| self.machine.ticket(*place))
                {
                    self.note(next, others);
                }
                self.machine.handle_left(ticket, epoch, answer, jitter, now);
            }
        }
    }

    fn tell(&mut self, notice: Notice) {
        let (ticket, state) = match notice {
            Notice::Waits { ticket } => (ticket, SeatState::Waits),
            Notice::Held { ticket, token } => {
                let Some((place, _)) = self.machine.place(ticket) else { return };
                let Some(sitter) = self.sitters.get_mut(&ticket) else { return };
                let touched = sitter.touched.take().filter(|pair| pair.created == token.0);
                let others = sitter.others.take();
                (ticket, SeatState::Holds { place, token, others, touched })
            }
            Notice::Lost { ticket, why } => {
                let Some(sitter) = self.sitters.get(&ticket) else { return };
                let ended = sitter.loan.end();
                if why == LossReason::Lease && ended.is_none() {
                    // The store said so to us first.
                    sitter.loan.report_gone();
                }
                (ticket, SeatState::Over(SeatEnd::of(why, ended)))
            }
            Notice::Refused { ticket, why } => (ticket, SeatState::Over(SeatEnd::Refused(why))),
            Notice::Left { ticket, was_there } => (ticket, SeatState::Over(SeatEnd::Left { was_there })),
        };
        let is_over = matches!(state, SeatState::Over(_));
        if let Some(sitter) = self.sitters.get(&ticket) {
            sitter.state.send_replace(state);
        }
        if is_over {
            self.sitters.remove(&ticket);
        }
    }

    fn note(&mut self, ticket: Ticket, others: Others) {
        if let Some(sitter) = self.sitters.get_mut(&ticket) {
            sitter.others = others;
        }
    }

    /// Somebody put something in a place of ours; its holder may want to know.
    fn touch(&mut self, place: Place, pair: KeyValue) {
        let ticket = self.machine.ticket(place);
        let Some(sitter) = ticket.and_then(|ticket| self.sitters.get_mut(&ticket)) else { return };
        let Sitter { state, touched: kept, .. } = &mut **sitter;
        state.send_if_modified(|state| match state {
            SeatState::Holds { token, touched, .. } => {
                // What is read anew after a break may be older than what was seen.
                let is_news = touched.as_ref().is_none_or(|seen| seen.modified < pair.modified);
                let is_ours = token.0 == pair.created;
                if is_ours && is_news {
                    *touched = Some(pair);
                }
                is_ours && is_news
            }
            SeatState::Entering | SeatState::Waits => {
                *kept = Some(pair);
                false
            }
            SeatState::Over(_) => false,
        });
    }
}

impl Sitter {
    fn new(state: watch::Sender<SeatState>, value: Bytes, loan: Loan) -> Sitter {
        Sitter { state, value, loan, others: None, touched: None }
    }
}
