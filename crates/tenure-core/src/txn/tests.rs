//! Transactions that are refused before they are sent, and conditions that hold.

use super::*;

fn check(txn: &Txn) -> Result<(), InvalidRequest> {
    match txn.check(&Limits::EMBEDDED) {
        Ok(()) => Ok(()),
        Err(StoreError::Invalid(invalid)) => Err(invalid),
        Err(other) => panic!("not about the request: {other}"),
    }
}

#[test]
fn one_key_changes_once_in_a_branch() {
    let put = || Op::put("/a/k", "v");
    let twice = Err(InvalidRequest::DuplicateKey("/a/k".into()));
    assert_eq!(check(&Txn::new().then(put()).then(put())), twice);
    assert_eq!(check(&Txn::new().then(put()).then(Op::delete("/a/k"))), twice);
    assert_eq!(check(&Txn::new().then(Op::Delete(Selection::prefix("/a/"))).then(put())), twice);
    assert_eq!(check(&Txn::new().then(Op::delete("/a/k")).then(Op::delete("/a/k"))), Ok(()));
    assert_eq!(check(&Txn::new().then(put()).otherwise(put())), Ok(()));
    assert_eq!(check(&Txn::new().then(Op::Delete(Selection::prefix("/a/k/"))).then(put())), Ok(()));
}

#[test]
fn list_is_limited_to_128_operations() {
    let puts = |count| Txn { then: (0..count).map(|n| Op::put(format!("/{n}"), "")).collect(), ..Txn::new() };
    assert_eq!(check(&puts(128)), Ok(()));
    assert_eq!(check(&puts(129)), Err(InvalidRequest::TooManyOps { count: 129, max: 128 }));
    let conditions =
        Txn { when: (0..129).map(|n| Condition::absent(format!("/{n}"))).collect(), ..Txn::new() };
    assert_eq!(check(&conditions), Err(InvalidRequest::TooManyOps { count: 129, max: 128 }));
}

#[test]
fn oversized_request_is_refused_with_numbers() {
    let of = |bytes: usize| Txn::new().then(Op::put("/k", vec![0; bytes]));
    assert_eq!(check(&of(1_400_000)), Ok(()));
    assert_eq!(check(&of(2 << 20)), Err(InvalidRequest::TooLarge { bytes: (2 << 20) + 34, max: 1_572_864 }));
}

#[test]
fn empty_key_is_refused_in_every_position() {
    for txn in [
        Txn::new().when(Condition::absent("")),
        Txn::new().then(Op::put("", "v")),
        Txn::new().then(Op::delete("")),
        Txn::new().otherwise(Op::get("")),
    ] {
        assert_eq!(check(&txn), Err(InvalidRequest::EmptyKey));
    }
}

#[test]
fn missing_key_compares_as_zero() {
    for is in [Comparison::Equal, Comparison::NotEqual, Comparison::Less, Comparison::Greater] {
        let value = Condition { key: "/k".into(), is, field: Field::Value("".into()) };
        assert!(!value.holds(None), "{is:?}");
        for field in [
            Field::Version(0),
            Field::Created(Revision::ZERO),
            Field::Modified(Revision::ZERO),
            Field::Lease(None),
        ] {
            let zero = Condition { key: "/k".into(), is, field };
            assert_eq!(zero.holds(None), is == Comparison::Equal, "{zero:?}");
        }
    }
}

#[test]
fn debug_output_never_shows_a_value() {
    let txn = Txn::new().when(Condition::value_is("/k", "canary")).then(Op::put("/k", "canary"));
    let pair = KeyValue {
        key: "/k".into(),
        value: "canary".into(),
        created: Revision(2),
        modified: Revision(2),
        version: 1,
        lease: None,
    };
    assert!(!format!("{txn:?} {pair:?}").contains("canary"));
}
