//! Measuring: how long each of many things took, and all of them together.

use std::time::{Duration, Instant};

use futures_util::{StreamExt, stream};

use crate::failure::BenchFailure;

/// What was measured.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    /// Sorted.
    took: Vec<Duration>,
    pub(super) total: Duration,
    /// How many things were done; more than `took` where one request does many.
    pub(super) count: usize,
}

impl Sample {
    /// What one measurement of `count` things took; more of one kind than were timed one by one.
    pub(super) fn new(mut took: Vec<Duration>, total: Duration, count: usize) -> Sample {
        took.sort();
        Sample { took, total, count }
    }

    /// Several runs of one measurement as one.
    pub(super) fn joined(samples: &[Sample]) -> Sample {
        let took = samples.iter().flat_map(|sample| sample.took.iter().copied()).collect();
        let total = samples.iter().map(|sample| sample.total).sum();
        Sample::new(took, total, samples.iter().map(|sample| sample.count).sum())
    }

    pub(super) fn p50_ms(&self) -> Option<f64> {
        self.percentile_ms(50)
    }

    pub(super) fn p99_ms(&self) -> Option<f64> {
        self.percentile_ms(99)
    }

    pub(super) fn min_ms(&self) -> Option<f64> {
        self.took.first().map(|&took| ms(took))
    }

    pub(super) fn ops_s(&self) -> f64 {
        // A sample is never made in no time, but a division by zero would not be JSON.
        f64::from(u32::try_from(self.count).unwrap_or(u32::MAX)) / self.total.as_secs_f64().max(1e-9)
    }

    fn percentile_ms(&self, percent: usize) -> Option<f64> {
        let index = (self.took.len() * percent).div_ceil(100).max(1) - 1;
        self.took.get(index).map(|&took| ms(took))
    }
}

pub(super) fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// The middle one of several figures; the lower of the two in the middle.
pub(super) fn median(figures: impl IntoIterator<Item = f64>) -> f64 {
    let mut figures: Vec<f64> = figures.into_iter().collect();
    figures.sort_by(f64::total_cmp);
    figures.get((figures.len().max(1) - 1) / 2).copied().unwrap_or(f64::NAN)
}

/// How much is done, and for how long at most.
#[derive(Clone, Copy, Debug)]
pub(super) struct WorkAmount {
    pub(super) n: usize,
    pub(super) span_max: Duration,
}

impl WorkAmount {
    /// A part of it, and never nothing.
    pub(super) fn part(self, divisor: usize) -> WorkAmount {
        WorkAmount { n: (self.n / divisor).max(1), ..self }
    }

    /// As much as several of it.
    pub(super) fn times(self, factor: usize) -> WorkAmount {
        WorkAmount { n: self.n.saturating_mul(factor), ..self }
    }
}

/// Does things one after the other.
pub(super) async fn one_at_a_time<F, Fut>(effort: WorkAmount, act: F) -> Result<Sample, BenchFailure>
where
    F: Fn(usize) -> Fut,
    Fut: Future<Output = Result<(), BenchFailure>>,
{
    let begin = Instant::now();
    let mut took = Vec::with_capacity(effort.n);
    while took.len() < effort.n && begin.elapsed() < effort.span_max {
        let before = Instant::now();
        act(took.len()).await?;
        took.push(before.elapsed());
    }
    let count = took.len();
    Ok(Sample::new(took, begin.elapsed(), count))
}

/// Does things with `width` of them in flight at any time, from one task.
pub(super) async fn in_flight<F, Fut>(
    effort: WorkAmount,
    width: usize,
    act: F,
) -> Result<Sample, BenchFailure>
where
    F: Fn(usize) -> Fut,
    Fut: Future<Output = Result<(), BenchFailure>>,
{
    let begin = Instant::now();
    let timed = |n| {
        let acting = act(n);
        async move {
            let before = Instant::now();
            acting.await.map(|()| before.elapsed())
        }
    };
    let in_time = (0..effort.n).take_while(|_| begin.elapsed() < effort.span_max);
    let mut running = stream::iter(in_time.map(timed)).buffer_unordered(width);
    let mut took = Vec::with_capacity(effort.n);
    while let Some(done) = running.next().await {
        took.push(done?);
    }
    let count = took.len();
    Ok(Sample::new(took, begin.elapsed(), count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_come_from_sorted_figures() {
        let took = (1..=100).rev().map(Duration::from_millis).collect();
        let sample = Sample::new(took, Duration::from_secs(2), 100);
        assert_eq!((sample.min_ms(), sample.p50_ms(), sample.p99_ms()), (Some(1.0), Some(50.0), Some(99.0)));
        assert_eq!(sample.ops_s(), 50.0);
        let one = Sample::new(vec![Duration::from_millis(7)], Duration::from_secs(1), 1);
        assert_eq!((one.p50_ms(), one.p99_ms()), (Some(7.0), Some(7.0)));
        let none = Sample::new(vec![], Duration::ZERO, 0);
        assert_eq!(none.p50_ms(), None);
        assert_eq!(none.ops_s(), 0.0);
    }

    #[test]
    fn median_is_middle_figure() {
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), 2.0);
        assert!(median([]).is_nan());
    }
}
