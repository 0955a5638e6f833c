//! The header that every etcd answer carries: which cluster and member spoke, and at which revision.

/// Header of every response.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(crate) struct ResponseHeader {
    #[prost(uint64, tag = "1")]
    pub(crate) cluster_id: u64,
    #[prost(uint64, tag = "2")]
    pub(crate) member_id: u64,
    #[prost(int64, tag = "3")]
    pub(crate) revision: i64,
    #[prost(uint64, tag = "4")]
    pub(crate) raft_term: u64,
}

/// A response with a header that is checked before anything else of it is trusted.
pub(crate) trait Headed {
    /// The header, which some servers leave out of cancelled streams.
    fn header(&self) -> Option<&ResponseHeader>;
}

macro_rules! headed {
    ($($message:ty),+ $(,)?) => {
        $(impl crate::message::header::Headed for $message {
            fn header(&self) -> Option<&crate::message::header::ResponseHeader> {
                self.header.as_ref()
            }
        })+
    };
}
pub(crate) use headed;
