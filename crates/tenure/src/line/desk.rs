//! The task behind a desk: moves answers and sightings into the lines, and the lines' wishes to the store.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tenure_core::layout::{Place, Rank};
use tenure_core::line::{Action, Mode, Ticket};
use tenure_core::record::CandidateRecord;
use tenure_core::revision::Token;
use tenure_core::time::Moment;
use tokio::sync::Notify;
use tracing::debug;

use super::ask::{self, Regard};
use super::lined::{Lined, Sitter};
use super::pace::Flight;
use super::post::{Answers, Post};
use super::watches::{Sighting, Watches};
use super::{Seat, SeatState};
use crate::clock::Clock;
use crate::dice;
use crate::news;
use crate::session::{LendError, Loan, Session};
use crate::store::{Condition, LeaseChoice, LeaseId, Op, Store, Txn};

/// What the handles, the seats and the task have in common.
pub(super) struct Shared {
    session: Session,
    store: Store,
    clock: Arc<dyn Clock>,
    regard: Regard,
    /// Below the nonces of all places of this desk, which follow each other: another desk on the same lease throws one far away.
    nonce_first: u64,
    inner: Mutex<Inner>,
    /// Locked before what is inside, never after.
    post: Mutex<Post>,
    /// Rung when a line was told something.
    bell: Notify,
}

#[derive(Default)]
struct Inner {
    lines: HashMap<Bytes, Box<Lined>>,
    /// Lines that were left, for those that are entered next: most are entered, held and left within a millisecond.
    #[allow(clippy::vec_box, reason = "it is the boxes that are used again")]
    spare: Vec<Box<Lined>>,
    /// The lease that is lent for each TTL.
    loans: BTreeMap<Option<Duration>, Loan>,
    /// Loans whose end the task does not wait for yet.
    new_loans: Vec<Loan>,
    /// Lines that have something to say, each once.
    dirty: Vec<Bytes>,
    /// When lines want to look at the clock.
    wakes: BTreeSet<(Moment, Bytes)>,
    /// From which nonce a line that is entered anew counts on: no late request for it can touch what was left before.
    nonce_floor: u64,
    /// The largest number of all lines that were left: late answers to one must not be taken for answers to the next of its name.
    counter: u64,
    is_closing: bool,
}

/// How many lines that were left are kept. Each is about a kilobyte; more locks than this are seldom taken in one round trip.
const SPARE_MAX: usize = 64;

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
    Answered(Answers),
    Seen(Sighting),
    Lost(LeaseId),
    Time,
}

