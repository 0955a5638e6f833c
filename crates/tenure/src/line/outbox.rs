//! What waits to be asked of the store, and what of it may travel together.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;
use tenure_core::line::{Action, Asks, Then};

use super::lines::Slot;

/// How many transactions one request carries. An etcd request takes 128 operations along one path, and each of ours has two.
const TOGETHER_MAX: usize = 100;

/// What a line wants of the store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Wish {
    pub(super) slot: Slot,
    /// The prefix under which the places of the line are. The line may be left, and another one in its slot, before it is asked.
    pub(super) line: Bytes,
    pub(super) action: Action,
}

/// Wishes in the order in which they came.
#[derive(Default)]
pub(super) struct Outbox {
    waiting: VecDeque<Wish>,
    /// How many of them somebody waits for.
    urgent: usize,
    /// What each line has in a request that is being put together.
    shares: HashMap<Slot, Share>,
}

impl Outbox {
    pub(super) fn push(&mut self, wish: Wish) {
        self.urgent += usize::from(is_urgent(wish.action));
        self.waiting.push_back(wish);
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
    pub(super) fn next_request(&mut self, most: usize) -> Vec<Wish> {
        let most = most.min(TOGETHER_MAX);
        self.shares.clear();
        let mut request = Vec::with_capacity(most.min(self.waiting.len()));
        let mut later = VecDeque::new();
        let mut settles = false;
        while request.len() < most
            && let Some(wish) = self.waiting.pop_front()
        {
            // All of them change the enter guard of their lease, and a request of etcd changes a key once.
            let is_settling = matches!(wish.action, Action::Leave { settles: Some(_), .. });
            if is_settling && std::mem::replace(&mut settles, true) {
                later.push_back(wish);
                continue;
            }
            if self.shares.entry(wish.slot).or_default().takes(wish.action) {
                self.urgent -= usize::from(is_urgent(wish.action));
                request.push(wish);
            } else {
                later.push_back(wish);
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

    use super::super::lines::Lines;
    use super::*;
    use crate::store::{LeaseId, Revision};

    /// A wish of the line with this number.
    fn wish(line: usize, action: Action) -> Wish {
        let mut lines = Lines::new(0);
        let name = |n: usize| Bytes::from(format!("{n}/"));
        let slot = (0..=line).map(|n| lines.enter(&name(n))).last().unwrap();
        Wish { slot, line: name(line), action }
    }

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
        for name in [0, 1, 0, 0, 1] {
            outbox.push(wish(name, enter(&mut line)));
        }
        let mut requests = Vec::new();
        while !outbox.is_empty() {
            let request = outbox.next_request(usize::MAX);
            requests.push(request.into_iter().map(|wish| place(wish.action).nonce).collect::<Vec<_>>());
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
            outbox.push(wish(0, action));
        }
        let request: Vec<Action> =
            outbox.next_request(usize::MAX).into_iter().map(|wish| wish.action).collect();
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
                outbox.push(wish(0, action));
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
        outbox.push(wish(0, enter(&mut line)));
        assert!(outbox.is_urgent(), "nobody of ours is there, so it may be the first");
        outbox.next_request(usize::MAX);
        assert!(!outbox.is_urgent());
        let first = line.stand(LeaseId::new(1).unwrap(), Mode::Exclusive);
        let Some(Action::Enter { epoch, .. }) = line.poll_action() else { panic!("it asks to enter") };
        let stands = Entered::Stands { token: Token(Revision(5)), before: None };
        line.handle_entered(first, epoch, stands, 0.0, Moment::ORIGIN);
        outbox.push(wish(0, enter(&mut line)));
        assert!(!outbox.is_urgent() && !outbox.is_empty());
    }

    #[test]
    fn a_request_has_an_end() {
        let mut line = Line::new(0);
        let mut outbox = Outbox::default();
        for n in 0..250 {
            outbox.push(wish(n, enter(&mut line)));
        }
        let lens: Vec<usize> =
            std::iter::from_fn(|| Some(outbox.next_request(usize::MAX).len()).filter(|&len| len > 0))
                .collect();
        assert_eq!(lens, [100, 100, 50]);
    }
}
