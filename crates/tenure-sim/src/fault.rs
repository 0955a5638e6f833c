//! What goes wrong, and when: a script that a seed writes before anybody acts.

use std::time::Duration;

use futures_util::FutureExt;
use tenure::store::{LeaseId, Selection, Store};
use tenure::testing::ClockSkew;
use tenure_core::layout::{Key, Layout};
use tenure_core::revision::Token;

use crate::cast::Cast;
use crate::dice::Dice;

/// How far off a clock may run. The margin of a hold is at least a twentieth of its TTL; nobody promises anything beyond that.
const DRIFT_PPM_MAX: u64 = 20_000;

/// Something that goes wrong, at somebody who is found when it happens.
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
    /// What was given up arrives nevertheless.
    ArriveLate,
    /// The process is stopped.
    Stop,
    /// Its clock jumps ahead, as after a suspend.
    Jump(Duration),
    /// Its clock runs at another rate, in millionths.
    Drift(i32),
    /// It is killed, and somebody else begins in its place.
    Kill,
    /// Nobody reaches the store.
    Outage,
    /// The store goes and comes back; no lease ends meanwhile, and each begins anew, as under a new leader of etcd.
    Restart,
    /// History is forgotten.
    Compact,
    /// Somebody revokes a lease by hand.
    Revoke,
    /// Somebody deletes a place by hand.
    Delete,
    /// Somebody sets the clock on the wall.
    StepWall(i64),
}

/// A fault, when it begins and how long it lasts.
#[derive(Clone, Debug)]
pub struct Scene {
    /// When it begins.
    pub at: Duration,
    /// What it is.
    pub fault: Fault,
    /// How long it lasts, where it lasts at all.
    pub lasts: Duration,
    /// Whom it hits, as a throw of the dice.
    pub whom: u64,
}

/// Writes a script: so many faults within this time.
pub fn script(dice: &mut Dice, faults: u64, within: Duration, ttl: Duration) -> Vec<Scene> {
    let within_ms = u64::try_from(within.as_millis()).unwrap_or(u64::MAX);
    let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
    let mut scenes: Vec<Scene> = (0..faults)
        .map(|_| {
            let (at, fault) = (dice.ms(500, within_ms), fault(dice, ttl_ms));
            let lasts = match fault {
                // Shorter than any lease that begins with it: none ends while the store is away.
                Fault::Restart => dice.ms(1, ttl_ms * 3 / 4),
                // Some are over before anybody's patience, most around the TTL.
                _ if dice.percent(30) => dice.ms(1, 400),
                _ => dice.ms(ttl_ms / 4, ttl_ms * 2),
            };
            Scene { at, fault, lasts, whom: dice.number() }
        })
        .collect();
    scenes.sort_by_key(|scene| scene.at);
    scenes
}

fn fault(dice: &mut Dice, ttl_ms: u64) -> Fault {
    let drift = |dice: &mut Dice| {
        let ppm = i32::try_from(dice.below(DRIFT_PPM_MAX)).unwrap_or(0);
        Fault::Drift(if dice.percent(50) { ppm } else { -ppm })
    };
    match dice.below(100) {
        0..16 => Fault::Cut,
        16..32 => Fault::LoseAnswers,
        32..40 => Fault::Refuse,
        40..48 => Fault::Slow(dice.ms(1, 1_500)),
        48..56 => Fault::ArriveLate,
        56..69 => Fault::Stop,
        69..72 => Fault::Jump(dice.ms(1, ttl_ms * 2)),
        72..75 => drift(dice),
        75..81 => Fault::Kill,
        81..83 => Fault::Outage,
        83..85 => Fault::Restart,
        85..93 => Fault::Compact,
        93..96 => Fault::Revoke,
        96..98 => Fault::Delete,
        _ => Fault::StepWall(i64::try_from(dice.below(20_000)).unwrap_or(0) - 10_000),
    }
}