/// Runs until the desk is closed and every line is left.
pub(super) async fn drive(shared: Arc<Shared>) {
    let mut endings: FuturesUnordered<Ending> = FuturesUnordered::new();
    let mut watches = Watches::new(shared.store.clone());
    loop {
        let mut wake = shared.step(&mut watches);
        if shared.post().is_wanted(shared.clock.now()) && shared.lock().has_company() {
            // Whoever was told something and wants something of the store now gets a word in: it travels along.
            tokio::task::yield_now().await;
            wake = shared.step(&mut watches);
        }
        let patience_ends = shared.send(&mut shared.post());
        let wake = wake.into_iter().chain(patience_ends).min();
        for loan in std::mem::take(&mut shared.lock().new_loans) {
            endings.push(Box::pin(async move {
                loan.lost().await;
                loan.lease()
            }));
        }
        if shared.is_done() {
            break;
        }
        let event = tokio::select! {
            biased;
            Some(lease) = endings.next(), if !endings.is_empty() => Event::Lost(lease),
            answers = poll_fn(|cx| shared.post().poll(cx)) => Event::Answered(answers),
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
            inner: Mutex::new(Inner { nonce_floor: nonce_first, ..Inner::default() }),
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
        drop(inner);
        self.bell.notify_one();
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
        let mut inner = self.lock();
        let Inner { lines, spare, dirty, nonce_floor, counter, .. } = &mut *inner;
        let lined = lines.entry(line.clone()).or_insert_with(|| {
            let mut lined = spare.pop().unwrap_or_default();
            lined.begin(*nonce_floor, *counter);
            lined
        });
        let ticket = lined.machine.stand_ranked(loan.lease(), mode, rank);
        lined.sitters.insert(ticket, Box::new(Sitter::new(state, value, loan.clone())));
        lined.note_in(dirty, &line);
        drop(inner);
        match crowding {
            Crowding::Unlikely => self.hurry(&line),
            Crowding::Likely => self.bell.notify_one(),
        }
        Seat { shared: self.clone(), line, ticket, loan, news }
    }

    /// Lets a ticket's place be left; says whether there is anything to do for the desk.
    fn begin_leave(&self, line: &Bytes, ticket: Ticket) -> bool {
        let now = self.clock.now();
        let mut inner = self.lock();
        let Inner { lines, dirty, .. } = &mut *inner;
        let Some(lined) = lines.get_mut(line) else { return false };
        lined.machine.leave(ticket, now);
        lined.note_in(dirty, line);
        true
    }

    /// Leaves in the background, from wherever.
    pub(super) fn leave(&self, line: &Bytes, ticket: Ticket) {
        if self.begin_leave(line, ticket) {
            self.bell.notify_one();
        }
    }

    /// Leaves at once; only for who runs in a task.
    pub(super) fn leave_at_once(&self, line: &Bytes, ticket: Ticket) {
        if self.begin_leave(line, ticket) {
            self.hurry(line);
        }
    }

    /// Sends what a line wants here and now if nobody else could travel along; otherwise it is the task's business.
    fn hurry(&self, line: &Bytes) {
        let is_enough = match self.post.try_lock() {
            Ok(mut post) if post.is_idle() && post.is_awaited() => self.send_alone(line, &mut post),
            // The task is woken by an answer, or when those before this one have waited long enough, and then it looks at the line.
            Ok(post) => post.is_patient(self.lock().dirty.len(), self.clock.now()),
            Err(_) => false,
        };
        if !is_enough {
            self.bell.notify_one();
        }
    }

    /// Sends what a line wants, if its one place is all that this desk has. Says whether nothing is left for the task until there is an answer: then
    /// the line is looked at anyway, and what it wants watched can wait so long.
    fn send_alone(&self, line: &Bytes, post: &mut Post) -> bool {
        let mut inner = self.lock();
        if inner.has_company() || tokio::runtime::Handle::try_current().is_err() {
            return false;
        }
        let now = self.clock.now();
        // The task ends a watch before the place that it is for; otherwise the server tells it, and then it has to be made sure of.
        let unwatched = |lined: &&mut Box<Lined>| !lined.may_be_watched(now);
        let Some(lined) = inner.lines.get_mut(line).filter(unwatched) else { return false };
        lined.say(line, post);
        let is_on_time = lined.machine.next_wake() == lined.wake;
        drop(inner);
        self.send(post);
        match post.begin() {
            Some(answers) => {
                self.handle(Event::Answered(answers));
                false
            }
            None => is_on_time && !post.is_idle(),
        }
    }

    /// Sends what is to be asked, as far as it may be. Says until when the rest waits.
    fn send(&self, post: &mut Post) -> Option<Moment> {
        let now = self.clock.now();
        while let Some(request) = post.next_request(now) {
            let request = self.with_values(request);
            if !request.is_empty() {
                let flight = Flight { since: now, len: request.len() };
                post.send(flight, ask::ask(self.session.clone(), (self.regard, self.nonce_first), request));
            }
        }
        post.patience_ends(now)
    }

    /// Puts in a place of ours that it holds, unless somebody has put something there since it was entered, or one of ours is the next. Nobody
    /// waits for it: if it is not done, whoever is next reads the line.
    pub(super) fn say_holding(&self, line: &Bytes, (place, token): (Place, Token), value: Bytes) {
        if self.lock().lines.get(line).is_none_or(|lined| lined.machine.is_followed_by_ours(place)) {
            return;
        }
        let (store, key) = (self.store.clone(), ask::key(line, place));
        let txn = Txn::new()
            .when(Condition::created_at(key.clone(), token.0))
            .when(Condition::modified_at(key.clone(), token.0))
            .then(Op::Put { key, value, lease: LeaseChoice::Keep });
        let unawaited = Flight { since: self.clock.now(), len: 0 };
        self.post().send(unawaited, async move {
            if let Err(error) = store.txn(txn).await {
                debug!(%error, "nobody was told who holds");
            }
            Answers::new()
        });
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

    fn is_done(&self) -> bool {
        let is_idle = self.post().is_idle();
        let inner = self.lock();
        is_idle && inner.is_closing && inner.lines.is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn post(&self) -> MutexGuard<'_, Post> {
        self.post.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets lines look at the clock, tells their notices, takes their wishes. Says when the next one wants to look.
    fn step(&self, watches: &mut Watches) -> Option<Moment> {
        let now = self.clock.now();
        let mut post = self.post();
        let mut inner = self.lock();
        let Inner { lines, spare, dirty, wakes, nonce_floor, counter, .. } = &mut *inner;
        while let Some((at, line)) = wakes.first()
            && *at <= now
        {
            let line = line.clone();
            wakes.pop_first();
            if let Some(lined) = lines.get_mut(&line) {
                lined.wake = None;
                lined.machine.handle_time(now);
                lined.note_in(dirty, &line);
            }
        }
        for line in dirty.drain(..) {
            let Some(lined) = lines.get_mut(&line) else { continue };
            lined.is_noted = false;
            lined.say(&line, &mut post);
            let wanted = lined.machine.watching();
            if wanted != lined.watching {
                watches.change(&line, &lined.watching, &wanted);
                lined.watch(wanted, now);
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
                *nonce_floor = lined.machine.nonce_floor().max(*nonce_floor);
                *counter = lined.machine.counter().max(*counter);
                let left = lines.remove(&line);
                spare.extend(left.filter(|_| spare.len() < SPARE_MAX));
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
                    inner.on_line(&line, |lined| lined.answer(answer, now));
                }
            }
            Event::Lost(lease) => {
                inner.loans.retain(|_, loan| loan.lease() != lease);
                let mut lines: Vec<Bytes> = inner.lines.keys().cloned().collect();
                lines.sort_unstable();
                for line in lines {
                    inner.on_line(&line, |lined| lined.machine.handle_lease_lost(lease, now));
                }
            }
            Event::Seen(Sighting::Watched(line, place)) => {
                inner.on_line(&line, |lined| lined.machine.handle_watched(place, now));
            }
            Event::Seen(Sighting::Gone(line, place, revision)) => {
                inner.on_line(&line, |lined| lined.machine.handle_gone(place, revision, now));
            }
            Event::Seen(Sighting::Put(line, place, pair)) => inner.on_line(&line, |lined| {
                lined.machine.handle_put(place, now);
                if self.regard == Regard::Preferred && CandidateRecord::leads_by(&pair.value) {
                    lined.machine.handle_holder(place, Token(pair.created), pair.modified);
                }
                lined.touch(place, pair);
            }),
            Event::Seen(Sighting::Picture(line, picture)) => {
                inner.on_line(&line, |lined| lined.machine.handle_picture(&picture));
            }
        }
    }
}

impl Inner {
    /// Whether more than one stands here, so that somebody could travel along.
    fn has_company(&self) -> bool {
        let counts = self.lines.values().map(|lined| lined.sitters.len());
        counts.filter(|&count| count > 0).take(2).sum::<usize>() > 1
    }

    fn on_line(&mut self, line: &Bytes, change: impl FnOnce(&mut Lined)) {
        if let Some(lined) = self.lines.get_mut(line) {
            change(lined);
            lined.note_in(&mut self.dirty, line);
        }
    }
}
