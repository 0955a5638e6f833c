//! Every row of the table of measured errors, and the traps around it.

use tonic::{Code, Status};

use super::{Class, RequestSize, classify};
use crate::error::{Error, Invalid};
use crate::http2::Http2Error;

const REQUEST: RequestSize =
    RequestSize { bytes: 2_000_000, bytes_max: 1_572_864, ops: 129, ops_max: 128, ttl: 9_000_000_001 };

fn from_server(code: Code, text: &str) -> Class {
    classify(&Status::new(code, text), REQUEST)
}

fn from_transport(text: &'static str) -> Class {
    classify(&Status::from_error(Box::new(std::io::Error::other(text))), REQUEST)
}

#[test]
fn transport_error_has_unknown_outcome() {
    for text in [
        "transport error",
        "operation was canceled",
        "h2 protocol error",
        "Timeout expired",
        "connection reset by peer",
        // The text of a definite refusal proves nothing when it does not come from the server.
        "etcdserver: requested lease not found",
        "etcdserver: too many requests",
    ] {
        assert!(matches!(from_transport(text), Class::Lost(_)), "{text}");
    }
}

#[test]
fn only_request_refused_by_connection_is_unsent() {
    let broken = || h2::Error::from(h2::Reason::REFUSED_STREAM);
    let status = Status::from_error(Box::new(Http2Error::Unsent(broken())));
    assert!(matches!(classify(&status, REQUEST), Class::Unsent(_)));
    let status = Status::from_error(Box::new(Http2Error::Broken(broken())));
    assert!(matches!(classify(&status, REQUEST), Class::Lost(_)));
}

#[test]
fn server_timeout_has_unknown_outcome() {
    for (code, text) in [
        (Code::Unavailable, "etcdserver: request timed out"),
        (Code::Unavailable, "etcdserver: request timed out, possibly due to previous leader failure"),
        (Code::Unavailable, "etcdserver: request timed out, possibly due to connection lost"),
        (Code::Unavailable, "etcdserver: leader changed"),
        (Code::Unavailable, "etcdserver: server stopped"),
        (Code::Unknown, "context deadline exceeded"),
        (Code::DeadlineExceeded, "context deadline exceeded"),
        (Code::Cancelled, "Timeout expired"),
        (Code::Internal, "Missing response message."),
        (Code::Unknown, "protocol error: missing grpc-status trailer"),
        (Code::Unavailable, ""),
        (Code::Ok, ""),
        (Code::InvalidArgument, "a proxy's own opinion"),
        (Code::ResourceExhausted, "a proxy's own limit"),
        (Code::NotFound, "no route"),
    ] {
        assert!(matches!(from_server(code, text), Class::Lost(_)), "{code:?} {text:?}");
    }
}

#[test]
fn definite_errors_are_matched_by_text() {
    let too_large = Error::Invalid(Invalid::TooLarge { bytes: 2_000_000, limit: 1_572_864 });
    let table = [
        ("etcdserver: mvcc: database space exceeded", Error::NoSpace),
        ("etcdserver: too many requests", Error::RateLimited),
        ("etcdserver: request is too large", too_large.clone()),
        ("grpc: received message larger than max (2097242 vs. 2097152)", too_large),
        (
            "etcdserver: too many operations in txn request",
            Error::Invalid(Invalid::TooManyOps { count: 129, limit: 128 }),
        ),
        ("etcdserver: duplicate key given in txn request", Error::Invalid(Invalid::DuplicateKey)),
        ("etcdserver: key is not provided", Error::Invalid(Invalid::EmptyKey)),
        ("etcdserver: key not found", Error::KeyNotFound),
        ("etcdserver: requested lease not found", Error::LeaseNotFound),
        ("etcdserver: lease already exists", Error::LeaseExists),
        (
            "etcdserver: too large lease TTL",
            Error::Invalid(Invalid::TtlTooLarge { ttl: std::time::Duration::from_secs(9_000_000_001) }),
        ),
        ("etcdserver: mvcc: required revision has been compacted", Error::Compacted { at: None }),
        ("etcdserver: mvcc: required revision is a future revision", Error::FutureRevision),
    ];
    for (text, expected) in table {
        for code in [Code::Unknown, Code::InvalidArgument, Code::OutOfRange, Code::Unavailable] {
            assert_eq!(from_server(code, text), Class::Answer(expected.clone()), "{code:?} {text}");
        }
    }
    assert!(matches!(from_server(Code::Unknown, "raft proposal dropped"), Class::Answer(Error::Busy(_))));
    assert!(matches!(
        from_server(Code::DataLoss, "etcdserver: corrupt cluster"),
        Class::Answer(Error::Corrupt(_))
    ));
}

#[test]
fn overlong_reply_is_no_compaction() {
    let text = "Error, decoded message length too large: found 70000000 bytes, the limit is: 67108864 bytes";
    assert!(matches!(from_server(Code::OutOfRange, text), Class::Overlong(_)));
}

#[test]
fn stale_token_differs_from_wrong_password() {
    for (code, text) in [
        (Code::Unauthenticated, "etcdserver: invalid auth token"),
        (Code::InvalidArgument, "etcdserver: user name is empty"),
        (Code::InvalidArgument, "etcdserver: revision of auth store is old"),
        (Code::Unknown, "auth: revision in header is old"),
    ] {
        assert!(matches!(from_server(code, text), Class::Stale(_)), "{text}");
    }
    for (code, text) in [
        (Code::InvalidArgument, "etcdserver: authentication failed, invalid user ID or password"),
        (Code::FailedPrecondition, "etcdserver: authentication is not enabled"),
        (Code::PermissionDenied, "etcdserver: permission denied"),
    ] {
        assert!(matches!(from_server(code, text), Class::Answer(Error::Denied(_))), "{text}");
    }
}

#[test]
fn member_without_leader_is_retried_elsewhere() {
    for text in ["etcdserver: no leader", "etcdserver: rpc not supported for learner"] {
        assert!(matches!(from_server(Code::Unavailable, text), Class::Refused(_)), "{text}");
    }
}

/// A web server has no page under the name of a call: it is no etcd, and the caller made no mistake.
#[test]
fn http_404_is_no_etcd_server() {
    let class = |code, status: u16| {
        from_server(code, &format!("grpc-status header missing, mapped from HTTP status code {status}"))
    };
    assert!(
        matches!(class(Code::Unimplemented, 404), Class::Refused(text) if text.contains("is that an etcd?"))
    );
    // A proxy between the client and etcd may have passed the request on.
    assert!(matches!(class(Code::Unavailable, 502), Class::Lost(_)));
    assert!(matches!(class(Code::Unknown, 500), Class::Lost(_)));
    let unknown = from_server(Code::Unimplemented, "unknown service etcdserverpb.KV");
    assert!(matches!(unknown, Class::Answer(Error::Invalid(_))));
}

#[test]
fn classifier_accepts_every_code_and_text() {
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..20_000 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let code = Code::from(i32::try_from(seed >> 58).unwrap());
        let text: String = seed.to_le_bytes().iter().map(|byte| char::from(*byte)).collect();
        let class = from_server(code, &text);
        assert!(
            matches!(class, Class::Lost(_)) || code == Code::Unimplemented,
            "noise became definite: {code:?} {text:?} {class:?}"
        );
    }
}
