//! What goes wrong, and when: a schedule that the seed decides before the first process begins.

use std::time::Duration;

use futures_util::FutureExt;
use tenure::store::{LeaseId, Selection, Store};
use tenure::testing::ClockSkew;
use tenure_core::layout::{Key, Layout};
use tenure_core::revision::Token;

use crate::processes::SimProcesses;
use crate::rng::SimRng;

/// How far off a clock may run. The margin of a hold is at least a twentieth of its TTL; nothing is
/// guaranteed beyond that.
const DRIFT_PPM_MAX: u64 = 20_000;

/// A fault. The process that it hits is chosen when it begins.
#[derive(Clone, Debug)]
pub enum Fault {
    /// Nothing comes through, in silence.
    Cut,
    /// Requests arrive, answers do not.
    LoseAnswers,
    /// The port is closed.
    Refuse,
    /// Messages take this long.
    Slow(Duration),
    /// Writes that the client abandoned arrive nevertheless.
    ArriveLate,
    /// The process is stopped.
    Stop,
    /// Its clock jumps ahead, as after a suspend.
    Jump(Duration),
    /// Its clock runs at another rate, in millionths.
    Drift(i32),
    /// It is killed, and another process begins instead.
    Kill,
    /// No process reaches the store.
    Outage,
    /// The store restarts. No lease expires meanwhile, and each begins anew, as under a new leader
    /// of etcd.
    Restart,
    /// History is compacted.
    Compact,
    /// An operator revokes a lease.
    Revoke,
    /// An operator deletes a queue key.
    Delete,
    /// The wall clock is set.
    StepWall(i64),
}

/// A fault, when it begins and how long it lasts.
#[derive(Clone, Debug)]
pub struct ScheduledFault {
    /// When it begins.
    pub at: Duration,
    /// What it is.
    pub fault: Fault,
    /// How long it lasts, where it lasts at all.
    pub lasts: Duration,
    /// Which process it hits, as a random number.
    pub target: u64,
}

/// Makes a schedule: this many faults within this time.
pub fn script(rng: &mut SimRng, faults: u64, within: Duration, ttl: Duration) -> Vec<ScheduledFault> {
    let within_ms = u64::try_from(within.as_millis()).unwrap_or(u64::MAX);
    let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
    let mut scenes: Vec<ScheduledFault> = (0..faults)
        .map(|_| {
            let (at, fault) = (rng.ms(500, within_ms), fault(rng, ttl_ms));
            let lasts = match fault {
                // Shorter than any lease that begins with it: none ends while the store is away.
                Fault::Restart => rng.ms(1, ttl_ms * 3 / 4),
                // Some are shorter than any timeout, most are about as long as the TTL.
                _ if rng.percent(30) => rng.ms(1, 400),
                _ => rng.ms(ttl_ms / 4, ttl_ms * 2),
            };
            ScheduledFault { at, fault, lasts, target: rng.number() }
        })
        .collect();
    scenes.sort_by_key(|scene| scene.at);
    scenes
}

fn fault(rng: &mut SimRng, ttl_ms: u64) -> Fault {
    let drift = |rng: &mut SimRng| {
        let ppm = i32::try_from(rng.below(DRIFT_PPM_MAX)).unwrap_or(0);
        Fault::Drift(if rng.percent(50) { ppm } else { -ppm })
    };
    match rng.below(100) {
        0..16 => Fault::Cut,
        16..32 => Fault::LoseAnswers,
        32..40 => Fault::Refuse,
        40..48 => Fault::Slow(rng.ms(1, 1_500)),
        48..56 => Fault::ArriveLate,
        56..69 => Fault::Stop,
        69..72 => Fault::Jump(rng.ms(1, ttl_ms * 2)),
        72..75 => drift(rng),
        75..81 => Fault::Kill,
        81..83 => Fault::Outage,
        83..85 => Fault::Restart,
        85..93 => Fault::Compact,
        93..96 => Fault::Revoke,
        96..98 => Fault::Delete,
        _ => Fault::StepWall(i64::try_from(rng.below(20_000)).unwrap_or(0) - 10_000),
    }
}

