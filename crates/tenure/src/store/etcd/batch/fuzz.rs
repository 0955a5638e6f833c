//! Fuzz target: every transaction of a batch travels once, in order, in a request that the server takes.

use super::{WRAPPING_BYTES, groups};
use crate::store::{Condition, Limits, Op, Txn};

/// Limits, and then a transaction for every three bytes: how many conditions and operations, and how large.
fn batch(bytes: &[u8]) -> String {
    const SIZES: [usize; 5] = [0, 5, 90, 500, 2_000];
    let ops_max = [2, 7, 128][usize::from(bytes.first().copied().unwrap_or(0)) % 3];
    let limits = Limits { txn_ops_max: ops_max, request_bytes_max: 2_200, ..Limits::EMBEDDED };
    let txns =
        bytes.get(1..).unwrap_or_default().chunks_exact(3).take(200).enumerate().map(|(place, three)| {
            let mut txn = Txn::new();
            for number in 0..usize::from(three[0]) % (ops_max + 1) {
                txn = txn.when(Condition::absent(format!("/{place}/{number}")));
            }
            for number in 0..usize::from(three[1]) % (ops_max + 1) {
                txn = txn
                    .then(Op::put(format!("/{place}/{number}"), vec![0; SIZES[usize::from(three[2]) % 5]]));
            }
            (place, txn)
        });
    let given: Vec<(usize, Txn)> = txns.filter(|(_, txn)| txn.check(&limits).is_ok()).collect();
    let groups = groups(given.clone(), &limits);
    for group in groups.iter().filter(|group| group.len() > 1) {
        let longest = group.iter().map(|(_, txn)| txn.when.len().max(txn.then.len())).max().unwrap_or(0);
        assert!(group.len() + longest <= ops_max, "{} transactions, the longest of {longest}", group.len());
        let bytes: usize = group.iter().map(|(_, txn)| txn.size() + WRAPPING_BYTES).sum();
        assert!(bytes <= limits.request_bytes_max, "{bytes} bytes in one request");
    }
    assert!(groups.iter().all(|group| !group.is_empty()), "a request with nothing in it");
    let count = groups.len();
    assert_eq!(groups.into_iter().flatten().collect::<Vec<_>>(), given);
    format!("{} in {}", given.len().min(30), count.min(20))
}

#[test]
fn batches_soak() {
    tenure_fuzz::fuzz(env!("CARGO_MANIFEST_DIR"), "batch", batch);
}
