//! The revision on disk that no committed revision passes: what keeps tokens from repeating after a power loss.

use std::os::unix::fs::FileExt;

use tenure::store::{Op, Revision, Txn};

use super::Home;

/// The first record of the file: a revision, and the same with every bit turned over.
fn reserve(home: &Home) -> Revision {
    let mut record = [0; 16];
    std::fs::File::open(home.side_file(".epoch")).unwrap().read_exact_at(&mut record, 0).unwrap();
    let half = |from: usize| i64::from_le_bytes(record[from..from + 8].try_into().unwrap());
    assert_eq!(half(0), !half(8), "the record is whole");
    Revision(half(0))
}

/// M34. After a power loss only this number shows how far the lost revisions went.
#[tokio::test]
async fn reserve_on_disk_covers_committed_revisions() {
    let home = Home::new();
    let store = home.store().await;
    let first = store.put("/a", "").await.unwrap();
    let before = reserve(&home);
    assert!(before >= first);
    let mut last = first;
    // Beyond what is reserved at once, in groups of every size.
    let mut round = 0;
    while last.0 <= before.0 + 100 {
        round += 1;
        let txns = (0..round * 37).map(|n| Txn::new().then(Op::put(format!("/{}", n % 10), "v")));
        for reply in store.batch(txns.collect()).await {
            last = last.max(reply.unwrap().revision);
        }
        assert!(reserve(&home) >= last, "{} is below {last}", reserve(&home));
    }
    assert!(reserve(&home) > before, "it was raised");
}
