//! Two sides that take turns in one run, so that a neighbour who takes the machine for a while takes it from both.

use super::report::ResultRow;
use super::sample::{Sample, median};
use super::store_under_test::StoreUnderTest;
use crate::failure::BenchFailure;

/// Who is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    Ours,
    /// The program written by hand, with bare calls.
    Reference,
}

/// Whose turn it is: each begins in every other round.
pub(super) fn order(round: usize) -> [Side; 2] {
    if round.is_multiple_of(2) { [Side::Ours, Side::Reference] } else { [Side::Reference, Side::Ours] }
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
    pub(super) ours: Turns,
    pub(super) theirs: Turns,
}

impl Contest {
    /// Lets both sides take their turns, each with the number of its round. Where there is no reference, ours plays alone.
    pub(super) async fn hold(
        place: &StoreUnderTest,
        rounds: usize,
        turn: impl AsyncFn(Side, usize) -> Result<Sample, BenchFailure>,
    ) -> Result<Contest, BenchFailure> {
        let mut contest = Contest::default();
        for round in 0..rounds {
            for side in order(round) {
                let turns = match (side, &place.raw) {
                    (Side::Ours, _) => &mut contest.ours,
                    (Side::Reference, Some(_)) => &mut contest.theirs,
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
        let theirs = place.raw.as_ref().map(|_| row(reference, &self.theirs));
        std::iter::once(row(place.engine, &self.ours)).chain(theirs).collect()
    }

    /// The median over the rounds of our rate by theirs: the two of a round had the same neighbours.
    pub(super) fn rate(&self) -> f64 {
        let pairs = self.ours.samples.iter().zip(&self.theirs.samples);
        median(pairs.map(|(ours, theirs)| ours.ops_s() / theirs.ops_s().max(1e-9)))
    }
}
