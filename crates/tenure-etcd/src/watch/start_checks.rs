//! Starting points to be proven, many with one read.
//!
//! Compaction removes everything below one revision, so a read at the oldest starting point proves all younger ones
//! with it, and a compacted one condemns all older ones. A thousand watchers that resume together cost one read.
//!
//! StartChecks come one by one, as the server sends the first item of each watcher, so between two questions there is a
//! while in which they gather: the number of reads follows from time, not from how fast a read is answered.
//!
//! **Invariant**: a read proves only those whose first item had come before it was sent.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::router::WatchName;

/// How long checks gather after a query. Only a watcher that had to catch up checks, and the server lets those wait
/// for its tick of 100 ms anyway.
const GATHER: Duration = Duration::from_millis(10);

/// One watcher that must know whether its starting point is still there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StartCheck {
    pub(super) name: WatchName,
    /// Which creation of the watcher it is.
    pub(super) epoch: u64,
    /// The starting point.
    pub(super) after: i64,
    /// A key that the watcher may read.
    pub(super) key: Bytes,
}

/// Those that were not asked about yet.
#[derive(Debug, Default)]
pub(super) struct StartChecks {
    open: Vec<StartCheck>,
    /// When the next query may be asked.
    not_before: Option<Instant>,
}

/// One read for several watchers; the first is the oldest.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct StartQuery {
    checks: Vec<StartCheck>,
}

impl StartChecks {
    pub(super) fn add(&mut self, check: StartCheck) {
        self.open.push(check);
    }

    /// When there is something to ask, if there is.
    pub(super) fn due_at(&self, now: Instant) -> Option<Instant> {
        (!self.open.is_empty()).then(|| self.not_before.unwrap_or(now))
    }

    /// Everything open as one query.
    pub(super) fn ask(&mut self, now: Instant) -> Option<StartQuery> {
        if self.due_at(now)? > now {
            return None;
        }
        self.not_before = Some(now + GATHER);
        let mut checks = std::mem::take(&mut self.open);
        checks.sort_unstable_by_key(|check| (check.after, check.name));
        Some(StartQuery { checks })
    }
}

impl StartQuery {
    /// Where and what to read.
    pub(super) fn oldest(&self) -> &StartCheck {
        self.checks.first().expect("a query is made of at least one check")
    }

    /// The read succeeded: nobody has lost anything.
    pub(super) fn proven(self) -> Vec<StartCheck> {
        self.checks
    }

    /// The starting point of the oldest is compacted: those who share it are condemned, the others ask again.
    pub(super) fn compacted(self, checks: &mut StartChecks) -> Vec<StartCheck> {
        let after = self.oldest().after;
        let (condemned, rest) = self.checks.into_iter().partition(|check| check.after == after);
        checks.open.extend::<Vec<_>>(rest);
        // These have gathered already.
        checks.not_before = None;
        condemned
    }

    /// The oldest may not read its key: that concerns it alone.
    pub(super) fn refused(self, checks: &mut StartChecks) -> StartCheck {
        let mut all = self.checks.into_iter();
        let oldest = all.next().expect("a query is made of at least one check");
        checks.open.extend(all);
        checks.not_before = None;
        oldest
    }

    /// No answer: all ask again.
    pub(super) fn unanswered(self, checks: &mut StartChecks) {
        checks.open.extend(self.checks);
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::{GATHER, Instant, StartCheck, StartChecks, WatchName};

    fn checks(all: &[(u64, i64)]) -> StartChecks {
        let mut checks = StartChecks::default();
        for (name, after) in all {
            checks.add(StartCheck { name: WatchName(*name), epoch: 1, after: *after, key: Bytes::new() });
        }
        checks
    }

    fn names(checks: &[StartCheck]) -> Vec<u64> {
        checks.iter().map(|check| check.name.0).collect()
    }

    #[test]
    fn the_oldest_point_proves_all() {
        let begin = Instant::now();
        let mut open = checks(&[(1, 30), (2, 10), (3, 20), (4, 10)]);
        let query = open.ask(begin).unwrap();
        assert_eq!(query.oldest().after, 10);
        assert_eq!(names(&query.proven()), [2, 4, 3, 1]);
        assert_eq!(open.ask(begin), None);
    }

    #[test]
    fn a_compacted_point_condemns_its_sharers_and_the_rest_asks_again() {
        let begin = Instant::now();
        let mut open = checks(&[(1, 30), (2, 10), (3, 20), (4, 10)]);
        let query = open.ask(begin).unwrap();
        assert_eq!(names(&query.compacted(&mut open)), [2, 4]);
        let query = open.ask(begin).unwrap();
        assert_eq!(query.oldest().after, 20);
        assert_eq!(names(&query.proven()), [3, 1]);
    }

    #[test]
    fn a_refused_read_concerns_only_who_asked_it() {
        let begin = Instant::now();
        let mut open = checks(&[(1, 30), (2, 10)]);
        let query = open.ask(begin).unwrap();
        assert_eq!(query.refused(&mut open).name, WatchName(2));
        assert_eq!(names(&open.ask(begin).unwrap().proven()), [1]);
    }

    #[test]
    fn what_came_after_the_read_was_sent_is_not_proven_by_it() {
        let begin = Instant::now();
        let mut open = checks(&[(1, 10)]);
        let query = open.ask(begin).unwrap();
        open.add(StartCheck { name: WatchName(9), epoch: 1, after: 40, key: Bytes::new() });
        assert_eq!(names(&query.proven()), [1]);
        assert_eq!(names(&open.ask(begin + GATHER).unwrap().proven()), [9]);
    }

    #[test]
    fn without_an_answer_all_ask_again() {
        let begin = Instant::now();
        let mut open = checks(&[(1, 30), (2, 10)]);
        open.ask(begin).unwrap().unanswered(&mut open);
        assert_eq!(names(&open.ask(begin + GATHER).unwrap().proven()), [2, 1]);
    }

    #[test]
    fn doubts_that_come_one_by_one_ask_together() {
        let begin = Instant::now();
        let mut open = StartChecks::default();
        let step = GATHER / 100;
        let mut asked = 0;
        for name in 0..1_000 {
            open.add(StartCheck { name: WatchName(name), epoch: 1, after: 10, key: Bytes::new() });
            asked += u32::from(open.ask(begin + step * u32::try_from(name).unwrap()).is_some());
        }
        assert_eq!(asked, 10);
        let due_at = open.due_at(begin).unwrap();
        assert!(due_at > begin && open.ask(due_at).is_some(), "the last of them are not forgotten");
        assert_eq!(open.due_at(begin), None);
    }
}
