//! How each fault is done, and undone.

use std::collections::BTreeSet;
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use tenure::store::{KeyValue, LeaseId, Selection};
use tenure_core::id::Namespace;
use tenure_core::layout::{Key, Layout};
use tenure_fixture::Mode;

use super::fault::TargetKind;
use super::network::{MEMBERS, Network};
use super::stale_leader::StoppedMember;
use super::wall_clock::STEP_S;
use super::{Fault, Rig};
use crate::client::NAMESPACE;
use crate::rng::NemesisRng;

/// A renewal waits no longer for its reply, however long the TTL is.
const RENEWAL_WAIT_MAX: Duration = Duration::from_secs(1);

/// A renewal waits no longer than a quarter of the TTL either; late replies come this much earlier
/// than that.
const HASTE: Duration = Duration::from_millis(80);

/// What a fault is done to. Only one at a time is done to each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum FaultTarget {
    /// A client's process.
    Process(usize),
    /// Its clock on the wall.
    Clock(usize),
    /// Its connections.
    Link(usize),
    /// The members: two that are away at once are an outage, and that is a fault of its own.
    Members,
    /// What is stored.
    Data,
}

/// What undoes it.
pub(super) enum FaultUndo {
    Begin(usize),
    Resume(usize),
    Heal(usize),
    Plug(usize),
    SetRight(usize),
    Restart(usize),
    RestartAll,
    Continue(StoppedMember),
    Mend,
    Disarm,
}

/// A fault that was done.
pub(super) struct InjectedFault {
    pub(super) target: FaultTarget,
    pub(super) detail: String,
    pub(super) ending: Option<FaultUndo>,
}

/// Does it, unless something else is done to the same target, or there is nothing to do it to.
pub(super) fn begin(
    rig: &mut Rig,
    fault: Fault,
    lasts: Duration,
    busy: &BTreeSet<FaultTarget>,
    rng: &mut NemesisRng,
) -> Option<InjectedFault> {
    let client = rng.index(rig.processes.len());
    let target = match fault.hits() {
        TargetKind::Process => FaultTarget::Process(client),
        TargetKind::Clock => FaultTarget::Clock(client),
        TargetKind::AnyLink if rng.percent(30) => FaultTarget::Members,
        // Only a client that holds something can hold it for too long.
        TargetKind::Link if fault == Fault::LateAnswer => {
            FaultTarget::Link(leading_client(rig).unwrap_or(client))
        }
        TargetKind::Link | TargetKind::AnyLink => FaultTarget::Link(client),
        TargetKind::Members => FaultTarget::Members,
        TargetKind::Data => FaultTarget::Data,
    };
    if busy.contains(&target) {
        return None;
    }
    let (detail, ending) = match target {
        FaultTarget::Process(client) if rig.processes.is_alive(client) => {
            process(rig, fault, client, lasts, rng)
        }
        FaultTarget::Process(_) => None,
        FaultTarget::Clock(client) => clock(rig, client, rng),
        FaultTarget::Link(client) => match &rig.place.network {
            Some(network) if fault.is_in_kernel() => kernel_link(rig, network, fault, client, rng),
            _ => link(rig, fault, client, rng),
        },
        FaultTarget::Members => members(rig, fault, rng),
        FaultTarget::Data => data(rig, fault, rng),
    }?;
    Some(InjectedFault { target, detail: format!("{detail}, {} ms", lasts.as_millis()), ending })
}

/// Which fault hit which target, and what undoes it.
type InjectionResult = Option<(String, Option<FaultUndo>)>;

