//! Two sides that take turns in one run, so that other load on the machine slows down both.

use super::report::ResultRow;
use super::sample::{Sample, median};
use super::store_under_test::StoreUnderTest;
use crate::failure::BenchFailure;

/// Which program is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    Tenure,
    /// The reference program with bare calls.
    Reference,
}

/// Which side is next: each begins in every other round.
pub(super) fn order(round: usize) -> [Side; 2] {
    if round.is_multiple_of(2) { [Side::Tenure, Side::Reference] } else { [Side::Reference, Side::Tenure] }
}

/// The turns of one side.
#[derive(Default)]
pub(super) struct Turns {
    pub(super) samples: Vec<Sample>,
    /// What the server counted.
    pub(super) requests: u64,
}

/// The turns of both sides; of one where there is no server.
#[derive(Default)]
pub(super) struct Contest {
    pub(super) tenure: Turns,
    pub(super) baseline: Turns,
}

impl Contest {
    /// Lets both sides take their turns, each with the number of its round. Where there is no
    /// reference, Tenure runs alone.
    pub(super) async fn hold(
        place: &StoreUnderTest,
        rounds: usize,
        turn: impl AsyncFn(Side, usize) -> Result<Sample, BenchFailure>,
    ) -> Result<Contest, BenchFailure> {
        let mut contest = Contest::default();
        for round in 0..rounds {
            for side in order(round) {
                let turns = match (side, &place.raw) {
                    (Side::Tenure, _) => &mut contest.tenure,
                    (Side::Reference, Some(_)) => &mut contest.baseline,
                    (Side::Reference, None) => continue,
                };
                let before = place.handled().await;
                turns.samples.push(turn(side, round).await?);
                turns.requests += place.handled().await.saturating_sub(before);
            }
        }
        Ok(contest)
    }

    /// The rows of both sides.
    pub(super) fn rows(
        &self,
        workload: &'static str,
        place: &StoreUnderTest,
        reference: &'static str,
    ) -> Vec<ResultRow> {
        let row = |engine, turns: &Turns| ResultRow {
            requests: place.counter.as_ref().map(|_| turns.requests),
            ..ResultRow::new(workload, engine, &Sample::joined(&turns.samples))
        };
        let baseline = place.raw.as_ref().map(|_| row(reference, &self.baseline));
        std::iter::once(row(place.engine, &self.tenure)).chain(baseline).collect()
    }

    /// The median over the rounds of Tenure's rate divided by the reference's: both turns of a
    /// round ran beside the same other load.
    pub(super) fn rate(&self) -> f64 {
        let pairs = self.tenure.samples.iter().zip(&self.baseline.samples);
        median(pairs.map(|(tenure, baseline)| tenure.ops_s() / baseline.ops_s().max(1e-9)))
    }
}