/// Plays the script to its end. `reborn` is called with the place of one who was killed, when somebody else is to begin there.
pub async fn play(
    cast: &Cast,
    scenes: Vec<Scene>,
    onlooker: &Store,
    layout: &Layout,
    reborn: impl Fn(usize),
) {
    // What begins and what ends, in the order of time; ends are put in as they come up.
    let mut open: Vec<(Duration, Ending)> = Vec::new();
    let mut lives = 0;
    let mut scenes = scenes.into_iter().peekable();
    loop {
        let next_end = open.iter().map(|(at, _)| *at).min();
        let next = match (scenes.peek().map(|scene| scene.at), next_end) {
            (None, None) => break,
            (Some(at), None) | (None, Some(at)) => at,
            (Some(begin), Some(end)) => begin.min(end),
        };
        let wait = next.saturating_sub(cast.world.elapsed());
        tokio::time::sleep(wait).await;
        let due: Vec<(Duration, Ending)> = open.extract_if(.., |(at, _)| *at <= next).collect();
        for (_, ending) in due {
            end(cast, ending, &reborn);
        }
        while scenes.peek().is_some_and(|scene| scene.at <= next) {
            let Some(scene) = scenes.next() else { break };
            if matches!(scene.fault, Fault::Compact) {
                // The onlooker reads along first: its record has no hole.
                cast.world.run_until_idle().await;
            }
            let until = scene.at + scene.lasts;
            if let Some(ending) = begin(cast, &scene, onlooker, layout, &mut lives) {
                open.push((until, ending));
            }
        }
    }
}

/// What ends a fault.
enum Ending {
    Heal(String),
    HealAll,
    Restarted,
    OnTime(String),
    Resume(String),
    Reborn(usize),
}

fn begin(cast: &Cast, scene: &Scene, onlooker: &Store, layout: &Layout, lives: &mut usize) -> Option<Ending> {
    let living = cast.living();
    if living.is_empty() {
        // All were killed, and nobody has come yet.
        return None;
    }
    let mut dice = Dice::new(scene.whom);
    let name = dice.pick(&living).clone();
    let (world, lasts) = (&cast.world, scene.lasts);
    match &scene.fault {
        Fault::Cut => {
            world.process(&name).partition();
            cast.tell(format!("{name} is cut off for {lasts:?}"));
            Some(Ending::Heal(name))
        }
        Fault::LoseAnswers => {
            world.process(&name).drop_responses();
            cast.tell(format!("answers to {name} are lost for {lasts:?}"));
            Some(Ending::Heal(name))
        }
        Fault::Refuse => {
            world.process(&name).refuse_connections();
            cast.tell(format!("{name} is refused for {lasts:?}"));
            Some(Ending::Heal(name))
        }
        Fault::Slow(latency) => {
            world.process(&name).set_latency(*latency);
            cast.tell(format!("messages of {name} take {latency:?} from now on"));
            None
        }
        Fault::ArriveLate => {
            world.process(&name).delay_writes();
            cast.tell(format!("writes of {name} arrive late for {lasts:?}"));
            Some(Ending::OnTime(name))
        }
        Fault::Stop => {
            cast.stop(&name);
            Some(Ending::Resume(name))
        }
        Fault::Jump(by) => {
            world.process(&name).set_clock_skew(ClockSkew::Ahead(*by));
            cast.tell(format!("the clock of {name} jumps ahead by {by:?}"));
            None
        }
        Fault::Drift(ppm) => {
            world.process(&name).set_clock_skew(ClockSkew::Drift { ppm: *ppm });
            cast.tell(format!("the clock of {name} drifts by {ppm} ppm"));
            None
        }
        Fault::Kill => {
            cast.kill(&name);
            *lives += 1;
            Some(Ending::Reborn(*lives))
        }
        Fault::Outage => {
            living.iter().for_each(|name| world.process(name).refuse_connections());
            cast.tell(format!("the store is away for {lasts:?}"));
            Some(Ending::HealAll)
        }
        Fault::Restart => {
            living.iter().for_each(|name| world.process(name).refuse_connections());
            world.renew_all_leases();
            cast.tell("the store goes".to_owned());
            Some(Ending::Restarted)
        }
        Fault::Compact => {
            compact(cast, onlooker);
            None
        }
        Fault::Revoke => {
            revoke(cast, onlooker, layout, &mut dice);
            None
        }
        Fault::Delete => {
            delete(cast, onlooker, layout, &mut dice);
            None
        }
        Fault::StepWall(ms) => {
            world.step_wall_clock(*ms);
            cast.tell(format!("the clock on the wall is set by {ms} ms"));
            None
        }
    }
}