fn process(
    rig: &mut Rig,
    fault: Fault,
    client: usize,
    lasts: Duration,
    rng: &mut NemesisRng,
) -> InjectionResult {
    let name = rig.processes.name(client).to_owned();
    match fault {
        Fault::KillClient => {
            rig.processes.kill(client);
            Some((name, Some(FaultUndo::Begin(client))))
        }
        Fault::StopClient => {
            rig.processes.stop(client);
            Some((name, Some(FaultUndo::Resume(client))))
        }
        _ => {
            let mut left = lasts.min(Duration::from_secs(1));
            while !left.is_zero() {
                let (still, on) = (rng.ms(1, 60), rng.ms(1, 30));
                rig.processes.stop(client);
                std::thread::sleep(still);
                rig.processes.resume(client);
                std::thread::sleep(on);
                left = left.saturating_sub(still + on);
            }
            Some((name, None))
        }
    }
}

fn link(rig: &Rig, fault: Fault, client: usize, rng: &mut NemesisRng) -> InjectionResult {
    let proxies = rig.place.proxies.get(client)?;
    let name = rig.processes.name(client).to_owned();
    let set = |mode| proxies.iter().for_each(|proxy| proxy.set(mode));
    match fault {
        Fault::CutOne => proxies[rng.index(proxies.len())].set(Mode::BlackHole),
        Fault::LoseAnswers => set(Mode::BlackHoleAnswers),
        Fault::HoldAnswers => set(Mode::HoldAnswers),
        Fault::Delay => set(Mode::Delay(rng.ms(20, 1_500))),
        Fault::LateAnswer => {
            let ttl = rig.options.against.ttl();
            set(Mode::DelayAnswers((ttl / 4).min(RENEWAL_WAIT_MAX) - HASTE));
            std::thread::sleep(ttl / 3 + rng.ms(300, 1_300));
            set(Mode::BlackHole);
        }
        Fault::Fin => set(Mode::CutFin),
        Fault::Refuse => set(Mode::Closed),
        Fault::Reset => {
            proxies.iter().for_each(tenure_fixture::Proxy::cut);
            return Some((name, None));
        }
        _ => set(Mode::BlackHole),
    }
    Some((name, Some(FaultUndo::Heal(client))))
}

fn kernel_link(
    rig: &Rig,
    network: &Network,
    fault: Fault,
    client: usize,
    rng: &mut NemesisRng,
) -> InjectionResult {
    let name = rig.processes.name(client).to_owned();
    let one = rng.index(MEMBERS);
    let done = match (fault, fault.shape()) {
        (_, Some(shape)) => network.shape_client(client, shape),
        (Fault::SilenceOne, _) => network.mute(client, one..one + 1),
        (Fault::Mute, _) => network.mute(client, 0..MEMBERS),
        (Fault::Deaf, _) => network.deafen(client),
        (Fault::Unplug, _) => network.unplug(client),
        _ => network.mute(client, 0..MEMBERS).and_then(|()| network.deafen(client)),
    };
    done.ok()?;
    Some((name, Some(FaultUndo::Plug(client))))
}

fn clock(rig: &Rig, client: usize, rng: &mut NemesisRng) -> InjectionResult {
    let beside_s = if rng.percent(50) { STEP_S } else { -STEP_S };
    rig.processes.set_clock(client, beside_s)?;
    Some((format!("{} by {beside_s:+} s", rig.processes.name(client)), Some(FaultUndo::SetRight(client))))
}

