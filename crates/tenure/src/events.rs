//! What happened in a namespace: a stream of typed events, computed from the history that the store keeps anyway.
//!
//! The machine in `core::events` names what happened; the reader here brings it the history. No process writes events, so they cost
//! nothing until they are read, and they reach back as far as the store keeps its history: a file at least 10 minutes, etcd until
//! it is compacted.

mod reader;

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_core::Stream;
use futures_util::StreamExt;
use futures_util::stream;
use tenure_core::id::Namespace;
use tenure_core::layout::Layout;

use self::reader::Reader;
use crate::clock::{BootClock, Clock};
use crate::store::{Revision, Store, StoreError};

pub use tenure_core::events::{
    ElectionEvent, Event, EventKind, KeyFamily, Leaderless, LockEvent, NodeEvent, PastTerm, QueueHead,
    SentCommand, TaskEvent, TermOutcome, UnheededCommand,
};

/// The events of a namespace, about to be read. Awaiting it opens the history and gives an [`EventStream`].
///
/// ```
/// use futures_util::StreamExt;
/// use tenure::Namespace;
/// use tenure::events::{EventKind, Events, LockEvent};
/// use tenure::lock::Locks;
/// use tenure::session::Session;
/// use tenure::store::Store;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (store, namespace) = (Store::memory(), Namespace::parse("shop")?);
/// let locks = Locks::new(&Session::open(store.clone())?, &namespace);
/// locks.lock("deploy").await?.release().await?;
///
/// let mut events = Events::new(&store, &namespace).await?;
/// let mut holds = 0;
/// while let Some(event) = events.next().await {
///     match event?.kind {
///         EventKind::Lock { event: LockEvent::Acquired(_), .. } => holds += 1,
///         EventKind::Lock { event: LockEvent::Released(_), .. } => holds -= 1,
///         _ => {}
///     }
/// }
/// assert_eq!(holds, 0);
/// # Ok(())
/// # }
/// ```
///
/// # Guarantees
///
/// * Events come in the order of their revisions, each once. The events of one revision belong to one transaction.
/// * The same history gives the same events, whenever it is read, whichever engine keeps it.
/// * A part of the history that the store has compacted is an event too, [`EventKind::HistoryCompacted`], unless the stream reads
///   from the beginning: then it begins where the history begins.
/// * The holders and leaders before the first event are known: the first release after it names its holder.
/// * Reading needs read access to the namespace, no lease, and writes nothing.
///
/// # Not guaranteed
///
/// * *When* something happened: the store counts revisions. An event has the time that a record of its change contains, by the clock
///   of the process that wrote that ([`Event::at`]).
/// * *That every fact is there*: the facts in an unreadable value are missing.
///
/// # Cancellation
///
/// Dropping the future leaves nothing behind. Dropping the stream ends its watch, and no event is lost when a future of `next` is dropped.
///
/// # Errors
///
/// [`StoreError::FutureRevision`] if the store has not reached the revision of [`Events::after`], and the errors of a read.
///
/// A stream that follows survives an outage of the store: it gives one [`EventKind::Interrupted`] and continues without a gap. An `Err` is
/// the last item of a stream.
#[derive(Clone, Debug)]
#[must_use = "nothing is read before this is awaited"]
pub struct Events {
    store: Store,
    layout: Layout,
    clock: Arc<dyn Clock>,
    after: Option<Revision>,
    extent: Extent,
}

/// How far a stream reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Extent {
    /// To the revision that was current when it was opened.
    Now,
    /// Without end.
    Endless,
}

impl Events {
    /// All events that the store's history contains, up to the revision that is current when this is awaited.
    pub fn new(store: &Store, namespace: &Namespace) -> Events {
        Events {
            store: store.clone(),
            layout: Layout::new(namespace),
            clock: Arc::new(BootClock),
            after: None,
            extent: Extent::Now,
        }
    }

    /// Only the events after this revision. The revision of the last event that was handled continues where that one ended.
    pub fn after(mut self, revision: Revision) -> Events {
        self.after = Some(revision);
        self
    }

    /// Continues with what happens from now on. The stream ends only with an error.
    pub fn follow(mut self) -> Events {
        self.extent = Extent::Endless;
        self
    }

    /// Waits on another clock than the boot clock of the machine.
    pub fn clock(mut self, clock: impl Clock) -> Events {
        self.clock = Arc::new(clock);
        self
    }

    async fn open(self) -> Result<EventStream, StoreError> {
        let reader = Reader::open(self).await?;
        let events = stream::unfold(reader, |mut reader| async move {
            let event = reader.next().await?;
            Some((event, reader))
        });
        Ok(EventStream { events: events.boxed() })
    }
}

impl IntoFuture for Events {
    type Output = Result<EventStream, StoreError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.open())
    }
}

/// A stream of [`Event`]s; see [`Events`].
#[must_use = "a stream does nothing unless it is read"]
pub struct EventStream {
    events: stream::BoxStream<'static, Result<Event, StoreError>>,
}

impl Stream for EventStream {
    type Item = Result<Event, StoreError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.events.poll_next_unpin(context)
    }
}

impl std::fmt::Debug for EventStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("EventStream")
    }
}
