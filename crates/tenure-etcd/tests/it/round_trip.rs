//! Every message there and back: real etcd proves the field numbers.

use std::time::Duration;

use bytes::Bytes;
use tenure_etcd::{
    Compare, CompareValue, Delete, Error, Invalid, Op, OpReply, Put, Range, RangeOrder, Relation,
    ServerVersion, Txn, boot_time,
};
use tenure_fixture::Etcd;

use crate::{bytes, connect, get, just, put};

#[tokio::test]
async fn key_returns_its_revisions() {
    let etcd = Etcd::start();
    let client = connect(&etcd).await;
    let grant = client.lease_grant(77, Duration::from_secs(60)).await.unwrap();
    let first = client.put(put("k", "one")).await.unwrap();
    let second = client.put(Put { lease: grant.id, ..put("k", "two") }).await.unwrap();
    assert_eq!(second, first + 1);
    let reply = client.range(get("k")).await.unwrap();
    assert_eq!((reply.revision, reply.count, reply.more), (second, 1, false));
    let kv = &reply.kvs[0];
    assert_eq!((&kv.key, &kv.value), (&bytes("k"), &bytes("two")));
    assert_eq!((kv.create_revision, kv.mod_revision, kv.version, kv.lease), (first, second, 2, 77));

    let old = client.range(Range { revision: first, ..get("k") }).await.unwrap();
    assert_eq!(old.kvs[0].value, bytes("one"));
    let third = client.put(Put { keep_lease: true, ..put("k", "three") }).await.unwrap();
    let kept = client.range(get("k")).await.unwrap();
    assert_eq!((kept.kvs[0].lease, kept.kvs[0].mod_revision), (77, third));
}

#[tokio::test]
async fn arbitrary_bytes_survive() {
    let etcd = Etcd::start();
    let client = connect(&etcd).await;
    let key = Bytes::from_static(&[0, 0xff, 0, b'\n']);
    client.put(Put { key: key.clone(), ..Put::default() }).await.unwrap();
    let reply = client.range(Range { key: key.clone(), ..Range::default() }).await.unwrap();
    assert_eq!((&reply.kvs[0].key, reply.kvs[0].value.len()), (&key, 0));
}

#[tokio::test]
async fn ranges_limit_sort_filter_and_count() {
    let etcd = Etcd::start();
    let client = connect(&etcd).await;
    let mut revisions = Vec::new();
    for key in ["p/3", "p/1", "p/2"] {
        revisions.push(client.put(put(key, key)).await.unwrap());
    }
    let all = Range { range_end: bytes("p0"), ..get("p/") };
    let keys = async |range: Range| -> Vec<String> {
        let reply = client.range(range).await.unwrap();
        reply.kvs.iter().map(|kv| String::from_utf8_lossy(&kv.key).into_owned()).collect()
    };
    assert_eq!(keys(all.clone()).await, ["p/1", "p/2", "p/3"]);
    assert_eq!(
        keys(Range { order: RangeOrder::CreateAscending, ..all.clone() }).await,
        ["p/3", "p/1", "p/2"]
    );
    assert_eq!(
        keys(Range { order: RangeOrder::CreateDescending, ..all.clone() }).await,
        ["p/2", "p/1", "p/3"]
    );
    assert_eq!(keys(Range { max_create_revision: revisions[1], ..all.clone() }).await, ["p/1", "p/3"]);
    assert_eq!(keys(Range { serializable: true, ..all.clone() }).await.len(), 3);

    let limited = client.range(Range { limit: 2, ..all.clone() }).await.unwrap();
    assert_eq!((limited.kvs.len(), limited.more, limited.count), (2, true, 3));
    let counted = client.range(Range { count_only: true, ..all.clone() }).await.unwrap();
    assert_eq!((counted.kvs.len(), counted.count), (0, 3));
    let bare = client.range(Range { keys_only: true, ..all }).await.unwrap();
    assert!(bare.kvs.iter().all(|kv| kv.value.is_empty() && kv.mod_revision > 0));
}

