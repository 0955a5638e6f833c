//! What a desk has to ask of the store, and what is on its way.
//!
//! Requests belong to the desk's task, whoever sends them: they are polled with its waker. So whoever wants a lock that nobody else wants sends
//! its own request and then only waits for the answer, which is one task switch less on the way.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use tenure_core::line::Action;
use tenure_core::time::Moment;

use super::ask::Answer;
use super::outbox::Outbox;
use super::pace::{Flight, allowance, patience_ends};

/// What came of a request: an answer for each action, with its line.
pub(super) type Answers = Vec<(Bytes, Answer)>;

/// A request under way.
type Asking = Pin<Box<dyn Future<Output = Answers> + Send>>;

/// What is to be asked, and what is.
#[derive(Default)]
pub(super) struct Post {
    outbox: Outbox,
    /// So few that all are polled when one of them wakes the task. (`FuturesUnordered` wakes the task once for nothing at each poll.)
    asking: Vec<(Flight, Asking)>,
    /// Wakes the desk's task; none before it has waited for the first time.
    waker: Option<Waker>,
}

impl Post {
    pub(super) fn push(&mut self, line: Bytes, action: Action) {
        self.outbox.push(line, action);
    }

    /// Whether nothing is to be asked, and nothing is.
    pub(super) fn is_idle(&self) -> bool {
        self.outbox.is_empty() && self.asking.is_empty()
    }

    /// Whether something is to be asked, and may be now.
    pub(super) fn is_wanted(&self, now: Moment) -> bool {
        self.allowance(0, now) > 0
    }

    /// Whether those who wait, and so many more, wait for company or for an answer, and until when is known.
    pub(super) fn is_patient(&self, more: usize, now: Moment) -> bool {
        self.outbox.is_urgent() && self.allowance(more, now) == 0
    }

    /// When those who wait for company have waited long enough.
    pub(super) fn patience_ends(&self, now: Moment) -> Option<Moment> {
        self.outbox.is_urgent().then(|| patience_ends(self.under_way(), now)).flatten()
    }

    /// How many may be sent now, of those who wait and so many more. What nobody waits for travels with something else, or when nothing is under way.
    fn allowance(&self, more: usize, now: Moment) -> usize {
        let is_due = self.asking.is_empty() || self.outbox.is_urgent();
        if is_due { allowance(self.outbox.len() + more, self.under_way(), now) } else { 0 }
    }

    fn under_way(&self) -> impl Iterator<Item = Flight> {
        self.asking.iter().map(|(flight, _)| *flight)
    }

    /// The next request, if there is one and it may be sent. It may turn out to be empty.
    pub(super) fn next_request(&mut self, now: Moment) -> Option<Vec<(Bytes, Action)>> {
        let most = self.allowance(0, now);
        (most > 0).then(|| self.outbox.next_request(most))
    }

    /// A request is under way from the next poll on.
    pub(super) fn send(&mut self, flight: Flight, asking: impl Future<Output = Answers> + Send + 'static) {
        self.asking.push((flight, Box::pin(asking)));
    }

    /// Waits for an answer, in the desk's task.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Answers> {
        if self.waker.as_ref().is_none_or(|waker| !waker.will_wake(cx.waker())) {
            self.waker = Some(cx.waker().clone());
        }
        // When nothing is under way nobody wakes it; whoever sends something polls that with the waker that is kept.
        for (n, (_, asking)) in self.asking.iter_mut().enumerate() {
            if let Poll::Ready(answers) = asking.as_mut().poll(cx) {
                drop(self.asking.remove(n));
                return Poll::Ready(answers);
            }
        }
        Poll::Pending
    }

    /// Whether the desk's task waits, so that others may send in its name.
    pub(super) fn is_awaited(&self) -> bool {
        self.waker.is_some()
    }

    /// Begins what was sent, in the name of the desk's task, which is woken by what comes of it; says what is answered at once.
    pub(super) fn begin(&mut self) -> Option<Answers> {
        let waker = self.waker.clone()?;
        match self.poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(answers) => Some(answers),
            Poll::Pending => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use tokio::sync::oneshot;

    use super::*;

    /// Counts how often the desk's task would be woken.
    #[derive(Default)]
    struct Task(AtomicUsize);

    impl Wake for Task {
        fn wake(self: Arc<Task>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    const LONE: Flight = Flight { since: Moment::ORIGIN, len: 1 };

    async fn request(answer: oneshot::Receiver<()>) -> Answers {
        answer.await.unwrap();
        Vec::new()
    }

    #[test]
    fn what_another_sends_in_the_name_of_the_desks_task_wakes_that_task() {
        let task = Arc::new(Task::default());
        let waker = Waker::from(task.clone());
        let mut post = Post::default();
        assert!(post.poll(&mut Context::from_waker(&waker)).is_pending());
        let (answer, answered) = oneshot::channel();
        post.send(LONE, request(answered));
        assert!(post.begin().is_none(), "nothing is answered yet");
        assert_eq!(task.0.load(Ordering::Relaxed), 0, "and it was not woken to send it");
        answer.send(()).unwrap();
        assert_eq!(task.0.load(Ordering::Relaxed), 1);
        assert!(post.poll(&mut Context::from_waker(&waker)).is_ready());
    }

    #[test]
    fn nobody_sends_for_a_task_that_does_not_wait_yet() {
        let mut post = Post::default();
        assert!(!post.is_awaited());
        let (_answer, answered) = oneshot::channel();
        post.send(LONE, request(answered));
        assert!(post.begin().is_none());
        assert!(!post.is_idle(), "it is sent when the task waits");
    }
}