/// Runs the schedule to its end. `reborn` is called with the number of a killed process when
/// another one is to begin instead.
pub async fn inject(
    processes: &SimProcesses,
    scenes: Vec<ScheduledFault>,
    observer: &Store,
    layout: &Layout,
    reborn: impl Fn(usize),
) {
    // What begins and what ends, in the order of time; ends are put in as they come up.
    let mut open: Vec<(Duration, FaultRecovery)> = Vec::new();
    let mut incarnations = 0;
    let mut scenes = scenes.into_iter().peekable();
    loop {
        let next_end = open.iter().map(|(at, _)| *at).min();
        let next = match (scenes.peek().map(|scene| scene.at), next_end) {
            (None, None) => break,
            (Some(at), None) | (None, Some(at)) => at,
            (Some(begin), Some(end)) => begin.min(end),
        };
        let wait = next.saturating_sub(processes.world.elapsed());
        tokio::time::sleep(wait).await;
        let due: Vec<(Duration, FaultRecovery)> = open.extract_if(.., |(at, _)| *at <= next).collect();
        for (_, ending) in due {
            end(processes, ending, &reborn);
        }
        while scenes.peek().is_some_and(|scene| scene.at <= next) {
            let Some(scene) = scenes.next() else { break };
            if matches!(scene.fault, Fault::Compact) {
                // The observer reads along first: its record has no hole.
                processes.world.run_until_idle().await;
            }
            let until = scene.at + scene.lasts;
            if let Some(ending) = begin(processes, &scene, observer, layout, &mut incarnations) {
                open.push((until, ending));
            }
        }
    }
}

/// What ends a fault.
enum FaultRecovery {
    Heal(String),
    HealAll,
    Restarted,
    OnTime(String),
    Resume(String),
    Reborn(usize),
}

fn begin(
    processes: &SimProcesses,
    scene: &ScheduledFault,
    observer: &Store,
    layout: &Layout,
    incarnations: &mut usize,
) -> Option<FaultRecovery> {
    let living = processes.living();
    if living.is_empty() {
        // All were killed, and no other has begun yet.
        return None;
    }
    let mut rng = SimRng::new(scene.target);
    let name = rng.pick(&living).clone();
    let (world, lasts) = (&processes.world, scene.lasts);
    match &scene.fault {
        Fault::Cut => {
            world.process(&name).partition();
            processes.log(format!("{name} is cut off for {lasts:?}"));
            Some(FaultRecovery::Heal(name))
        }
        Fault::LoseAnswers => {
            world.process(&name).drop_responses();
            processes.log(format!("answers to {name} are lost for {lasts:?}"));
            Some(FaultRecovery::Heal(name))
        }
        Fault::Refuse => {
            world.process(&name).refuse_connections();
            processes.log(format!("{name} is refused for {lasts:?}"));
            Some(FaultRecovery::Heal(name))
        }
        Fault::Slow(latency) => {
            world.process(&name).set_latency(*latency);
            processes.log(format!("messages of {name} take {latency:?} from now on"));
            None
        }
        Fault::ArriveLate => {
            world.process(&name).delay_writes();
            processes.log(format!("writes of {name} arrive late for {lasts:?}"));
            Some(FaultRecovery::OnTime(name))
        }
        Fault::Stop => {
            processes.stop(&name);
            Some(FaultRecovery::Resume(name))
        }
        Fault::Jump(by) => {
            world.process(&name).set_clock_skew(ClockSkew::Ahead(*by));
            processes.log(format!("the clock of {name} jumps ahead by {by:?}"));
            None
        }
        Fault::Drift(ppm) => {
            world.process(&name).set_clock_skew(ClockSkew::Drift { ppm: *ppm });
            processes.log(format!("the clock of {name} drifts by {ppm} ppm"));
            None
        }
        Fault::Kill => {
            processes.kill(&name);
            *incarnations += 1;
            Some(FaultRecovery::Reborn(*incarnations))
        }
        Fault::Outage => {
            living.iter().for_each(|name| world.process(name).refuse_connections());
            processes.log(format!("the store is away for {lasts:?}"));
            Some(FaultRecovery::HealAll)
        }
        Fault::Restart => {
            living.iter().for_each(|name| world.process(name).refuse_connections());
            world.renew_all_leases();
            processes.log("the store goes".to_owned());
            Some(FaultRecovery::Restarted)
        }
        Fault::Compact => {
            compact(processes, observer);
            None
        }
        Fault::Revoke => {
            revoke(processes, observer, layout, &mut rng);
            None
        }
        Fault::Delete => {
            delete(processes, observer, layout, &mut rng);
            None
        }
        Fault::StepWall(ms) => {
            world.step_wall_clock(*ms);
            processes.log(format!("the clock on the wall is set by {ms} ms"));
            None
        }
    }
}

