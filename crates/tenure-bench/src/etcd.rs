//! The etcd engine beside hand-written calls: the same work, turn by turn, on the same server in the same run.

use std::time::Instant;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use tenure::store::StoreUrl;

use super::metrics::Counter;
use super::report::{BenchReport, Found, Goal, GoalResult, ResultRow};
use super::sample::{Sample, WorkAmount, in_flight, median, one_at_a_time};
use super::workload::{Bench, wrong};
use crate::failure::BenchFailure;
use crate::internal::VALUE;
use crate::raw::{BoxError, Raw};

/// Turns for each side. Many short ones: a neighbour that takes the machine for a second spoils a few pairs and not the median.
const ROUNDS: usize = 15;

/// Puts in flight for which a turn is as long as one of single puts. A turn of a wider workload is
/// longer in proportion: all have as many waves then, and the beginning and the end, when fewer are
/// in flight, weigh the same.
const WIDTH_OF_A_TURN: usize = 64;

/// Keys in the bulk workload, and claims in one batch, as the contract's goals name them.
const BULK: usize = 10_000;
const CLAIMS: usize = 100;

/// Operations in one transaction, and transactions in flight: the same that the session does.
const TXN_OPS: usize = 128;
const TXNS_IN_FLIGHT: usize = 4;

/// Both sides of the comparison.
pub(super) struct Sides<'a> {
    pub(super) tenure: Bench<'a>,
    pub(super) raw: &'a Raw,
    pub(super) url: &'a StoreUrl,
}

/// A workload that both sides can do.
#[derive(Clone, Copy)]
enum EtcdWorkload {
    Put,
    PutInFlight(usize),
    Get,
    Bulk,
    Batches,
    OneByOne,
    Watch,
}

