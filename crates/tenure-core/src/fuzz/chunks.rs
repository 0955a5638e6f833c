//! The chunker: every operation once, in order, within limits, in as few transactions as that
//! takes.

use crate::chunk::chunks;
use crate::error::StoreError;
use crate::kv::{Get, Selection};
use crate::limits::Limits;
use crate::txn::{Op, Txn};

/// The chunker under test: the real one, or one that a test has broken.
type Chunker = dyn Fn(Vec<Op>, &Limits) -> Result<Vec<Txn>, StoreError>;

/// Two bytes of limits, and then operations: what, how large, and a key up to the next 0.
pub(super) fn chunk(bytes: &[u8]) -> String {
    cut(bytes, &|ops, limits| chunks(ops, limits))
}

fn cut(bytes: &[u8], chunks: &Chunker) -> String {
    let (limits, ops) = read(bytes);
    let fits_alone = |op: &Op| Txn::from(op.clone()).check(&limits).is_ok();
    match chunks(ops.clone(), &limits) {
        Ok(txns) => {
            for txn in &txns {
                assert!(!txn.then.is_empty(), "an empty transaction");
                assert!(txn.when.is_empty() && txn.otherwise.is_empty());
                assert!(txn.check(&limits).is_ok(), "a transaction that no store accepts");
            }
            for pair in txns.windows(2) {
                let first = &pair[1].then[0];
                let is_full = pair[0].then.len() == limits.txn_ops_max
                    || pair[0].size() + first.size() > limits.request_bytes_max;
                assert!(is_full, "one transaction more than needed");
            }
            let count = txns.len();
            let together: Vec<Op> = txns.into_iter().flat_map(|txn| txn.then).collect();
            assert_eq!(together, ops, "other operations than were given");
            format!("{} in {}", ops.len().min(40), count.min(20))
        }
        Err(StoreError::Invalid(why)) => {
            let why = format!("{why:?}");
            let is_double = why.starts_with("DuplicateKey");
            assert!(is_double || !ops.iter().all(fits_alone), "refused although each can be carried: {why}");
            why.chars().take_while(|c| c.is_alphabetic()).collect()
        }
        Err(error) => panic!("no store was asked: {error}"),
    }
}

fn read(bytes: &[u8]) -> (Limits, Vec<Op>) {
    const SIZES: [usize; 8] = [0, 1, 10, 60, 200, 1_000, 1_572_864 - 64, 1_572_864];
    let at = |index: usize| usize::from(bytes.get(index).copied().unwrap_or(1));
    let limits = Limits {
        txn_ops_max: [1, 2, 7, 127, 128, 129, 1_000][at(0) % 7],
        request_bytes_max: [64, 200, 1_024, 1_572_864][at(1) % 4],
        ..Limits::EMBEDDED
    };
    let pieces = bytes.get(2..).unwrap_or_default().split(|byte| *byte == 0).filter(|piece| piece.len() >= 2);
    let op = |(number, piece): (usize, &[u8])| {
        let (kind, size, key) = (piece[0], SIZES[usize::from(piece[1] % 8)], piece[2..].to_vec());
        match kind % 8 {
            // Numbers of their own, or nearly every list would have one key twice.
            0..=3 => Op::put([key, number.to_string().into_bytes()].concat(), vec![0; size]),
            4 => Op::put(key, vec![0; size]),
            5 => Op::Delete(Selection::key(key)),
            6 => Op::Delete(Selection::prefix(key)),
            _ => Op::Get(Get::new(Selection::key(key))),
        }
    };
    (limits, pieces.enumerate().map(op).collect())
}

#[cfg(test)]
mod tests {
    use tenure_fuzz::{Bounds, Finding, FuzzRun};

    use super::*;

    fn found(broken: &Chunker) -> Finding {
        let target = |bytes: &[u8]| cut(bytes, broken);
        let inputs = vec![("kept".to_owned(), b"\x02\x01\x01\x02/a\0\x01\x02/b\0\x05\x01/c".to_vec())];
        let bounds = Bounds::Executions(2_000);
        FuzzRun { target: &target, inputs, seed: 1, bounds }.go().expect_err("the broken chunker is found")
    }

    #[test]
    fn chunker_exceeding_the_limit_is_found() {
        let broken = |ops: Vec<Op>, limits: &Limits| {
            chunks(ops, &Limits { txn_ops_max: limits.txn_ops_max + 1, ..*limits })
        };
        assert!(found(&broken).why.contains("no store accepts"));
    }

    #[test]
    fn chunker_dropping_an_operation_is_found() {
        let broken = |mut ops: Vec<Op>, limits: &Limits| {
            if ops.len() > 5 {
                ops.pop();
            }
            chunks(ops, limits)
        };
        assert!(found(&broken).why.contains("other operations"));
    }
}
