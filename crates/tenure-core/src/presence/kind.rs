//! Kinds of presence: nodes, the instances of one service, the instances of all services.

use std::fmt;

use crate::id::{InstanceId, NodeId, ServiceName};
use crate::layout::{Key, Layout};
use crate::record::{InstanceValue, InvalidRecord, MemberRecord, Record};

/// Which keys are members, and how their values are read.
pub trait PresenceKind: Send + Sync + 'static {
    /// The id of a member.
    type Id: Ord + Clone + fmt::Debug + Send + Sync + 'static;
    /// The record that a member publishes.
    type Record: Clone + PartialEq + fmt::Debug + Send + Sync + 'static;

    /// Returns the id of the member that the key belongs to; none if the key is not of this kind.
    /// No two keys have the same id.
    fn id(&self, key: &[u8]) -> Option<Self::Id>;

    /// Reads a member's value.
    fn read(&self, id: &Self::Id, value: &bytes::Bytes) -> Result<Self::Record, InvalidRecord>;
}

/// The nodes of a namespace. The commands to a node are stored below its key and are skipped.
#[derive(Clone, Debug)]
pub struct NodePresence(pub Layout);

impl PresenceKind for NodePresence {
    type Id = NodeId;
    type Record = MemberRecord;

    fn id(&self, key: &[u8]) -> Option<NodeId> {
        match self.0.parse(key)? {
            Key::Node(node) => Some(node),
            _ => None,
        }
    }

    fn read(&self, _: &NodeId, value: &bytes::Bytes) -> Result<MemberRecord, InvalidRecord> {
        MemberRecord::decode(value)
    }
}

/// The instances of all services of a namespace.
#[derive(Clone, Debug)]
pub struct AllInstancePresence(pub Layout);

impl AllInstancePresence {
    fn parse(&self, key: &[u8]) -> Option<(ServiceName, InstanceId)> {
        match self.0.parse(key)? {
            Key::Registration(key) => key.as_instance(),
            _ => None,
        }
    }
}

impl PresenceKind for AllInstancePresence {
    type Id = (ServiceName, InstanceId);
    type Record = InstanceValue;

    fn id(&self, key: &[u8]) -> Option<(ServiceName, InstanceId)> {
        self.parse(key)
    }

    fn read(&self, _: &Self::Id, value: &bytes::Bytes) -> Result<InstanceValue, InvalidRecord> {
        InstanceValue::read(value)
    }
}

/// The instances of one service.
#[derive(Clone, Debug)]
pub struct InstancePresence {
    /// The namespace.
    pub layout: Layout,
    /// The name of the service.
    pub name: ServiceName,
}

impl PresenceKind for InstancePresence {
    type Id = InstanceId;
    type Record = InstanceValue;

    fn id(&self, key: &[u8]) -> Option<InstanceId> {
        match self.layout.parse(key)? {
            Key::Registration(key) => {
                key.as_instance().filter(|(name, _)| *name == self.name).map(|(_, instance)| instance)
            }
            _ => None,
        }
    }

    fn read(&self, _: &InstanceId, value: &bytes::Bytes) -> Result<InstanceValue, InvalidRecord> {
        InstanceValue::read(value)
    }
}
