//! One turn: a queue of candidates, and leaders that resign one after the other and enter the queue
//! again.

use std::time::Instant;

use tokio::task::JoinSet;

use super::ElectionSize;
use super::candidate::{CandidateProcess, CandidateProcesses, Leader};
use super::probe::{CandidateWatch, SETTLED_AFTER, StoreProbe};
use crate::failure::BenchFailure;
use crate::sample::Sample;
use crate::store_under_test::StoreUnderTest;
use crate::turns::Side;
use crate::workload::wrong;

/// What one turn showed.
pub(super) struct ElectionTurn {
    /// From before a leader resigned until the next one led.
    pub(super) changes: Sample,
    /// One transaction and one delivery to a watch, one after the other.
    pub(super) store: Sample,
}

impl ElectionTurn {
    pub(super) async fn take(
        place: &StoreUnderTest,
        side: Side,
        size: ElectionSize,
    ) -> Result<ElectionTurn, BenchFailure> {
        let (parties, each) = match (side, &place.raw) {
            (Side::Tenure, _) => CandidateProcesses::tenure(place).await?,
            (Side::Reference, Some(raw)) => CandidateProcesses::reference(place, raw).await?,
            (Side::Reference, None) => return Err(wrong("there is no reference")),
        };
        let onlooker = CandidateWatch::open(&place.store, &parties.line(place)).await?;
        let probe = StoreProbe::open(&place.store, &place.prefix).await?;
        let contend = CandidateGroup { parties: each, next: 0, candidates: JoinSet::new(), onlooker };
        // In a task of its own: otherwise the waiting thread would be woken for each step.
        let turn = tokio::spawn(contend.changes(probe, size)).await;
        parties.close().await?;
        turn.map_err(|error| wrong(format!("a turn panicked: {error}")))?
    }
}

/// All candidates.
struct CandidateGroup {
    parties: Vec<CandidateProcess>,
    /// How many candidates have entered so far.
    next: usize,
    candidates: JoinSet<(Result<Leader, BenchFailure>, Instant)>,
    onlooker: CandidateWatch,
}

impl CandidateGroup {
    async fn changes(
        mut self,
        mut probe: StoreProbe,
        size: ElectionSize,
    ) -> Result<ElectionTurn, BenchFailure> {
        for _ in 0..size.candidates {
            self.enter().await?;
        }
        let (mut leader, _) = self.elected().await?;
        tokio::time::sleep(SETTLED_AFTER).await;
        let begin = Instant::now();
        let mut took = Vec::with_capacity(size.changes);
        for _ in 0..size.changes {
            probe.put().await?;
            let before = Instant::now();
            let (resigned, elected) = tokio::join!(leader.resign(), self.elected());
            resigned?;
            let (next, at) = elected?;
            took.push(at.duration_since(before));
            leader = next;
            self.enter().await?;
        }
        let total = begin.elapsed();
        self.candidates.shutdown().await;
        let count = took.len();
        Ok(ElectionTurn { changes: Sample::new(took, total, count), store: probe.sample() })
    }

    /// Adds one more candidate, of another process than the last; it is in the queue when this
    /// returns.
    async fn enter(&mut self) -> Result<(), BenchFailure> {
        let party = self.parties[self.next % self.parties.len()].clone();
        self.next += 1;
        self.candidates.spawn(async move {
            let elected = party.campaign().await;
            (elected, Instant::now())
        });
        self.onlooker.came(self.next).await
    }

    /// The next leader, and since when it leads.
    async fn elected(&mut self) -> Result<(Leader, Instant), BenchFailure> {
        let (elected, at) = self
            .candidates
            .join_next()
            .await
            .ok_or_else(|| wrong("no candidate is left to lead"))?
            .map_err(|error| wrong(format!("a candidate panicked: {error}")))?;
        Ok((elected?, at))
    }
}
