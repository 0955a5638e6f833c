//! What waits to be asked of the store, and what of it may travel together.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;
use tenure_core::line::{Action, Asks, Then};

/// How many transactions one request carries. An etcd request takes 128 operations along one path, and each of ours has two.
const TOGETHER_MAX: usize = 100;

/// Actions in the order in which they were wanted.
#[derive(Default)]
pub(super) struct Outbox {
    waiting: VecDeque<(Bytes, Action)>,
    /// How many of them somebody waits for.
    urgent: usize,
}

impl Outbox {
    pub(super) fn push(&mut self, line: Bytes, action: Action) {
        self.urgent += usize::from(is_urgent(action));
        self.waiting.push_back((line, action));
    }

    /// Whether something is there that should not wait for company.
    pub(super) fn is_urgent(&self) -> bool {
        self.urgent > 0
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// The next request: so many at most and as many as fit, and of each line only what goes together.
    pub(super) fn next_request(&mut self, most: usize) -> Vec<(Bytes, Action)> {
        let most = most.min(TOGETHER_MAX);
        let mut lines: HashMap<Bytes, Share> = HashMap::with_capacity(most.min(self.waiting.len()));
        let mut request = Vec::with_capacity(most.min(self.waiting.len()));
        let mut later = VecDeque::new();
        while request.len() < most
            && let Some((line, action)) = self.waiting.pop_front()
        {
            if lines.entry(line.clone()).or_default().takes(action) {
                self.urgent -= usize::from(is_urgent(action));
                request.push((line, action));
            } else {
                later.push_back((line, action));
            }
        }
        while let Some(left) = later.pop_back() {
            self.waiting.push_front(left);
        }
        request
    }
}

/// Whether somebody waits for what comes of it. One that only joins behind another of ours does not: its turn cannot come before that one's.
fn is_urgent(action: Action) -> bool {
    !matches!(action, Action::Enter { asks: Asks::Nobody, .. })
}

/// What one line has in one request. Everything in it happens at one revision, and in which order is the engine's business.
///
/// **Invariant**: at most one place is put. Two would be created at one revision, and nobody could say which is first.
///
/// **Invariant**: who asks who is before it is alone: whoever leaves in the same request would be seen by it or not.
#[derive(Default)]
struct Share {
    is_alone: bool,
    puts: bool,
    reads: bool,
    is_taken: bool,
}

impl Share {
    /// Takes an action, if it goes together with what is there.
    fn takes(&mut self, action: Action) -> bool {
        let fits = !self.is_alone
            && match action {
                // It only puts. Whoever leaves in the same request passes on to one who stood before.
                Action::Enter { asks: Asks::Nobody, may_be_there: false, .. } => {
                    !std::mem::replace(&mut self.puts, true)
                }
                Action::Leave { then: Then::Nothing, .. } => true,
                // What it reads is the same with and without the others: those who stood before stay, those who leave pass on.
                Action::Leave { then: Then::Next(..) | Then::Line, .. } => {
                    !std::mem::replace(&mut self.reads, true)
                }
                Action::Enter { .. } | Action::Look { .. } => {
                    self.is_alone = !self.is_taken;
                    self.is_alone
                }
            };
        self.is_taken = true;
        fits
    }
}

#[cfg(test)]
mod tests {
    use tenure_core::layout::Place;
    use tenure_core::line::{Entered, Line, Mode};
    use tenure_core::revision::Token;
    use tenure_core::time::Moment;

    use super::*;
    use crate::store::{LeaseId, Revision};

    fn enter(line: &mut Line) -> Action {
        line.stand(LeaseId::new(1).unwrap(), Mode::Exclusive);
        line.poll_action().unwrap()
    }

    fn place(action: Action) -> Place {
        match action {
            Action::Enter { place, .. } | Action::Look { place, .. } | Action::Leave { place, .. } => place,
        }
    }