#[tokio::test]
async fn every_comparison_is_encoded_correctly() {
    let etcd = Etcd::start();
    let client = connect(&etcd).await;
    client.lease_grant(5, Duration::from_secs(60)).await.unwrap();
    let created = client.put(put("k", "v")).await.unwrap();
    let changed = client.put(Put { lease: 5, ..put("k", "v") }).await.unwrap();
    let holds = async |key: &str, relation: Relation, target: CompareValue| {
        let when = vec![Compare { key: bytes(key), relation, target }];
        client.txn(Txn { when, ..Txn::default() }).await.unwrap().succeeded
    };
    let equal = Relation::Equal;
    assert!(holds("k", equal, CompareValue::Version(2)).await);
    assert!(holds("k", equal, CompareValue::CreateRevision(created)).await);
    assert!(holds("k", equal, CompareValue::ModRevision(changed)).await);
    assert!(holds("k", equal, CompareValue::Value(bytes("v"))).await);
    assert!(holds("k", equal, CompareValue::Lease(5)).await);
    assert!(holds("k", Relation::NotEqual, CompareValue::Version(1)).await);
    assert!(holds("k", Relation::Greater, CompareValue::Version(1)).await);
    assert!(holds("k", Relation::Less, CompareValue::Version(3)).await);
    assert!(!holds("k", Relation::Greater, CompareValue::Version(2)).await);
    assert!(!holds("k", Relation::Less, CompareValue::Version(2)).await);
    assert!(holds("missing", equal, CompareValue::CreateRevision(0)).await);
    assert!(!holds("missing", equal, CompareValue::Value(bytes(""))).await);
}

#[tokio::test]
async fn transaction_runs_every_operation_atomically() {
    let etcd = Etcd::start();
    let client = connect(&etcd).await;
    client.put(put("old/1", "a")).await.unwrap();
    let before = client.put(put("old/2", "b")).await.unwrap();
    let reply = client
        .txn(Txn {
            when: vec![Compare {
                key: bytes("new"),
                relation: Relation::Equal,
                target: CompareValue::CreateRevision(0),
            }],
            then: vec![
                Op::Put(Put { with_previous: true, ..put("new", "n") }),
                Op::Delete(Delete { key: bytes("old/"), range_end: bytes("old0"), with_previous: true }),
                Op::Range(get("new")),
                Op::Txn(Txn {
                    when: vec![Compare {
                        key: bytes("no"),
                        relation: Relation::Greater,
                        target: CompareValue::Version(0),
                    }],
                    then: vec![],
                    otherwise: vec![Op::Put(put("inner", "i"))],
                }),
            ],
            otherwise: vec![],
        })
        .await
        .unwrap();
    assert!(reply.succeeded);
    assert_eq!(reply.revision, before + 1);
    assert_eq!(reply.replies[0], OpReply::Put { previous: None });
    match &reply.replies[1] {
        OpReply::Delete { deleted: 2, previous } => assert_eq!(previous[1].value, bytes("b")),
        other => panic!("not a delete of two: {other:?}"),
    }
    match &reply.replies[2] {
        OpReply::Range(range) => assert_eq!(range.kvs[0].mod_revision, before + 1),
        other => panic!("not a range: {other:?}"),
    }
    match &reply.replies[3] {
        OpReply::Txn(inner) => {
            assert!(!inner.succeeded);
            assert_eq!(inner.replies, [OpReply::Put { previous: None }]);
        }
        other => panic!("not a transaction: {other:?}"),
    }
    let inner = client.range(get("inner")).await.unwrap();
    assert_eq!(inner.kvs[0].mod_revision, before + 1);
}

/// What the batcher builds on: neighbours do not add up, so that a hundred claims fit in one request.
#[tokio::test]
async fn nested_transactions_share_one_request() {
    let etcd = Etcd::start();
    let client = connect(&etcd).await;
    client.put(put("claim/7", "taken")).await.unwrap();
    let claim = |n: usize| {
        let key = format!("claim/{n}");
        Op::Txn(Txn {
            when: vec![Compare {
                key: bytes(&key),
                relation: Relation::Equal,
                target: CompareValue::CreateRevision(0),
            }],
            then: vec![Op::Put(put(&key, "mine")), Op::Put(put(&format!("note/{n}"), "x"))],
            otherwise: vec![Op::Range(get(&key))],
        })
    };
    let txn = Txn { then: (0..100).map(claim).collect(), ..Txn::default() };
    assert_eq!(txn.op_count(), 102);
    let reply = client.txn(txn).await.unwrap();
    let won = |reply: &OpReply| matches!(reply, OpReply::Txn(inner) if inner.succeeded);
    assert_eq!(reply.replies.iter().filter(|reply| won(reply)).count(), 99);
    assert!(!won(&reply.replies[7]));
}