impl Sides<'_> {
    /// Runs every workload on both sides, and judges.
    pub(super) async fn run(&self, effort: WorkAmount, report: &mut BenchReport) -> Result<(), BenchFailure> {
        let effort = effort.part(ROUNDS);
        let rate = |sample: &Sample| sample.ops_s();
        for (name, work) in [
            ("put", EtcdWorkload::Put),
            ("put_64", EtcdWorkload::PutInFlight(64)),
            ("put_256", EtcdWorkload::PutInFlight(256)),
        ] {
            let pair = self.pair(name, work, effort, report).await?;
            let ratio = pair.median_of(rate);
            report.goal(&GoalResult::new(
                (name, "etcd", "raw"),
                "ops_s",
                Found::Ratio(ratio),
                Goal::AtLeast(0.95),
            ))?;
        }
        self.pair("get", EtcdWorkload::Get, effort, report).await?;
        let bulk = self.pair("put_10000_in_txns", EtcdWorkload::Bulk, effort, report).await?;
        let ratio = bulk.median_of(|sample| {
            sample.total.as_secs_f64() / f64::from(u32::try_from(sample.count).unwrap_or(1))
        });
        report.goal(&GoalResult::new(
            ("put_10000_in_txns", "etcd", "raw"),
            "total_s",
            Found::Ratio(ratio),
            Goal::AtMost(1.2),
        ))?;
        let batches = self.pair("claims_batch_100", EtcdWorkload::Batches, effort, report).await?;
        let single = self.pair("claims_one_by_one", EtcdWorkload::OneByOne, effort, report).await?;
        let ratio = median(batches.tenure.iter().map(rate)) / median(single.tenure.iter().map(rate));
        let names = ("claims_batch_100", "etcd", "claims_one_by_one");
        report.goal(&GoalResult::new(names, "ops_s", Found::Ratio(ratio), Goal::AtLeast(10.0)))?;
        let watch = self.pair("watch", EtcdWorkload::Watch, effort.part(4), report).await?;
        let p50 = |sample: &Sample| sample.p50_ms().unwrap_or(f64::NAN);
        let more = median(watch.tenure.iter().zip(&watch.raw).map(|(tenure, raw)| p50(tenure) - p50(raw)));
        report.goal(&GoalResult::new(
            ("watch", "etcd", "raw"),
            "p50_more_than_raw",
            Found::Figure(more),
            Goal::AtMost(0.1),
        ))
    }

    /// Runs one workload, turn by turn, each side beginning in every other round.
    async fn pair(
        &self,
        name: &'static str,
        work: EtcdWorkload,
        effort: WorkAmount,
        report: &mut BenchReport,
    ) -> Result<Pair, BenchFailure> {
        let counter = Counter::of(self.url);
        let mut pair = Pair { tenure: Vec::new(), raw: Vec::new() };
        let mut requests = [Some(0), Some(0)];
        for round in 0..ROUNDS * 2 {
            let is_tenure = (round % 2 == 0) == (round / 2 % 2 == 0);
            let before = handled(counter.as_ref()).await;
            let sample = if is_tenure {
                self.measure_tenure(work, effort).await?
            } else {
                self.raw(work, effort).await?
            };
            let after = handled(counter.as_ref()).await;
            let side = usize::from(!is_tenure);
            requests[side] =
                requests[side].zip(after.zip(before)).map(|(sum, (after, before))| sum + (after - before));
            if is_tenure { pair.tenure.push(sample) } else { pair.raw.push(sample) }
        }
        for (engine, samples, requests) in
            [("etcd", &pair.tenure, requests[0]), ("raw", &pair.raw, requests[1])]
        {
            let row = ResultRow::new(name, engine, &Sample::joined(samples));
            report.row(&ResultRow { requests, ..row })?;
        }
        Ok(pair)
    }

    async fn measure_tenure(&self, work: EtcdWorkload, effort: WorkAmount) -> Result<Sample, BenchFailure> {
        match work {
            EtcdWorkload::Put => self.tenure.put(effort).await,
            EtcdWorkload::PutInFlight(width) => {
                self.tenure.put_in_flight(effort.times(width.div_ceil(WIDTH_OF_A_TURN)), width).await
            }
            EtcdWorkload::Get => self.tenure.get(effort).await,
            EtcdWorkload::Bulk => self.tenure.bulk(BULK.min(effort.n * ROUNDS)).await,
            EtcdWorkload::Batches => self.tenure.claims_in_batches(effort, CLAIMS).await,
            EtcdWorkload::OneByOne => self.tenure.claims_one_by_one(effort).await,
            EtcdWorkload::Watch => self.tenure.watch(effort).await,
        }
    }

    async fn raw(&self, work: EtcdWorkload, effort: WorkAmount) -> Result<Sample, BenchFailure> {
        let raw = self.raw;
        let put = |n: usize| async move {
            raw.put(self.key("put", n % 1_000), value()).await.map_err(failed)?;
            Ok(())
        };
        match work {
            EtcdWorkload::Put => one_at_a_time(effort, put).await,
            EtcdWorkload::PutInFlight(width) => {
                in_flight(effort.times(width.div_ceil(WIDTH_OF_A_TURN)), width, put).await
            }
            EtcdWorkload::Get => {
                put(0).await?;
                one_at_a_time(effort, |_| async {
                    let found = raw.range(self.key("put", 0), Bytes::new()).await.map_err(failed)?;
                    if found == 1 { Ok(()) } else { Err(wrong("a key that was put is not there")) }
                })
                .await
            }
            EtcdWorkload::Bulk => self.raw_bulk(BULK.min(effort.n * ROUNDS)).await,
            EtcdWorkload::Batches => self.raw_batches(effort).await,
            EtcdWorkload::OneByOne => {
                let round = Instant::now();
                one_at_a_time(effort, |n| {
                    let key = self.key("owner", n).to_vec();
                    async move {
                        let key = [&key[..], format!("-raw-{round:?}").as_bytes()].concat();
                        let is_won =
                            raw.claim(key.into(), Bytes::from_static(b"node")).await.map_err(failed)?;
                        if is_won { Ok(()) } else { Err(wrong("a claim without rivals was lost")) }
                    }
                })
                .await
            }
            EtcdWorkload::Watch => self.raw_watch(effort).await,
        }
    }

    async fn raw_bulk(&self, count: usize) -> Result<Sample, BenchFailure> {
        let begin = Instant::now();
        let firsts = (0..count).step_by(TXN_OPS);
        let txns = firsts.map(|first| {
            let pairs = (first..count.min(first + TXN_OPS)).map(|n| (self.key("bulk", n), value())).collect();
            self.raw.txn_puts(pairs, 0)
        });
        let done = stream::iter(txns).buffered(TXNS_IN_FLIGHT).try_collect::<Vec<_>>().await;
        done.map_err(failed)?;
        let total = begin.elapsed();
        Ok(Sample::new(vec![total], total, count))
    }

    async fn raw_batches(&self, effort: WorkAmount) -> Result<Sample, BenchFailure> {
        let begin = Instant::now();
        let mut took = Vec::new();
        let mut count = 0;
        while count < effort.n && begin.elapsed() < effort.span_max {
            let key = |n: usize| [&self.key("owner", n)[..], format!("-raw-{begin:?}").as_bytes()].concat();
            let claims =
                (count..count + CLAIMS).map(|n| (key(n).into(), Bytes::from_static(b"node"))).collect();
            let before = Instant::now();
            let won = self.raw.claims(claims).await.map_err(failed)?;
            took.push(before.elapsed());
            if won.len() != CLAIMS || !won.iter().all(|&won| won) {
                return Err(wrong("a claim without rivals was lost"));
            }
            count += CLAIMS;
        }
        Ok(Sample::new(took, begin.elapsed(), count))
    }

    async fn raw_watch(&self, effort: WorkAmount) -> Result<Sample, BenchFailure> {
        let key = self.key("watched", 0);
        let mut events = self.raw.watch(key.clone()).await.map_err(failed)?;
        let begin = Instant::now();
        let mut took = Vec::new();
        while took.len() < effort.n && begin.elapsed() < effort.span_max {
            let before = Instant::now();
            let event = async { (events.next().await, before.elapsed()) };
            let (put, (event, elapsed)) = tokio::join!(self.raw.put(key.clone(), value()), event);
            let seen = event.ok_or_else(|| wrong("the watch ended"))?.map_err(failed)?;
            if put.map_err(failed)? != seen {
                return Err(wrong("another revision was put than was seen"));
            }
            took.push(elapsed);
        }
        let count = took.len();
        Ok(Sample::new(took, begin.elapsed(), count))
    }

    fn key(&self, kind: &str, n: usize) -> Bytes {
        format!("{}{kind}/{n}", self.tenure.prefix).into()
    }
}

/// The turns of both sides.
struct Pair {
    tenure: Vec<Sample>,
    raw: Vec<Sample>,
}

impl Pair {
    /// The median over the rounds of Tenure's figure divided by the reference's: both turns of a
    /// round ran beside the same other load.
    fn median_of(&self, figure: impl Fn(&Sample) -> f64) -> f64 {
        median(self.tenure.iter().zip(&self.raw).map(|(tenure, raw)| figure(tenure) / figure(raw)))
    }
}

async fn handled(counter: Option<&Counter>) -> Option<u64> {
    counter?.handled().await
}

fn value() -> Bytes {
    Bytes::from_static(&VALUE)
}

#[allow(clippy::needless_pass_by_value, reason = "it is handed to map_err")]
fn failed(error: BoxError) -> BenchFailure {
    wrong(format!("the raw reference failed: {error}"))
}
