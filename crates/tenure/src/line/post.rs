//! What a desk has on its way to the store.
//!
//! Requests belong to the desk's task, whoever sends them: they are polled with its waker. So whoever wants a lock that nobody else wants sends
//! its own request and then only waits for the answer, which is one task switch less on the way.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use super::ask::Answer;
use super::lines::Slot;
use super::pace::FlightId;

/// What came of a request: an answer for each action, with its line.
pub(super) type Answers = Vec<(Slot, Answer)>;

/// A request under way.
type Asking = Pin<Box<dyn Future<Output = Answers> + Send>>;

/// What is being asked.
#[derive(Default)]
pub(super) struct Post {
    /// So few that all are polled when one of them wakes the task. (`FuturesUnordered` wakes the task once for nothing at each poll.)
    asking: Vec<(FlightId, Asking)>,
    /// Wakes the desk's task; none before it has waited for the first time.
    waker: Option<Waker>,
}

impl Post {
    /// A request is under way from the next poll on.
    pub(super) fn send(&mut self, flight: FlightId, asking: impl Future<Output = Answers> + Send + 'static) {
        self.asking.push((flight, Box::pin(asking)));
    }

    /// Waits for an answer, in the desk's task.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<(FlightId, Answers)> {
        if self.waker.as_ref().is_none_or(|waker| !waker.will_wake(cx.waker())) {
            self.waker = Some(cx.waker().clone());
        }
        // When nothing is under way nobody wakes it; whoever sends something polls that with the waker that is kept.
        for (n, (flight, asking)) in self.asking.iter_mut().enumerate() {
            if let Poll::Ready(answers) = asking.as_mut().poll(cx) {
                let flight = *flight;
                drop(self.asking.remove(n));
                return Poll::Ready((flight, answers));
            }
        }
        Poll::Pending
    }

    /// Whether the desk's task waits, so that others may send in its name.
    pub(super) fn is_awaited(&self) -> bool {
        self.waker.is_some()
    }

    /// Begins what was sent, in the name of the desk's task, which is woken by what comes of it; says what is answered at once.
    pub(super) fn begin(&mut self) -> Option<(FlightId, Answers)> {
        let waker = self.waker.clone()?;
        match self.poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(answered) => Some(answered),
            Poll::Pending => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use tenure_core::time::Moment;
    use tokio::sync::oneshot;

    use super::super::pace::{Flight, Flights};
    use super::*;

    /// Counts how often the desk's task would be woken.
    #[derive(Default)]
    struct Task(AtomicUsize);

    impl Wake for Task {
        fn wake(self: Arc<Task>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn lone() -> FlightId {
        Flights::default().begin(Flight { since: Moment::ORIGIN, len: 1 })
    }

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
        post.send(lone(), request(answered));
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
        post.send(lone(), request(answered));
        assert!(post.begin().is_none());
        assert_eq!(post.asking.len(), 1, "it is sent when the task waits");
    }
}