fn end(cast: &Cast, ending: Ending, reborn: &impl Fn(usize)) {
    match ending {
        Ending::Heal(name) if cast.is_alive(&name) => {
            cast.world.process(&name).heal();
            cast.tell(format!("{name} is reached again"));
        }
        Ending::OnTime(name) if cast.is_alive(&name) => cast.world.process(&name).stop_delaying_writes(),
        Ending::Heal(_) | Ending::OnTime(_) => {}
        Ending::HealAll => {
            cast.living().iter().for_each(|name| cast.world.process(name).heal());
            cast.tell("the store is back".to_owned());
        }
        Ending::Restarted => {
            cast.world.renew_all_leases();
            cast.living().iter().for_each(|name| cast.world.process(name).heal());
            cast.tell("the store is back, and all leases begin anew".to_owned());
        }
        Ending::Resume(name) => cast.resume(&name),
        Ending::Reborn(life) => reborn(life),
    }
}

/// Everybody is reached, awake and on time; clocks that are off stay off, for that is no fault that ends.
pub fn calm(cast: &Cast, latency: Duration) {
    for name in cast.living() {
        cast.world.process(&name).heal();
        cast.resume(&name);
        cast.world.process(&name).stop_delaying_writes();
        cast.world.process(&name).set_latency(latency);
        cast.world.process(&name).set_clock_skew(ClockSkew::Drift { ppm: 0 });
    }
    cast.tell("all faults are over".to_owned());
}

fn compact(cast: &Cast, onlooker: &Store) {
    let page = onlooker.list(Selection::key("/")).now_or_never();
    let Some(Ok(page)) = page else { return };
    if cast.world.compact(page.revision).is_ok() {
        cast.tell(format!("history up to {} is forgotten", page.revision));
    }
}

fn revoke(cast: &Cast, onlooker: &Store, layout: &Layout, dice: &mut Dice) {
    let Some(Ok(page)) = onlooker.list(Selection::everything()).now_or_never() else { return };
    // What lives for a day or a week dies with its lease only if somebody wants to lose it.
    let is_kept = |key: &[u8]| matches!(layout.parse(key), Some(Key::TaskCommand(_) | Key::CommandResult(_)));
    let leased = page.pairs.iter().filter(|pair| !is_kept(&pair.key));
    let leases: Vec<LeaseId> = leased.filter_map(|pair| pair.lease).collect();
    if leases.is_empty() {
        return;
    }
    let lease = *dice.pick(&leases);
    // First noted, then done: whoever is asked because of it must find the note.
    for pair in page.pairs.iter().filter(|pair| pair.lease == Some(lease)) {
        cast.beliefs.deleted(Token(pair.created));
    }
    if cast.world.expire_lease(lease) {
        cast.tell(format!("lease {lease} is revoked by hand"));
    }
}

fn delete(cast: &Cast, onlooker: &Store, layout: &Layout, dice: &mut Dice) {
    let Some(Ok(page)) = onlooker.list(layout.everything()).now_or_never() else { return };
    let is_place = |key: &[u8]| matches!(layout.parse(key), Some(Key::Waiter(..) | Key::Candidate(..)));
    let places: Vec<_> = page.pairs.into_iter().filter(|pair| is_place(&pair.key)).collect();
    if places.is_empty() {
        return;
    }
    let place = dice.pick(&places);
    cast.beliefs.deleted(Token(place.created));
    if let Some(Ok(_)) = onlooker.delete(Selection::key(place.key.clone())).now_or_never() {
        cast.tell(format!("{} is deleted by hand", String::from_utf8_lossy(&place.key)));
    }
}
