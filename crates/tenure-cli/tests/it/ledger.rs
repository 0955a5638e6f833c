//! A ledger of beats: commands append a line with their fencing token and the host's uptime while they run.
//!
//! A killed command cannot write its end, so the last beat counts as the end.

use std::collections::BTreeMap;

use crate::sandbox::Sandbox;

/// A script that prints `up` and beats until it is killed, in a grandchild that ignores TERM, HUP and INT.
pub(crate) fn beating(sandbox: &Sandbox) -> String {
    let path = sandbox.path("ledger");
    format!(
        "sh -c 'trap \"\" TERM HUP INT; i=0; while [ $i -lt 1500 ]; do i=$((i+1)); read t r </proc/uptime; \
         echo $TENURE_FENCING_TOKEN $t >>{path}; [ $i = 1 ] && echo up; sleep 0.02; done' & wait; wait"
    )
}

/// A script file that prints `up` and its pid, and beats into a ledger of this name until it is killed; it ignores TERM, HUP and INT.
pub(crate) fn beating_file(sandbox: &Sandbox, ledger: &str) -> String {
    let path = sandbox.path(ledger);
    let script = format!(
        "trap '' TERM HUP INT; i=0; while [ $i -lt 1200 ]; do i=$((i+1)); read t r </proc/uptime; \
         echo $TENURE_FENCING_TOKEN $t >>{path}; [ $i = 1 ] && echo up $$; sleep 0.02; done"
    );
    sandbox.file(&format!("{ledger}.sh"), script)
}

/// First and last beat of every token, in the order of tokens.
pub(crate) fn intervals(sandbox: &Sandbox) -> Vec<(i64, f64, f64)> {
    intervals_in(sandbox, "ledger")
}

/// The same for the ledger with this name.
pub(crate) fn intervals_in(sandbox: &Sandbox, ledger: &str) -> Vec<(i64, f64, f64)> {
    let text = std::fs::read_to_string(sandbox.path(ledger)).unwrap();
    let mut beats: BTreeMap<i64, (f64, f64)> = BTreeMap::new();
    for line in text.lines() {
        let (token, at) = line.split_once(' ').unwrap();
        let at: f64 = at.parse().unwrap();
        let (first, last) = beats.entry(token.parse().unwrap()).or_insert((at, at));
        *first = first.min(at);
        *last = last.max(at);
    }
    beats.into_iter().map(|(token, (first, last))| (token, first, last)).collect()
}

/// The first pair of intervals in which a holder beats before the last beat of an earlier token.
pub(crate) fn overlap(intervals: &[(i64, f64, f64)]) -> Option<String> {
    intervals.windows(2).find(|pair| pair[1].1 < pair[0].2).map(|pair| format!("{pair:?}"))
}

#[test]
fn overlap_is_detected() {
    assert!(overlap(&[(1, 0.0, 2.0), (2, 1.9, 3.0)]).is_some());
    assert!(overlap(&[(1, 0.0, 2.0), (2, 2.0, 3.0)]).is_none());
}
