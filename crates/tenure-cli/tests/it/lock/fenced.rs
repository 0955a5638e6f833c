//! etcd's own example: a counter in a file under a lock, while leases of holders are revoked.
//!
//! The command checks its fencing token with every read and write, so a late write of a revoked holder is refused.

use std::collections::BTreeSet;

use futures_util::StreamExt;
use futures_util::stream;
use tenure_fixture::Etcd;

use super::on;
use crate::sandbox::Sandbox;

/// Concurrent commands; more would only wait for each other.
const AT_ONCE: usize = 8;

/// Reads the counter, and writes it increased if no later token has read it since. A revoked holder waits for the revocation
/// before or after its write, and ignores SIGTERM.
fn script(sandbox: &Sandbox, kind: Kind) -> String {
    let [state, file, seen] = ["state", "file", "seen"].map(|name| sandbox.path(name));
    let revoked = sandbox.path("revoked");
    let wait = format!(
        "i=0; while [ ! -e {revoked}.$TENURE_FENCING_TOKEN ] && [ $i -lt 1000 ]; do i=$((i+1)); sleep 0.02; done"
    );
    let (before, after) = match kind {
        Kind::Plain => ("", ""),
        Kind::RevokedBefore => (&*wait, ""),
        Kind::RevokedAfter => ("", &*wait),
    };
    format!(
        "trap '' TERM; exec 9>>{state}
         current() {{ s=$(cat {seen} 2>/dev/null || echo 0); [ $TENURE_FENCING_TOKEN -ge $s ]; }}
         flock 9; current || exit 3; echo $TENURE_FENCING_TOKEN >{seen}; n=$(tail -n 1 {file} | cut -d' ' -f1); flock -u 9
         echo $TENURE_FENCING_TOKEN $TENURE_LEASE
         {before}
         flock 9; current || exit 3; echo $((n+1)) $TENURE_FENCING_TOKEN >>{file}; flock -u 9
         {after}"
    )
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Plain,
    RevokedBefore,
    RevokedAfter,
}

/// Runs one increment; returns its token and its exit code.
async fn increment(sandbox: &Sandbox, kind: Kind) -> (String, Option<i32>) {
    let script = script(sandbox, kind);
    let mut running = sandbox.start(&["lock", "counter", "-q", "--", "sh", "-c", &script]);
    let line = running.line().await;
    let (token, lease) = line.split_once(' ').unwrap();
    if kind != Kind::Plain {
        sandbox.ok(&["lease", "revoke", lease, "--yes"]).await;
        sandbox.file(&format!("revoked.{token}"), "");
    }
    let (code, stderr) = running.end().await;
    if kind != Kind::Plain {
        assert_eq!(code, Some(122), "a revoked holder exits with 122: {stderr}");
    }
    (token.to_owned(), code)
}

async fn count_under_lock(etcd: &Etcd, count: usize) {
    let sandbox = on(etcd);
    sandbox.file("file", "0 0\n");
    let kind = |index: usize| match index % 8 {
        0 => Kind::RevokedBefore,
        4 => Kind::RevokedAfter,
        _ => Kind::Plain,
    };
    let all = (0..count).map(|index| increment(&sandbox, kind(index)));
    let ends: Vec<(String, Option<i32>)> = stream::iter(all).buffer_unordered(AT_ONCE).collect().await;
    let text = std::fs::read_to_string(sandbox.path("file")).unwrap();
    let writers: BTreeSet<&str> = text.lines().skip(1).map(|line| line.split_once(' ').unwrap().1).collect();
    let value: usize = text.lines().last().unwrap().split_once(' ').unwrap().0.parse().unwrap();
    let with_code = |code| ends.iter().filter(move |(_, got)| *got == Some(code));
    let done = with_code(0).count();
    let late = with_code(122).filter(|(token, _)| writers.contains(token.as_str())).count();
    assert_eq!(done + with_code(122).count(), count, "{ends:?}");
    assert_eq!(with_code(122).count(), count / 4, "{ends:?}");
    assert!(with_code(0).all(|(token, _)| writers.contains(token.as_str())), "{ends:?}\n{text}");
    assert_eq!(value, done + late, "an update was lost:\n{text}\n{ends:?}");
}

/// 16 increments once; 100 increments, twenty times, with `TENURE_SOAK=1`. A quarter of the leases is revoked.
#[tokio::test]
async fn soak_revoked_leases_lose_no_fenced_update() {
    let etcd = Etcd::start();
    if std::env::var_os("TENURE_SOAK").is_none() {
        return count_under_lock(&etcd, 16).await;
    }
    for _ in 0..20 {
        count_under_lock(&etcd, 100).await;
    }
}
