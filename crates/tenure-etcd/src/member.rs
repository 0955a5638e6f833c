//! The servers themselves: status, members, alarms.

use crate::call::{Call, CallKind};
use crate::classify::RequestSize;
use crate::client::Client;
use crate::error::{Error, Invalid};
use crate::message::cluster as message;
use crate::version::ServerVersion;

/// The status that the selected member reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The cluster it belongs to.
    pub cluster_id: u64,
    /// The member itself.
    pub member_id: u64,
    /// The leader it knows, if any.
    pub leader: Option<u64>,
    /// Its version, when it can be read.
    pub version: Option<ServerVersion>,
    /// Its version, as written.
    pub version_text: String,
    /// Its revision, which may lag.
    pub revision: i64,
    /// Bytes of the database on disk.
    pub db_bytes: i64,
    /// Bytes of it in use.
    pub db_bytes_in_use: i64,
    /// The errors that it reports.
    pub errors: Vec<String>,
    /// It follows without a vote and serves no linearizable reads.
    pub is_learner: bool,
}

/// A member of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterMember {
    /// Its id.
    pub id: u64,
    /// Its name; empty until it has started.
    pub name: String,
    /// Where other members find it.
    pub peer_urls: Vec<String>,
    /// Where clients find it.
    pub client_urls: Vec<String>,
    /// It follows without a vote.
    pub is_learner: bool,
}

/// An alarm, during which the cluster refuses writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alarm {
    /// A member's database is full.
    NoSpace {
        /// Which.
        member: u64,
    },
    /// A member's data differs from the others'.
    Corrupt {
        /// Which.
        member: u64,
    },
    /// An alarm that this client does not know.
    Other {
        /// Which member.
        member: u64,
        /// The number on the wire.
        kind: i32,
    },
}

impl Client {
    /// Reads the status of the selected member.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] when no member replied in time.
    ///
    /// # Cancellation
    ///
    /// Safe: nothing was changed.
    pub async fn status(&self) -> Result<Status, Error> {
        let call = Call {
            path: "/etcdserverpb.Maintenance/Status",
            kind: CallKind::LocalRead,
            message: message::StatusRequest {},
            size: RequestSize::default(),
        };
        let answer: message::StatusResponse = self.endpoints().call(call).await?;
        let header = answer.header.unwrap_or_default();
        Ok(Status {
            cluster_id: header.cluster_id,
            member_id: header.member_id,
            leader: (answer.leader != 0).then_some(answer.leader),
            version: ServerVersion::parse(&answer.version),
            version_text: answer.version,
            revision: header.revision,
            db_bytes: answer.db_size,
            db_bytes_in_use: answer.db_size_in_use,
            errors: answer.errors,
            is_learner: answer.is_learner,
        })
    }

    /// The members of the cluster.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] when no member replied in time.
    ///
    /// # Cancellation
    ///
    /// Safe: nothing was changed.
    pub async fn members(&self) -> Result<Vec<ClusterMember>, Error> {
        self.list_members(false).await
    }

    /// Waits until the selected member has applied everything that happened before this call. Every
    /// user may do it; before 3.5 it waits for nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] when no member replied in time.
    ///
    /// # Cancellation
    ///
    /// Safe: nothing was changed.
    pub async fn catch_up(&self) -> Result<(), Error> {
        self.list_members(true).await.map(drop)
    }

    async fn list_members(&self, linearizable: bool) -> Result<Vec<ClusterMember>, Error> {
        let call = Call {
            path: "/etcdserverpb.Cluster/MemberList",
            kind: CallKind::LocalRead,
            message: message::MemberListRequest { linearizable },
            size: RequestSize::default(),
        };
        let answer: message::MemberListResponse = self.endpoints().call(call).await?;
        Ok(answer
            .members
            .into_iter()
            .map(|member| ClusterMember {
                id: member.id,
                name: member.name,
                peer_urls: member.peer_urls,
                client_urls: member.client_urls,
                is_learner: member.is_learner,
            })
            .collect())
    }

    /// Whether etcd's own gRPC proxy answers in place of a member. Every member has the health service of gRPC, the proxy has not.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] when no member replied in time.
    ///
    /// # Cancellation
    ///
    /// Safe: nothing was changed.
    pub async fn is_grpc_proxy(&self) -> Result<bool, Error> {
        let call = Call {
            path: "/grpc.health.v1.Health/Check",
            kind: CallKind::LocalRead,
            message: message::HealthCheckRequest {},
            size: RequestSize::default(),
        };
        match self.endpoints().call::<_, message::HealthCheckResponse>(call).await {
            Ok(_) => Ok(false),
            Err(Error::Invalid(Invalid::UnknownCall(_))) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// The active alarms.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] when no member replied in time.
    ///
    /// # Cancellation
    ///
    /// Safe: nothing was changed.
    pub async fn alarms(&self) -> Result<Vec<Alarm>, Error> {
        let call = Call {
            path: "/etcdserverpb.Maintenance/Alarm",
            kind: CallKind::LocalRead,
            message: message::AlarmRequest { action: 0, member_id: 0, alarm: 0 },
            size: RequestSize::default(),
        };
        let answer: message::AlarmResponse = self.endpoints().call(call).await?;
        Ok(answer
            .alarms
            .into_iter()
            .map(|alarm| match alarm.alarm {
                1 => Alarm::NoSpace { member: alarm.member_id },
                2 => Alarm::Corrupt { member: alarm.member_id },
                kind => Alarm::Other { member: alarm.member_id, kind },
            })
            .collect())
    }
}