    #[test]
    fn two_places_of_one_line_never_share_a_request() {
        let mut line = Line::new(0);
        let mut outbox = Outbox::default();
        for name in ["a/", "b/", "a/", "a/", "b/"] {
            outbox.push(name.into(), enter(&mut line));
        }
        let mut requests = Vec::new();
        while !outbox.is_empty() {
            let request = outbox.next_request(usize::MAX);
            requests.push(request.into_iter().map(|(_, action)| place(action).nonce).collect::<Vec<_>>());
        }
        assert_eq!(requests, [vec![1, 2], vec![3, 5], vec![4]]);
        line.handle_time(Moment::ORIGIN);
    }

    /// Otherwise a lock that many want in one process would cost two requests for each hand-off.
    #[test]
    fn whoever_leaves_shares_a_request_with_one_that_joins_its_line() {
        let mut line = Line::new(0);
        let first = line.stand(LeaseId::new(1).unwrap(), Mode::Exclusive);
        let Some(Action::Enter { epoch, .. }) = line.poll_action() else { panic!("it asks to enter") };
        let stands = Entered::Stands { token: Token(Revision(5)), before: None };
        line.handle_entered(first, epoch, stands, 0.0, Moment::ORIGIN);
        let (join, another) = (enter(&mut line), enter(&mut line));
        line.leave(first, Moment::ORIGIN);
        let leave = line.poll_action().unwrap();
        let mut outbox = Outbox::default();
        for action in [join, another, leave] {
            outbox.push("a/".into(), action);
        }
        let request: Vec<Action> =
            outbox.next_request(usize::MAX).into_iter().map(|(_, action)| action).collect();
        assert_eq!(request, [join, leave], "two that join never share one");
        assert_eq!(outbox.next_request(usize::MAX).len(), 1);
    }

    #[test]
    fn who_asks_who_is_before_it_is_alone_with_its_line() {
        let mut line = Line::new(0);
        let (enter, leave) = {
            let first = line.stand(LeaseId::new(1).unwrap(), Mode::Exclusive);
            let Some(Action::Enter { epoch, .. }) = line.poll_action() else { panic!("it asks to enter") };
            let enter = enter(&mut line);
            let stands = Entered::Stands { token: Token(Revision(5)), before: None };
            line.handle_entered(first, epoch, stands, 0.0, Moment::ORIGIN);
            line.leave(first, Moment::ORIGIN);
            (enter, line.poll_action().unwrap())
        };
        for actions in [[enter, leave], [leave, enter]] {
            let mut outbox = Outbox::default();
            for action in actions {
                outbox.push("a/".into(), action);
            }
            assert_eq!(
                (outbox.next_request(usize::MAX).len(), outbox.next_request(usize::MAX).len()),
                (1, 1)
            );
        }
    }

    #[test]
    fn whoever_joins_behind_another_of_ours_is_in_no_hurry() {
        let mut line = Line::new(0);
        let mut outbox = Outbox::default();
        outbox.push("a/".into(), enter(&mut line));
        assert!(outbox.is_urgent(), "nobody of ours is there, so it may be the first");
        outbox.next_request(usize::MAX);
        assert!(!outbox.is_urgent());
        let first = line.stand(LeaseId::new(1).unwrap(), Mode::Exclusive);
        let Some(Action::Enter { epoch, .. }) = line.poll_action() else { panic!("it asks to enter") };
        let stands = Entered::Stands { token: Token(Revision(5)), before: None };
        line.handle_entered(first, epoch, stands, 0.0, Moment::ORIGIN);
        outbox.push("a/".into(), enter(&mut line));
        assert!(!outbox.is_urgent() && !outbox.is_empty());
    }

    #[test]
    fn a_request_has_an_end() {
        let mut line = Line::new(0);
        let mut outbox = Outbox::default();
        for n in 0..250 {
            outbox.push(format!("{n}/").into(), enter(&mut line));
        }
        let lens: Vec<usize> =
            std::iter::from_fn(|| Some(outbox.next_request(usize::MAX).len()).filter(|&len| len > 0))
                .collect();
        assert_eq!(lens, [100, 100, 50]);
    }
}
