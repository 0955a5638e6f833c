//! Messages of the keep-alive stream of the `Lease` service.

use crate::message::header::{ResponseHeader, headed};

/// Where the stream lives.
pub(crate) const KEEP_ALIVE_PATH: &str = "/etcdserverpb.Lease/LeaseKeepAlive";

#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(crate) struct LeaseKeepAliveRequest {
    #[prost(int64, tag = "1")]
    pub(crate) id: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(crate) struct LeaseKeepAliveResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(int64, tag = "2")]
    pub(crate) id: i64,
    /// Seconds granted anew; 0 when there is no such lease.
    #[prost(int64, tag = "3")]
    pub(crate) ttl: i64,
}

headed!(LeaseKeepAliveResponse);