fn members(rig: &Rig, fault: Fault, rng: &mut NemesisRng) -> InjectionResult {
    let etcd = rig.place.etcd.as_ref()?;
    let any = rng.index(etcd.members().len());
    if let (Some(shape), Some(network)) = (fault.shape(), &rig.place.network) {
        network.shape_member(any, shape).ok()?;
        return Some((etcd.member(any).name().to_owned(), Some(FaultUndo::Mend)));
    }
    let leader = etcd.leader();
    let done = |index: usize, ending| Some((etcd.member(index).name().to_owned(), Some(ending)));
    match fault {
        Fault::KillMember | Fault::KillLeader => {
            let index = if fault == Fault::KillLeader { leader } else { any };
            etcd.member(index).kill();
            done(index, FaultUndo::Restart(index))
        }
        Fault::StopMember | Fault::StopLeader => {
            let index = if fault == Fault::StopLeader { leader } else { any };
            let stopped = StoppedMember::note(etcd, index);
            etcd.member(index).pause();
            done(index, FaultUndo::Continue(stopped))
        }
        Fault::IsolateLeader
        | Fault::IsolateMember
        | Fault::MuteLeader
        | Fault::DeafLeader
        | Fault::Bridge => {
            let index = if matches!(fault, Fault::IsolateMember | Fault::Bridge) { any } else { leader };
            let others = (0..etcd.members().len()).filter(|other| *other != index);
            let others = others.take(if fault == Fault::Bridge { 1 } else { usize::MAX });
            for other in others {
                if fault != Fault::DeafLeader {
                    rig.place.cut_wire(index, other);
                }
                if fault != Fault::MuteLeader {
                    rig.place.cut_wire(other, index);
                }
            }
            done(index, FaultUndo::Mend)
        }
        Fault::DiskFull => {
            // As on a full disk every write fails from now on; only this member's, and until it is started again.
            let pid = Pid::from_raw(etcd.member(any).pid().cast_signed());
            let none = Rlimit { current: Some(1), maximum: Some(1) };
            prlimit(pid, Resource::Fsize, none).ok()?;
            done(any, FaultUndo::Restart(any))
        }
        Fault::MoveLeader => {
            let to = ids(rig).into_iter().find(|(name, _)| name == etcd.member((leader + 1) % 3).name())?;
            let document = format!("{{\"targetID\":\"{}\"}}", to.1);
            // Only the leader can.
            etcd.member(leader).post("/v3/maintenance/transfer-leadership", &document).ok()?;
            Some((format!("to {}", to.0), None))
        }
        _ => {
            etcd.kill_all();
            Some(("all members".to_owned(), Some(FaultUndo::RestartAll)))
        }
    }
}

fn data(rig: &mut Rig, fault: Fault, rng: &mut NemesisRng) -> InjectionResult {
    match fault {
        Fault::NoSpace => {
            let (name, id) = ids(rig).into_iter().next()?;
            rig.place.post("/v3/maintenance/alarm", &alarm("ACTIVATE", &id)).ok()?;
            Some((format!("reported by {name}"), Some(FaultUndo::Disarm)))
        }
        Fault::Compact => {
            let compacted = rig.place.read(async |store| {
                let now = store.list(Selection::key("/")).await?.revision;
                store.compact(now).await.map(|()| now)
            })?;
            Some((format!("up to {}", compacted.ok()?), None))
        }
        Fault::Flood => {
            let key = |number: u32| format!("/{NAMESPACE}-flood/{number}");
            rig.place.read(async |store| {
                for number in 0..40 {
                    // What does not come through is no flood, and no harm.
                    let _ = store.put(key(number), vec![b'x'; 50_000]).await;
                }
            })?;
            clear_flood(rig);
            Some(("2 MB".to_owned(), None))
        }
        Fault::Revoke => {
            let leased: Vec<LeaseId> =
                everything(rig)?.iter().filter(|pair| !is_kept(pair)).filter_map(|pair| pair.lease).collect();
            if leased.is_empty() {
                return None;
            }
            let lease = *rng.pick(&leased);
            // First noted, then done: an answer that is lost may have been a yes.
            rig.evidence.leases_by_hand.insert(lease.0.get());
            rig.place.read(async |store| store.revoke(lease).await.is_ok())?;
            Some((format!("lease {lease}"), None))
        }
        _ => {
            let places: Vec<KeyValue> = everything(rig)?.into_iter().filter(is_queue_key).collect();
            if places.is_empty() {
                return None;
            }
            let place = rng.pick(&places).clone();
            rig.evidence.tokens_by_hand.insert(place.created.0);
            let key = place.key.clone();
            rig.place.read(async |store| store.delete(Selection::key(key)).await.is_ok())?;
            Some((String::from_utf8_lossy(&place.key).into_owned(), None))
        }
    }
}

