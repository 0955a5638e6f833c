//! Splits a long list of operations into transactions that a store accepts.
//!
//! Only for operations that may be applied apart from each other: a chunk is atomic, the list is
//! not.

use crate::error::{InvalidRequest, StoreError};
use crate::limits::Limits;
use crate::txn::{Op, Txn};

/// Splits operations, in order, into as few transactions as the limits allow.
///
/// An operation that no request can carry is refused with both numbers. Then nothing is returned,
/// so the caller learns of it before it sends the first chunk.
pub fn chunks(ops: impl IntoIterator<Item = Op>, limits: &Limits) -> Result<Vec<Txn>, StoreError> {
    let mut txns = Vec::new();
    let mut open = Txn::new();
    let mut bytes = 0;
    for op in ops {
        let size = op.size();
        if size > limits.request_bytes_max {
            return Err(InvalidRequest::TooLarge { bytes: size, max: limits.request_bytes_max }.into());
        }
        if open.then.len() == limits.txn_ops_max || bytes + size > limits.request_bytes_max {
            txns.push(std::mem::take(&mut open));
            bytes = 0;
        }
        bytes += size;
        open.then.push(op);
    }
    if !open.then.is_empty() {
        txns.push(open);
    }
    for txn in &txns {
        txn.check(limits)?;
    }
    Ok(txns)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ten_thousand_puts_make_79_transactions() {
        let ops = (0..10_000).map(|n| Op::put(format!("/{n}"), "v"));
        let txns = chunks(ops, &Limits::EMBEDDED).unwrap();
        assert_eq!(txns.len(), 10_000usize.div_ceil(128));
    }

    #[test]
    fn oversized_value_is_refused_before_splitting() {
        let ops = [Op::put("/a", "v"), Op::put("/b", vec![0; 2 << 20])];
        assert!(matches!(
            chunks(ops, &Limits::EMBEDDED),
            Err(StoreError::Invalid(InvalidRequest::TooLarge { max: 1_572_864, .. }))
        ));
    }

    proptest! {
        #[test]
        fn chunks_contain_all_operations_in_order(sizes in prop::collection::vec(0..60usize, 0..200)) {
            let limits = Limits { txn_ops_max: 7, request_bytes_max: 200, ..Limits::EMBEDDED };
            let ops: Vec<Op> = sizes.iter().enumerate().map(|(n, &size)| Op::put(format!("/{n}"), vec![0; size])).collect();
            let txns = chunks(ops.clone(), &limits).unwrap();
            for txn in &txns {
                prop_assert!(txn.check(&limits).is_ok());
            }
            prop_assert_eq!(txns.into_iter().flat_map(|txn| txn.then).collect::<Vec<_>>(), ops);
        }
    }
}