#[tokio::test]
async fn transaction_limits_match_server() {
    let etcd = Etcd::start();
    let client = connect(&etcd).await;
    let puts = |n: usize| (0..n).map(|i| Op::Put(put(&format!("k{i}"), "v"))).collect::<Vec<_>>();
    client.txn(Txn { then: puts(128), ..Txn::default() }).await.unwrap();
    let inner = Op::Txn(Txn { then: puts(100), ..Txn::default() });
    let nested: Vec<Op> =
        std::iter::once(inner).chain((0..28).map(|i| Op::Put(put(&format!("outer{i}"), "v")))).collect();
    let error = client.txn(Txn { then: nested.clone(), ..Txn::default() }).await.unwrap_err();
    assert_eq!(error, Error::Invalid(Invalid::TooManyOps { count: 129, limit: 128 }));

    // The same without our own check: the server counts as we do.
    let mut config = tenure_etcd::Config::new(etcd.client_urls());
    config.txn_ops_max = 1_000;
    config.request_bytes_max = 100_000_000;
    let unchecked = tenure_etcd::Client::connect(config).await.unwrap();
    let error = unchecked.txn(Txn { then: nested[..28].to_vec(), ..Txn::default() }).await;
    assert!(error.is_ok(), "28 and 100 are 128: {error:?}");
    let error = unchecked.txn(Txn { then: nested, ..Txn::default() }).await.unwrap_err();
    assert_eq!(error, Error::Invalid(Invalid::TooManyOps { count: 129, limit: 1_000 }));
    let big = |bytes: usize| Op::Put(Put { value: vec![b'x'; bytes].into(), ..put("big", "") });
    for bytes in [1_600_000, 3_000_000] {
        let error = unchecked.txn(just(big(bytes))).await.unwrap_err();
        assert!(matches!(error, Error::Invalid(Invalid::TooLarge { .. })), "{error:?}");
        match client.txn(just(big(bytes))).await.unwrap_err() {
            Error::Invalid(Invalid::TooLarge { bytes: sent, limit: 1_572_864 }) => assert!(sent > bytes),
            other => panic!("{other:?}"),
        }
    }
    client.txn(just(big(1_400_000))).await.unwrap();
}

#[tokio::test]
async fn invalid_requests_change_nothing() {
    let etcd = Etcd::start();
    let client = connect(&etcd).await;
    let before = client.put(put("k", "v")).await.unwrap();
    let refused = async |op: Op| client.txn(just(op)).await.unwrap_err();
    assert_eq!(refused(Op::Put(put("", "v"))).await, Error::Invalid(Invalid::EmptyKey));
    assert_eq!(refused(Op::Put(Put { lease: 999, ..put("k", "v") })).await, Error::LeaseNotFound);
    assert_eq!(refused(Op::Put(Put { keep_lease: true, ..put("none", "v") })).await, Error::KeyNotFound);
    let twice = Txn { then: vec![Op::Put(put("d", "1")), Op::Put(put("d", "2"))], ..Txn::default() };
    assert_eq!(client.txn(twice).await.unwrap_err(), Error::Invalid(Invalid::DuplicateKey));
    let both = Put { lease: 1, keep_lease: true, ..put("k", "v") };
    assert!(matches!(refused(Op::Put(both)).await, Error::Invalid(Invalid::Other(_))));
    let future = client.range(Range { revision: before + 5, ..get("k") }).await.unwrap_err();
    assert_eq!(future, Error::FutureRevision);
    assert_eq!(client.compact(before + 5).await.unwrap_err(), Error::FutureRevision);
    assert_eq!(client.range(get("k")).await.unwrap().revision, before, "nothing was written");

    client.put(put("k", "w")).await.unwrap();
    client.compact(before + 1).await.unwrap();
    assert_eq!(client.compact(before + 1).await.unwrap_err(), Error::Compacted { at: None });
    let past = client.range(Range { revision: before, ..get("k") }).await.unwrap_err();
    assert_eq!(past, Error::Compacted { at: None });
}

