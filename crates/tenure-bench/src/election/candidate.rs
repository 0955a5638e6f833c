//! Candidates: through the library, or a reference program with a key and a watch of the key before
//! it.

use tenure::election::{Election, Elections, Term};
use tenure::session::Session;
use tenure::store::{Store, StoreUrl};
use tenure_core::id::Namespace;

use crate::failure::BenchFailure;
use crate::lock::{QueuePosition, ReferenceQueue};
use crate::raw::Raw;
use crate::store_under_test::{StoreUnderTest, close_session, open_session};
use crate::workload::wrong;

/// As many processes as a small cluster has.
const PARTIES: usize = 3;

/// The equivalent of this many processes: each has its own connection, session and lease.
pub(super) enum CandidateProcesses {
    Tenure { stores: Vec<Store>, sessions: Vec<Session> },
    Reference { raw: Raw, lease: i64 },
}

/// One of those processes, which may have any number of candidates.
#[derive(Clone)]
pub(super) enum CandidateProcess {
    Tenure(Election),
    Reference(ReferenceQueue),
}

/// The leader.
pub(super) enum Leader {
    Tenure(Box<Term>),
    Reference(ReferenceQueue, QueuePosition),
}

impl CandidateProcesses {
    pub(super) async fn tenure(
        place: &StoreUnderTest,
    ) -> Result<(CandidateProcesses, Vec<CandidateProcess>), BenchFailure> {
        let namespace = Namespace::parse(place.namespace()).map_err(|error| wrong(error.to_string()))?;
        let (mut stores, mut sessions, mut parties) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..PARTIES {
            // An embedded store has no connections that could be several.
            let store = match &place.url {
                StoreUrl::Etcd { .. } => {
                    let store = Store::open(&place.url).await?;
                    stores.push(store.clone());
                    store
                }
                StoreUrl::Memory | StoreUrl::File(_) => place.store.clone(),
            };
            let session = open_session(&store)?;
            let election = Elections::new(&session, &namespace).election("tenure");
            parties.push(CandidateProcess::Tenure(election));
            sessions.push(session);
        }
        Ok((CandidateProcesses::Tenure { stores, sessions }, parties))
    }

    pub(super) async fn reference(
        place: &StoreUnderTest,
        raw: &Raw,
    ) -> Result<(CandidateProcesses, Vec<CandidateProcess>), BenchFailure> {
        let lease = ReferenceQueue::lease(raw).await?;
        let queue = ReferenceQueue::new(raw, &place.prefix, "raw-elected", lease);
        let mut parties = Vec::new();
        for _ in 0..PARTIES {
            parties.push(CandidateProcess::Reference(queue.through(&place.connect_raw().await?)));
        }
        Ok((CandidateProcesses::Reference { raw: raw.clone(), lease }, parties))
    }

    /// Where the candidates' keys are.
    pub(super) fn line(&self, place: &StoreUnderTest) -> String {
        match self {
            CandidateProcesses::Tenure { .. } => format!("{}elections/tenure/", place.prefix),
            CandidateProcesses::Reference { .. } => format!("{}locks/raw-elected/", place.prefix),
        }
    }

    /// Leaves nothing behind.
    pub(super) async fn close(self) -> Result<(), BenchFailure> {
        match self {
            CandidateProcesses::Tenure { stores, sessions } => {
                for session in &sessions {
                    close_session(session).await?;
                }
                for store in &stores {
                    store.close().await;
                }
                Ok(())
            }
            CandidateProcesses::Reference { raw, lease } => ReferenceQueue::end(&raw, lease).await,
        }
    }
}

impl CandidateProcess {
    /// Enters the queue, and waits until it leads.
    pub(super) async fn campaign(self) -> Result<Leader, BenchFailure> {
        match self {
            CandidateProcess::Tenure(election) => {
                let term = election.campaign().value("here").await;
                Ok(Leader::Tenure(Box::new(term.map_err(|error| wrong(format!("not elected: {error}")))?)))
            }
            CandidateProcess::Reference(queue) => {
                let queue = queue.another();
                let stand = queue.enter().await?;
                queue.wait(&stand).await?;
                Ok(Leader::Reference(queue, stand))
            }
        }
    }
}

impl Leader {
    pub(super) async fn resign(self) -> Result<(), BenchFailure> {
        match self {
            Leader::Tenure(term) => {
                term.resign().await.map_err(|error| wrong(format!("not resigned: {error}")))
            }
            Leader::Reference(queue, stand) => queue.leave(stand).await,
        }
    }
}
