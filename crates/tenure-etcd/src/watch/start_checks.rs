//! Starting points to be proven, many with one read.
//!
//! Compaction removes everything below one revision. A read at the oldest starting point therefore
//! proves all younger ones with it, and a compacted one fails all older ones. A thousand watchers
//! that resume together cost one read.
//!
//! Checks are added one by one, as the server sends the first item of each watcher. They gather for
//! a while between two queries, so the number of reads depends on time, not on how fast a read is
//! answered.
//!
//! **Invariant**: a read proves a starting point only if its first item came before it was sent.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::router::WatchName;

/// How long checks gather after a query. Only a watcher that has to catch up is checked, and the
/// server delays its history by its tick of 100 ms anyway.
const GATHER: Duration = Duration::from_millis(10);

/// One watcher with a starting point that may be compacted.
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

/// Checks that are not part of a query yet.
#[derive(Debug, Default)]
pub(super) struct StartChecks {
    open: Vec<StartCheck>,
    /// When the next query may be sent.
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

    /// When the next query is due; `None` without an open check.
    pub(super) fn due_at(&self, now: Instant) -> Option<Instant> {
        (!self.open.is_empty()).then(|| self.not_before.unwrap_or(now))
    }

    /// All open checks as one query.
    pub(super) fn next_query(&mut self, now: Instant) -> Option<StartQuery> {
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
    /// The check with the oldest starting point: what to read, and at which revision.
    pub(super) fn oldest(&self) -> &StartCheck {
        self.checks.first().expect("a query is made of at least one check")
    }

    /// The read succeeded: no watcher has lost a revision.
    pub(super) fn proven(self) -> Vec<StartCheck> {
        self.checks
    }

    /// The oldest starting point is compacted: the watchers that share it end, the others are
    /// checked again.
    pub(super) fn compacted(self, checks: &mut StartChecks) -> Vec<StartCheck> {
        let after = self.oldest().after;
        let (condemned, rest) = self.checks.into_iter().partition(|check| check.after == after);
        checks.open.extend::<Vec<_>>(rest);
        // These have gathered already, so the next query is due at once.
        checks.not_before = None;
        condemned
    }

    /// The user may not read the oldest check's key, which concerns its watcher alone.
    pub(super) fn refused(self, checks: &mut StartChecks) -> StartCheck {
        let mut all = self.checks.into_iter();
        let oldest = all.next().expect("a query is made of at least one check");
        checks.open.extend(all);
        checks.not_before = None;
        oldest
    }

    /// No reply: all checks stay open.
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
    fn oldest_start_proves_all() {
        let begin = Instant::now();
        let mut open = checks(&[(1, 30), (2, 10), (3, 20), (4, 10)]);
        let query = open.next_query(begin).unwrap();
        assert_eq!(query.oldest().after, 10);
        assert_eq!(names(&query.proven()), [2, 4, 3, 1]);
        assert_eq!(open.next_query(begin), None);
    }

    #[test]
    fn compacted_start_retries_younger_checks() {
        let begin = Instant::now();
        let mut open = checks(&[(1, 30), (2, 10), (3, 20), (4, 10)]);
        let query = open.next_query(begin).unwrap();
        assert_eq!(names(&query.compacted(&mut open)), [2, 4]);
        let query = open.next_query(begin).unwrap();
        assert_eq!(query.oldest().after, 20);
        assert_eq!(names(&query.proven()), [3, 1]);
    }

    #[test]
    fn refused_read_fails_only_its_watcher() {
        let begin = Instant::now();
        let mut open = checks(&[(1, 30), (2, 10)]);
        let query = open.next_query(begin).unwrap();
        assert_eq!(query.refused(&mut open).name, WatchName(2));
        assert_eq!(names(&open.next_query(begin).unwrap().proven()), [1]);
    }

    #[test]
    fn check_added_after_read_is_unproven() {
        let begin = Instant::now();
        let mut open = checks(&[(1, 10)]);
        let query = open.next_query(begin).unwrap();
        open.add(StartCheck { name: WatchName(9), epoch: 1, after: 40, key: Bytes::new() });
        assert_eq!(names(&query.proven()), [1]);
        assert_eq!(names(&open.next_query(begin + GATHER).unwrap().proven()), [9]);
    }

    #[test]
    fn unanswered_query_retries_all_checks() {
        let begin = Instant::now();
        let mut open = checks(&[(1, 30), (2, 10)]);
        open.next_query(begin).unwrap().unanswered(&mut open);
        assert_eq!(names(&open.next_query(begin + GATHER).unwrap().proven()), [2, 1]);
    }

    #[test]
    fn checks_gather_into_one_query() {
        let begin = Instant::now();
        let mut open = StartChecks::default();
        let step = GATHER / 100;
        let mut asked = 0;
        for name in 0..1_000 {
            open.add(StartCheck { name: WatchName(name), epoch: 1, after: 10, key: Bytes::new() });
            asked += u32::from(open.next_query(begin + step * u32::try_from(name).unwrap()).is_some());
        }
        assert_eq!(asked, 10);
        let due_at = open.due_at(begin).unwrap();
        assert!(due_at > begin && open.next_query(due_at).is_some(), "the last of them are not forgotten");
        assert_eq!(open.due_at(begin), None);
    }
}