fn end(processes: &SimProcesses, ending: FaultRecovery, reborn: &impl Fn(usize)) {
    match ending {
        FaultRecovery::Heal(name) if processes.is_alive(&name) => {
            processes.world.process(&name).heal();
            processes.log(format!("{name} is reached again"));
        }
        FaultRecovery::OnTime(name) if processes.is_alive(&name) => {
            processes.world.process(&name).stop_delaying_writes();
        }
        FaultRecovery::Heal(_) | FaultRecovery::OnTime(_) => {}
        FaultRecovery::HealAll => {
            processes.living().iter().for_each(|name| processes.world.process(name).heal());
            processes.log("the store is back".to_owned());
        }
        FaultRecovery::Restarted => {
            processes.world.renew_all_leases();
            processes.living().iter().for_each(|name| processes.world.process(name).heal());
            processes.log("the store is back, and all leases begin anew".to_owned());
        }
        FaultRecovery::Resume(name) => processes.resume(&name),
        FaultRecovery::Reborn(life) => reborn(life),
    }
}

/// All processes are connected, running and on time. Clocks that are off stay off, because that
/// fault does not end.
pub fn calm(processes: &SimProcesses, latency: Duration) {
    for name in processes.living() {
        processes.world.process(&name).heal();
        processes.resume(&name);
        processes.world.process(&name).stop_delaying_writes();
        processes.world.process(&name).set_latency(latency);
        processes.world.process(&name).set_clock_skew(ClockSkew::Drift { ppm: 0 });
    }
    processes.log("all faults are over".to_owned());
}

fn compact(processes: &SimProcesses, observer: &Store) {
    let page = observer.list(Selection::key("/")).now_or_never();
    let Some(Ok(page)) = page else { return };
    if processes.world.compact(page.revision).is_ok() {
        processes.log(format!("history up to {} is forgotten", page.revision));
    }
}

fn revoke(processes: &SimProcesses, observer: &Store, layout: &Layout, rng: &mut SimRng) {
    let Some(Ok(page)) = observer.list(Selection::everything()).now_or_never() else { return };
    // Keys with a lease of a day or a week are lost with it only by an operator's mistake.
    let is_kept = |key: &[u8]| matches!(layout.parse(key), Some(Key::TaskCommand(_) | Key::CommandResult(_)));
    let leased = page.pairs.iter().filter(|pair| !is_kept(&pair.key));
    let leases: Vec<LeaseId> = leased.filter_map(|pair| pair.lease).collect();
    if leases.is_empty() {
        return;
    }
    let lease = *rng.pick(&leases);
    // Recorded first, then done: the audit asks for the record when the key is deleted.
    for pair in page.pairs.iter().filter(|pair| pair.lease == Some(lease)) {
        processes.holds.deleted(Token(pair.created));
    }
    if processes.world.expire_lease(lease) {
        processes.log(format!("lease {lease} is revoked by an operator"));
    }
}

fn delete(processes: &SimProcesses, observer: &Store, layout: &Layout, rng: &mut SimRng) {
    let Some(Ok(page)) = observer.list(layout.everything()).now_or_never() else { return };
    let is_place = |key: &[u8]| matches!(layout.parse(key), Some(Key::Waiter(..) | Key::Candidate(..)));
    let places: Vec<_> = page.pairs.into_iter().filter(|pair| is_place(&pair.key)).collect();
    if places.is_empty() {
        return;
    }
    let place = rng.pick(&places);
    processes.holds.deleted(Token(place.created));
    if let Some(Ok(_)) = observer.delete(Selection::key(place.key.clone())).now_or_never() {
        processes.log(format!("{} is deleted by an operator", String::from_utf8_lossy(&place.key)));
    }
}
