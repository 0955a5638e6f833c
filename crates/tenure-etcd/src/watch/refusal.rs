//! Why the server cancelled a watcher, derived from the text that it gives.
//!
//! etcd has no codes here, only a compact revision and a text that changed between versions: 3.4
//! sends "permission denied" also for a token that merely expired. A refusal for lack of permission
//! is therefore verified before it is trusted.

use crate::message::watch::WatchResponse;

/// Why a watcher was cancelled, named by what is done next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// History up to this revision is gone: the consumer must list again.
    Compacted(i64),
    /// A missing permission, or an expired token: an ordinary read decides which.
    Suspect(String),
    /// The request itself is wrong and will stay so.
    Invalid(String),
    /// The server is in trouble: try another member.
    Retry(String),
}

impl Refusal {
    /// Parses a response with `canceled` set that this client did not request.
    pub(super) fn parse(response: &WatchResponse) -> Refusal {
        if response.compact_revision > 0 {
            return Refusal::Compacted(response.compact_revision);
        }
        let reason = response.cancel_reason.clone();
        let says = |word: &str| reason.contains(word);
        if says("permission denied") || says("auth") || says("user name") {
            Refusal::Suspect(reason)
        } else if says("range is empty") || says("duplicate") {
            Refusal::Invalid(reason)
        } else if reason.is_empty() {
            Refusal::Retry("the server cancelled a watch without a reason".to_owned())
        } else {
            Refusal::Retry(reason)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Refusal;
    use crate::message::watch::WatchResponse;

    #[test]
    fn known_refusals_have_next_steps() {
        let cases = [
            (7, "", Refusal::Compacted(7)),
            (7, "etcdserver: mvcc: required revision has been compacted", Refusal::Compacted(7)),
            (0, "rpc error: code = PermissionDenied desc = etcdserver: permission denied", suspect()),
            (0, "rpc error: code = Unauthenticated desc = etcdserver: invalid auth token", suspect()),
            (0, "rpc error: code = InvalidArgument desc = etcdserver: user name is empty", suspect()),
            (
                0,
                "rpc error: code = InvalidArgument desc = etcdserver: revision of auth store is old",
                suspect(),
            ),
            (0, "mvcc: watcher range is empty", Refusal::Invalid(String::new())),
            (0, "mvcc: duplicate watch ID provided on the WatchStream", Refusal::Invalid(String::new())),
            (0, "etcdserver: no leader", Refusal::Retry(String::new())),
            (0, "", Refusal::Retry(String::new())),
        ];
        for (compact_revision, reason, wanted) in cases {
            let response = WatchResponse {
                canceled: true,
                compact_revision,
                cancel_reason: reason.to_owned(),
                ..WatchResponse::default()
            };
            let seen = Refusal::parse(&response);
            assert_eq!(
                std::mem::discriminant(&seen),
                std::mem::discriminant(&wanted),
                "{reason:?}: {seen:?}"
            );
        }
    }

    fn suspect() -> Refusal {
        Refusal::Suspect(String::new())
    }
}