/// Undoes it.
pub(super) fn end(rig: &mut Rig, ending: FaultUndo) {
    match ending {
        FaultUndo::Begin(client) => rig.processes.begin(client),
        FaultUndo::Resume(client) => rig.processes.resume(client),
        FaultUndo::Heal(client) => rig.place.proxies[client].iter().for_each(|proxy| proxy.set(Mode::Pass)),
        FaultUndo::Restart(member) => {
            if let Some(etcd) = &rig.place.etcd {
                etcd.member(member).restart();
            }
        }
        FaultUndo::RestartAll => {
            if let Some(etcd) = &rig.place.etcd {
                etcd.restart_all();
            }
        }
        FaultUndo::Continue(stopped) => stopped.resume(rig),
        FaultUndo::Plug(client) => rig.place.mend_link(client),
        FaultUndo::SetRight(client) => {
            rig.processes.set_clock(client, 0);
        }
        FaultUndo::Mend => {
            rig.place.mend_wires();
            if let Some(etcd) = &rig.place.etcd {
                etcd.members().iter().for_each(tenure_fixture::EtcdMember::wait_until_healthy);
            }
        }
        FaultUndo::Disarm => {
            disarm(rig);
            clear_flood(rig);
        }
    }
}

/// Clears the alarm of every member that reported a lack of space, repeated until the cluster
/// agrees.
fn disarm(rig: &Rig) {
    for (_, id) in ids(rig) {
        for _ in 0..100 {
            if rig.place.post("/v3/maintenance/alarm", &alarm("DEACTIVATE", &id)).is_ok() {
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

fn clear_flood(rig: &Rig) {
    // Under an alarm, deletes are allowed; what remains is reported as left behind.
    let prefix = format!("/{NAMESPACE}-flood/");
    let _ = rig.place.insist("clearing", |store| {
        let prefix = prefix.clone();
        async move { store.delete(Selection::prefix(prefix)).await }
    });
}

fn alarm(action: &str, id: &str) -> String {
    format!("{{\"action\":\"{action}\",\"alarm\":\"NOSPACE\",\"memberID\":\"{id}\"}}")
}

/// Names and ids of the members, from `{"ID":"1","name":"m1",…}`.
fn ids(rig: &Rig) -> Vec<(String, String)> {
    let answer = rig.place.post("/v3/cluster/member/list", "{}").unwrap_or_default();
    let members = answer.split("{\"ID\":\"").skip(1);
    let read = |text: &str| {
        let (id, rest) = text.split_once('"')?;
        let name = rest.split_once("\"name\":\"")?.1.split('"').next()?;
        Some((name.to_owned(), id.to_owned()))
    };
    members.filter_map(read).collect()
}

fn everything(rig: &Rig) -> Option<Vec<KeyValue>> {
    Some(rig.place.read(async |store| store.list(Selection::everything()).await)?.ok()?.pairs)
}

/// The client with the oldest candidate key.
fn leading_client(rig: &Rig) -> Option<usize> {
    let pairs = everything(rig)?;
    let candidates =
        pairs.iter().filter(|pair| matches!(layout().parse(&pair.key), Some(Key::Candidate(..))));
    let first = String::from_utf8_lossy(&candidates.min_by_key(|pair| pair.created)?.value).into_owned();
    (0..rig.processes.len()).find(|client| first.contains(&format!("\"{}\"", rig.processes.name(*client))))
}

fn layout() -> Layout {
    Layout::new(&Namespace::parse(NAMESPACE).expect("a good name"))
}

/// Keys with a lease of a day or a week are lost with it only by an operator's mistake.
fn is_kept(pair: &KeyValue) -> bool {
    matches!(layout().parse(&pair.key), Some(Key::TaskCommand(_) | Key::CommandResult(_)))
}

fn is_queue_key(pair: &KeyValue) -> bool {
    matches!(layout().parse(&pair.key), Some(Key::Waiter(..) | Key::Candidate(..)))
}
