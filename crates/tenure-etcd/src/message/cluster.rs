//! Messages about the servers themselves: status, members, alarms.

use crate::message::header::{ResponseHeader, headed};

#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(crate) struct StatusRequest {}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct StatusResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(string, tag = "2")]
    pub(crate) version: String,
    #[prost(int64, tag = "3")]
    pub(crate) db_size: i64,
    /// The member that leads; 0 when this member knows none.
    #[prost(uint64, tag = "4")]
    pub(crate) leader: u64,
    #[prost(uint64, tag = "5")]
    pub(crate) raft_index: u64,
    #[prost(uint64, tag = "6")]
    pub(crate) raft_term: u64,
    #[prost(uint64, tag = "7")]
    pub(crate) raft_applied_index: u64,
    #[prost(string, repeated, tag = "8")]
    pub(crate) errors: Vec<String>,
    #[prost(int64, tag = "9")]
    pub(crate) db_size_in_use: i64,
    #[prost(bool, tag = "10")]
    pub(crate) is_learner: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(crate) struct MemberListRequest {
    /// Known from 3.5 on; 3.4 ignores it.
    #[prost(bool, tag = "1")]
    pub(crate) linearizable: bool,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct Member {
    #[prost(uint64, tag = "1")]
    pub(crate) id: u64,
    #[prost(string, tag = "2")]
    pub(crate) name: String,
    #[prost(string, repeated, tag = "3")]
    pub(crate) peer_urls: Vec<String>,
    #[prost(string, repeated, tag = "4")]
    pub(crate) client_urls: Vec<String>,
    #[prost(bool, tag = "5")]
    pub(crate) is_learner: bool,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct MemberListResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) members: Vec<Member>,
}

#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(crate) struct AlarmRequest {
    /// 0 get, 1 activate, 2 deactivate.
    #[prost(int32, tag = "1")]
    pub(crate) action: i32,
    #[prost(uint64, tag = "2")]
    pub(crate) member_id: u64,
    /// 0 any, 1 no space, 2 corrupt.
    #[prost(int32, tag = "3")]
    pub(crate) alarm: i32,
}

#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(crate) struct AlarmMember {
    #[prost(uint64, tag = "1")]
    pub(crate) member_id: u64,
    #[prost(int32, tag = "2")]
    pub(crate) alarm: i32,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct AlarmResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) alarms: Vec<AlarmMember>,
}

/// Of the health service of gRPC, which etcd has beside its own.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(crate) struct HealthCheckRequest {}

#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(crate) struct HealthCheckResponse {
    /// The service has no header; the number of this field is none of its own.
    #[prost(message, optional, tag = "1000")]
    pub(crate) header: Option<ResponseHeader>,
}

headed!(StatusResponse, MemberListResponse, AlarmResponse, HealthCheckResponse);
