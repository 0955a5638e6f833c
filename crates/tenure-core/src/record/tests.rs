//! Records are read as they were stored, with unknown fields. Any other value is an error, never a
//! panic.

use proptest::prelude::*;

use super::*;
use crate::id::NodeId;

#[test]
fn record_round_trips_with_version() {
    let node = NodeId::parse("web-1").unwrap();
    let owner = OwnerRecord { node, incarnation: 3, nonce: String::new(), unknown: Map::new() };
    assert_eq!(owner.encode(), r#"{"node":"web-1","incarnation":3,"v":1}"#);
    assert_eq!(OwnerRecord::decode(&owner.encode()).unwrap(), owner);
}

#[test]
fn a_record_without_a_version_is_read_too() {
    assert_eq!(OwnerRecord::decode(br#"{"node":"x"}"#).unwrap().node.as_str(), "x");
}

#[test]
fn unknown_fields_are_kept() {
    let written = br#"{"v":1,"node":"x","incarnation":1,"zone":"eu"}"#;
    let again = OwnerRecord::decode(written).unwrap().encode();
    assert_eq!(
        serde_json::from_slice::<Value>(&again).unwrap(),
        serde_json::from_slice::<Value>(written).unwrap()
    );
}

/// By default serde reads floating-point numbers with a small error, and each program that wrote
/// such a record back would change it again.
#[test]
fn unknown_number_is_kept_unchanged() {
    let written = br#"{"node":"x","weight":-9337615926854775008,"ratio":0.30000000000000004}"#;
    let record = OwnerRecord::decode(written).unwrap();
    assert_eq!(OwnerRecord::decode(&record.encode()).unwrap(), record);
    assert_eq!(record.unknown["ratio"].as_f64(), Some(0.1 + 0.2));
}

#[test]
fn invalid_record_is_refused_with_reason() {
    assert!(matches!(OwnerRecord::decode(br#"{"v":2,"node":"x"}"#), Err(InvalidRecord::Newer { found: 2 })));
    for bytes in [&b""[..], b"x", b"[]", b"{}", br#"{"node":"a\u0000"}"#, br#"{"v":"1","node":"x"}"#, b"\xff"]
    {
        assert!(matches!(OwnerRecord::decode(bytes), Err(InvalidRecord::Malformed(_))), "{bytes:?}");
    }
    assert!(matches!(
        OwnerRecord::decode(&vec![b' '; RECORD_BYTES_MAX + 1]),
        Err(InvalidRecord::TooLarge(_))
    ));
}

/// The fast decoder and the full one must return the same, for any bytes.
#[test]
fn fast_and_full_decoder_agree() {
    let texts = [
        r#"{"v":1,"node":"x","incarnation":7,"nonce":"n"}"#,
        r#"{"node":"x"}"#,
        r#"{"v":1,"node":"x","zone":"eu"}"#,
        r#"{"v":0,"node":"x","node":"y"}"#,
        r#"{"v":1,"v":2,"node":"x"}"#,
        r#"{"v":2,"node":"x"}"#,
        r#"{"v":null,"node":"x"}"#,
        r#"{"v":1.0,"node":"x"}"#,
        r#"{"v":-1,"node":"x"}"#,
        r#"{"node":""}"#,
        r#"{"node":"x","incarnation":null}"#,
        r#"{"v":1,"submitted_at":5,"kind":"mail","labels":{"a":"b"},"ended":true,"nonce":"n"}"#,
        r#"{"kind":null,"labels":{"a":"b","a":"c"}}"#,
        r#"{"labels":null}"#,
        r#"["v",1]"#,
        r#"[1,"x",2,"n"]"#,
        "{}",
        "",
        "17",
    ];
    for text in texts {
        let (bytes, said) = (text.as_bytes(), |bad: InvalidRecord| bad.reason());
        let quick = OwnerRecord::decode(bytes).map_err(said);
        assert_eq!(quick, OwnerRecord::decode_patiently(bytes).map_err(said), "{text}");
        let quick = TaskRecord::decode(bytes).map_err(said);
        assert_eq!(quick, TaskRecord::decode_patiently(bytes).map_err(said), "{text}");
    }
    let long = vec![b' '; RECORD_BYTES_MAX + 1];
    assert!(matches!(TaskRecord::decode(&long), Err(InvalidRecord::TooLarge(_))));
}

#[test]
fn minimal_records_are_read() {
    assert_eq!(MemberRecord::decode(b"{}").unwrap().state, MemberState::Starting);
    assert_eq!(TaskRecord::decode(b"{}").unwrap().kind, None);
    assert_eq!(HolderRecord::decode(b"{}").unwrap().pid, 0);
    assert_eq!(CandidateRecord::decode(br#"{"asked":{}}"#).unwrap().asked, Some(StepDownRecord::default()));
    assert_eq!(OnceRecord::decode(b"{}").unwrap().exit_code, None);
    assert_eq!(CommandRecord::decode(br#"{"command":"freeze"}"#).unwrap().parameters.len(), 0);
    let result = ResultRecord::decode(br#"{"handled_by":"n","outcome":"done"}"#).unwrap();
    assert_eq!((result.handled_by.as_str(), result.at), ("n", Timestamp(0)));
    assert_eq!((result.outcome, result.from), (CommandOutcome::Done, None));
    let newer = ResultRecord::decode(br#"{"handled_by":"n","outcome":"postponed"}"#).unwrap();
    assert_eq!(newer.outcome, CommandOutcome::Other);
}

proptest! {
    #[test]
    fn no_bytes_make_a_decoder_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = MemberRecord::decode(&bytes);
        let _ = CommandRecord::decode(&bytes);
        let _ = CandidateRecord::decode(&bytes);
        let _ = TaskRecord::decode(&bytes);
        let _ = OwnerRecord::decode(&bytes);
        let _ = ResultRecord::decode(&bytes);
    }
}

#[test]
fn partial_candidate_read_matches_full_read() {
    for priority in [-3, 0, 7] {
        let record = CandidateRecord { priority, value: "x".to_owned(), ..CandidateRecord::default() };
        assert_eq!(CandidateRecord::priority_of(&record.encode()), Some(priority));
    }
    for bytes in [&b"10.0.0.1:80"[..], br#"{"priority":1,"priority":2}"#, br#"{"priority":"high"}"#] {
        assert_eq!(CandidateRecord::priority_of(bytes), None, "{bytes:?}");
    }
}
