//! What waits to be asked of the store, and what of it may travel together.

use std::collections::{BTreeSet, VecDeque};

use bytes::Bytes;
use tenure_core::line::Action;

/// How many transactions one request carries. An etcd request takes 128 operations along one path, and each of ours has two.
const TOGETHER_MAX: usize = 100;

/// Actions in the order in which they were wanted.
#[derive(Default)]
pub(super) struct Outbox {
    waiting: VecDeque<(Bytes, Action)>,
}

impl Outbox {
    pub(super) fn push(&mut self, line: Bytes, action: Action) {
        self.waiting.push_back((line, action));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The next request: as many as fit, but only one of each line. Two places of one line in one request would be created at one
    /// revision, and a place that leaves would be seen by one that looks or not, as the engine likes.
    pub(super) fn next_request(&mut self) -> Vec<(Bytes, Action)> {
        let mut lines = BTreeSet::new();
        let mut request = Vec::new();
        let mut later = VecDeque::new();
        while request.len() < TOGETHER_MAX
            && let Some((line, action)) = self.waiting.pop_front()
        {
            if lines.insert(line.clone()) {
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

#[cfg(test)]
mod tests {
    use tenure_core::layout::Place;
    use tenure_core::line::{Line, Mode};
    use tenure_core::time::Moment;

    use super::*;
    use crate::store::LeaseId;

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
            let request = outbox.next_request();
            requests.push(request.into_iter().map(|(_, action)| place(action).nonce).collect::<Vec<_>>());
        }
        assert_eq!(requests, [vec![1, 2], vec![3, 5], vec![4]]);
        line.handle_time(Moment::ORIGIN);
    }

    #[test]
    fn a_request_has_an_end() {
        let mut line = Line::new(0);
        let mut outbox = Outbox::default();
        for n in 0..250 {
            outbox.push(format!("{n}/").into(), enter(&mut line));
        }
        let lens: Vec<usize> =
            std::iter::from_fn(|| Some(outbox.next_request().len()).filter(|&len| len > 0)).collect();
        assert_eq!(lens, [100, 100, 50]);
    }
}