#[tokio::test]
async fn leases_are_granted_listed_and_revoked() {
    let etcd = Etcd::start();
    let client = connect(&etcd).await;
    let before = boot_time();
    let grant = client.lease_grant(4242, Duration::from_millis(59_001)).await.unwrap();
    assert_eq!((grant.id, grant.ttl), (4242, Duration::from_secs(60)));
    assert!(grant.asked_at >= before && grant.asked_at <= boot_time());
    assert_eq!(client.lease_grant(4242, Duration::from_secs(60)).await.unwrap_err(), Error::LeaseExists);
    let own_choice = client.lease_grant(0, Duration::from_secs(60)).await.unwrap();
    assert!(own_choice.id > 0);
    let too_long = Duration::from_secs(9_000_000_001);
    let error = client.lease_grant(0, too_long).await.unwrap_err();
    assert_eq!(error, Error::Invalid(Invalid::TtlTooLarge { ttl: too_long }));

    let written = client.put(Put { lease: 4242, ..put("a", "1") }).await.unwrap();
    client.put(Put { lease: 4242, ..put("b", "1") }).await.unwrap();
    let mut view = client.lease_time_to_live(4242).await.unwrap().unwrap();
    view.keys.sort();
    assert_eq!((view.granted, view.keys), (Duration::from_secs(60), vec![bytes("a"), bytes("b")]));
    assert!(view.remaining > Duration::from_secs(50) && view.remaining <= Duration::from_secs(60));
    assert_eq!(client.lease_time_to_live(1).await.unwrap(), None);
    let mut ids = client.leases().await.unwrap();
    ids.sort_unstable();
    let mut expected = vec![4242, own_choice.id];
    expected.sort_unstable();
    assert_eq!(ids, expected);

    assert_eq!(client.lease_revoke(4242).await.unwrap(), written + 2);
    assert_eq!(client.lease_revoke(4242).await.unwrap_err(), Error::LeaseNotFound);
    assert_eq!(client.range(get("a")).await.unwrap().count, 0);
}

#[tokio::test]
async fn status_and_members_are_reported() {
    let etcd = Etcd::start();
    let client = connect(&etcd).await;
    let status = client.status().await.unwrap();
    let (major, minor, patch) = etcd.version();
    assert_eq!(status.version, Some(ServerVersion { major, minor, patch }));
    assert_eq!((status.leader, status.is_learner), (Some(status.member_id), false));
    assert_eq!(client.cluster_id(), Some(status.cluster_id));
    assert!(status.db_bytes > 0 && status.db_bytes_in_use > 0, "{status:?}");
    assert!(status.errors.is_empty(), "{status:?}");
    let members = client.members().await.unwrap();
    assert_eq!(members.len(), 1);
    assert_eq!((members[0].id, members[0].is_learner), (status.member_id, false));
    assert_eq!(members[0].client_urls, etcd.client_urls());
    assert_eq!(members[0].name, etcd.member(0).name());
    assert!(members[0].peer_urls[0].starts_with("http://127.0.0.1:"));
    assert_eq!(client.alarms().await.unwrap(), []);
}

#[tokio::test]
async fn full_database_refuses_writes_and_raises_alarm() {
    let etcd = Etcd::builder().quota_backend_bytes(8 << 20).start();
    let client = connect(&etcd).await;
    let lease = client.lease_grant(9, Duration::from_secs(60)).await.unwrap();
    // etcd compares its quota with the size at its last commit, every 100 ms: a fast disk takes many more puts than 8 MiB.
    let mut outcome = Ok(0);
    for n in 0..1_000 {
        let value = vec![b'x'; 500_000].into();
        outcome = client.put(Put { key: bytes(&format!("fill/{n}")), value, ..Put::default() }).await;
        if outcome.is_err() {
            break;
        }
    }
    assert_eq!(outcome, Err(Error::NoSpace));
    assert_eq!(client.lease_grant(0, Duration::from_secs(60)).await.unwrap_err(), Error::NoSpace);
    let alarms = client.alarms().await.unwrap();
    assert!(matches!(alarms[..], [tenure_etcd::Alarm::NoSpace { .. }]), "{alarms:?}");
    client.txn(just(Op::Delete(Delete { key: bytes("fill/0"), ..Delete::default() }))).await.unwrap();
    client.lease_revoke(lease.id).await.unwrap();
}

#[tokio::test]
async fn large_replies_arrive_whole() {
    let etcd = Etcd::start();
    let client = connect(&etcd).await;
    for n in 0..24 {
        let value = vec![b'x'; 1_000_000].into();
        client.put(Put { key: bytes(&format!("big/{n:02}")), value, ..Put::default() }).await.unwrap();
    }
    let reply = client.range(Range { range_end: bytes("big0"), ..get("big/") }).await.unwrap();
    assert_eq!(reply.kvs.len(), 24);
    assert!(reply.kvs.iter().all(|kv| kv.value.len() == 1_000_000));
}
