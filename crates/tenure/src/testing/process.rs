//! A process of the world: its handle, the faults that can be injected into it, and its clock.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tenure_core::time::Moment;

use super::clock_skew::ClockSkew;
use super::faulty_engine::FaultyEngine;
use super::link::{LinkMode, ProcessLink};
use super::{RunningProcess, World};
use crate::clock::{Clock, Sleep};
use crate::store::Store;
use crate::tenure::{Tenure, TenureBuilder};

/// A process of a [`World`]: its connection to the store and its clock. Cheap to clone.
///
/// Faults last until they are ended: [`Process::heal`] ends a partition, lost responses and refused connections; [`Process::resume`] ends a
/// pause.
#[derive(Clone)]
pub struct Process {
    name: String,
    world: World,
}

impl Process {
    pub(super) fn start(world: &World, name: String) -> Process {
        let process = Process { name, world: world.clone() };
        process.link();
        process
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the [`Tenure`] of this process, connected with the defaults and the process's name. All calls return the same one.
    ///
    /// # Panics
    ///
    /// If the limits of the store do not allow the default TTL: use [`Process::builder`].
    pub fn tenure(&self) -> Tenure {
        if let Some(tenure) =
            self.world.processes().get(&self.name).and_then(|process| process.tenure.clone())
        {
            return tenure;
        }
        let connected = self.builder().connect().now_or_never();
        let tenure = connected.expect("an open store is connected without a request");
        let tenure = tenure.expect("the default options are valid in this world");
        self.change(|process| process.tenure = Some(tenure.clone()));
        tenure
    }

    /// Returns a builder with the store, the clock and the name of this process, for a [`Tenure`] with other options.
    pub fn builder(&self) -> TenureBuilder {
        Tenure::builder().store(self.store()).clock(self.clock()).identity(self.name.as_str())
    }

    /// Returns the store as this process reaches it. Closing one handle does not close the others.
    pub fn store(&self) -> Store {
        let shared = &self.world.shared;
        Store::new(FaultyEngine::new(self.link(), shared.memory.clone(), shared.numbers.clone()))
    }

    /// Returns the clock of this process.
    pub fn clock(&self) -> ProcessClock {
        ProcessClock { link: self.link() }
    }

    /// Cuts the process off in both directions: its requests get no response until it is healed or they time out.
    ///
    /// A request that is on its way to the store is not applied, unless the partition heals before the request times out. A request that has
    /// reached the store is applied, and its response is lost. The process cannot distinguish the two.
    pub fn partition(&self) {
        self.link().set_mode(LinkMode::Partitioned);
    }

    /// Applies the requests of the process and drops the responses.
    pub fn drop_responses(&self) {
        self.link().set_mode(LinkMode::ResponsesDropped);
    }

    /// Fails the requests of the process immediately, as a closed port does. Requests in flight are broken off.
    pub fn refuse_connections(&self) {
        self.link().set_mode(LinkMode::Refused);
    }

    /// Ends [`partition`](Process::partition), [`drop_responses`](Process::drop_responses) and
    /// [`refuse_connections`](Process::refuse_connections). Requests that have not timed out continue, and watches catch up.
    pub fn heal(&self) {
        self.link().set_mode(LinkMode::Open);
    }

    /// Delays every message from and to the process. A partition then also hits messages that are in flight.
    pub fn set_latency(&self, one_way: Duration) {
        self.link().set_latency(one_way);
    }

    /// Lets writes reach the store up to 7 s after they were sent, even if they have timed out by then.
    ///
    /// A write that failed with [`StoreError::Ambiguous`](crate::StoreError::Ambiguous) may then be applied later, as on a real network.
    pub fn delay_writes(&self) {
        self.link().set_delays_writes(true);
    }

    /// Ends [`delay_writes`](Process::delay_writes) for the writes that follow.
    pub fn stop_delaying_writes(&self) {
        self.link().set_delays_writes(false);
    }

    /// Pauses the process, as SIGSTOP or a suspended machine does: its clock, timers, requests and watches stop.
    ///
    /// Tasks that wait for something else still run, because a task cannot be stopped from outside. They see a clock that does not move.
    pub fn pause(&self) {
        self.link().pause();
    }

    /// Resumes a paused process. Its clock jumps to the present, and every timer that has become due fires immediately.
    pub fn resume(&self) {
        self.link().resume();
    }

    /// Makes the clock of the process wrong from now on.
    ///
    /// # Panics
    ///
    /// For a drift that would stop the clock or turn it back.
    pub fn set_clock_skew(&self, skew: ClockSkew) {
        self.link().set_skew(skew);
    }

    /// Kills the process, as SIGKILL does: its session is dropped without a close, and no further request of it reaches the store.
    ///
    /// Its leases expire after their TTL. What still runs of it sees a clock that does not move. The handle is that of its successor from now
    /// on: [`Process::tenure`] and [`Process::store`] connect again, without any fault.
    pub fn kill(&self) {
        let link = self.link();
        link.set_mode(LinkMode::Partitioned);
        link.pause();
        let mut processes = self.world.processes();
        let killed = processes.insert(self.name.clone(), self.running());
        // Dropping a session wakes its tasks: not under the lock.
        drop(processes);
        drop(killed);
    }

    fn link(&self) -> Arc<ProcessLink> {
        self.change(|process| process.link.clone())
    }

    fn change<T>(&self, change: impl FnOnce(&mut RunningProcess) -> T) -> T {
        let mut processes = self.world.processes();
        change(processes.entry(self.name.clone()).or_insert_with(|| self.running()))
    }

    fn running(&self) -> RunningProcess {
        let link = Arc::new(ProcessLink::new(&self.name, self.world.shared.time));
        RunningProcess { link, tenure: None }
    }
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Process({:?})", self.link())
    }
}

/// The clock of one process, which may be skewed or paused.
#[derive(Clone, Debug)]
pub struct ProcessClock {
    link: Arc<ProcessLink>,
}

impl Clock for ProcessClock {
    fn now(&self) -> Moment {
        self.link.now()
    }

    fn sleep_until(&self, deadline: Moment) -> Sleep {
        let link = self.link.clone();
        Box::pin(async move { link.sleep_until(deadline).await })
    }
}
