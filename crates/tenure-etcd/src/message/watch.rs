//! Messages of the `Watch` service: one stream in both directions for any number of watchers.

use bytes::Bytes;

use crate::message::header::{ResponseHeader, headed};
use crate::message::kv::KeyValue;

/// Where the one method of the service lives.
pub(crate) const WATCH_PATH: &str = "/etcdserverpb.Watch/Watch";

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct WatchRequest {
    #[prost(oneof = "WatchRequestKind", tags = "1, 2, 3")]
    pub(crate) request: Option<WatchRequestKind>,
}

impl WatchRequest {
    /// Whether a live server replies to this without delay. It replies to a cancel only if there
    /// was something to cancel, and to a progress request only if no watcher is behind.
    pub(crate) fn is_answered_at_once(&self) -> bool {
        matches!(self.request, Some(WatchRequestKind::Create(_)))
    }
}

#[derive(Clone, PartialEq, Eq, prost::Oneof)]
pub(crate) enum WatchRequestKind {
    #[prost(message, tag = "1")]
    Create(WatchCreateRequest),
    #[prost(message, tag = "2")]
    Cancel(WatchCancelRequest),
    #[prost(message, tag = "3")]
    Progress(WatchProgressRequest),
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct WatchCreateRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) range_end: Bytes,
    /// First revision wanted; 0 means whatever comes after the server's present.
    #[prost(int64, tag = "3")]
    pub(crate) start_revision: i64,
    #[prost(bool, tag = "4")]
    pub(crate) progress_notify: bool,
    #[prost(bool, tag = "6")]
    pub(crate) prev_kv: bool,
    /// Chosen by us, unique on the stream; 0 would let the server choose.
    #[prost(int64, tag = "7")]
    pub(crate) watch_id: i64,
    #[prost(bool, tag = "8")]
    pub(crate) fragment: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(crate) struct WatchCancelRequest {
    #[prost(int64, tag = "1")]
    pub(crate) watch_id: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(crate) struct WatchProgressRequest {}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct WatchResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    /// -1 for progress that speaks for the whole stream, and for a create that was refused.
    #[prost(int64, tag = "2")]
    pub(crate) watch_id: i64,
    #[prost(bool, tag = "3")]
    pub(crate) created: bool,
    #[prost(bool, tag = "4")]
    pub(crate) canceled: bool,
    #[prost(int64, tag = "5")]
    pub(crate) compact_revision: i64,
    #[prost(string, tag = "6")]
    pub(crate) cancel_reason: String,
    /// More events of this response follow in the next message.
    #[prost(bool, tag = "7")]
    pub(crate) fragment: bool,
    #[prost(message, repeated, tag = "11")]
    pub(crate) events: Vec<WireEvent>,
}

/// A change as it travels.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct WireEvent {
    /// 0 put, 1 delete.
    #[prost(int32, tag = "1")]
    pub(crate) kind: i32,
    #[prost(message, optional, tag = "2")]
    pub(crate) kv: Option<KeyValue>,
    #[prost(message, optional, tag = "3")]
    pub(crate) prev_kv: Option<KeyValue>,
}

headed!(WatchResponse);
