//! The clients: real processes, each with a name that stays the same in all its incarnations.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use tenure_fixture::sentinel::Sentinel;

use super::store::NemesisStore;
use super::wall_clock::WallClock;
use crate::check::ClientLife;
use crate::history::{HistoryEvent, OperationKind, OperationOutcome, Stamp, now, read, read_on};
use crate::ledger::Ledger;
use crate::options::{ClientOptions, LockUnderTest, Options};
use crate::rng::NemesisRng;

/// All clients.
pub(crate) struct ClientProcesses {
    folder: PathBuf,
    program: PathBuf,
    clients: Vec<ClientProcess>,
}

struct ClientProcess {
    name: String,
    options: ClientOptions,
    /// The arguments before its command, so that it runs in its namespace.
    enter: Vec<OsString>,
    clock: Option<WallClock>,
    rng: NemesisRng,
    process: Option<Sentinel>,
    /// Their histories, and when they were killed.
    lives: Vec<(PathBuf, Option<Stamp>)>,
}

impl ClientProcesses {
    pub(super) fn start(
        options: &Options,
        place: &NemesisStore,
        ledger: &Ledger,
        clocks: Option<&Path>,
        rng: &mut NemesisRng,
    ) -> Result<ClientProcesses, String> {
        let histories = options.folder.join("history");
        std::fs::create_dir_all(&histories).map_err(|error| format!("{}: {error}", histories.display()))?;
        let clocks = (0..options.clients).map(|number| {
            let file = options.folder.join(format!("c{number}.clock"));
            clocks.map(|library| WallClock::new(library, absolute(&file)?)).transpose()
        });
        let clocks = clocks.collect::<Result<Vec<_>, String>>()?;
        let clients = clocks.into_iter().enumerate().map(|(number, clock)| ClientProcess {
            enter: place.network.as_ref().map_or_else(Vec::new, |network| network.client(number).enter),
            clock,
            name: format!("c{number}"),
            options: ClientOptions {
                name: format!("c{number}"),
                store: place.address(number),
                auth: options.auth,
                ledger: ledger.addr(),
                history: PathBuf::new(),
                seed: 0,
                against: options.against,
            },
            rng: rng.split(),
            process: None,
            lives: Vec::new(),
        });
        let mut processes = ClientProcesses {
            folder: options.folder.clone(),
            program: options.program.clone(),
            clients: clients.collect(),
        };
        (0..options.clients).for_each(|client| processes.begin(client));
        Ok(processes)
    }

    /// Begins the next incarnation of a client.
    pub(super) fn begin(&mut self, client: usize) {
        let client = &mut self.clients[client];
        let life = client.lives.len() + 1;
        let history = self.folder.join(format!("history/{}.{life}", client.name));
        client.options.history.clone_from(&history);
        client.options.seed = client.rng.number();
        let mut command: Vec<OsString> = client.enter.clone();
        command.extend(client.clock.iter().flat_map(WallClock::env_args));
        command.extend([self.program.clone().into(), "client".into()]);
        command.extend(client.options.to_args().into_iter().map(OsString::from));
        // The sentinel removes this folder, which is empty, when the rig dies.
        let guarded = self.folder.join(format!("{}.guard", client.name));
        let log = self.folder.join(format!("{}.log", client.name));
        client.process = Some(Sentinel::spawn(&guarded, &log, &command));
        client.lives.push((history, None));
    }

    /// Kills an incarnation with SIGKILL, and everything that it started.
    pub(super) fn kill(&mut self, client: usize) {
        let client = &mut self.clients[client];
        let Some(process) = client.process.take() else { return };
        if let Some((_, killed)) = client.lives.last_mut() {
            *killed = Some(now());
        }
        signal(&process, Signal::KILL);
        process.kill();
    }

    pub(super) fn stop(&self, client: usize) {
        if let Some(process) = &self.clients[client].process {
            signal(process, Signal::STOP);
            process.pause();
        }
    }

    pub(super) fn resume(&self, client: usize) {
        if let Some(process) = &self.clients[client].process {
            signal(process, Signal::CONT);
        }
    }

    /// Sets its clock on the wall so many seconds beside the truth; none if it has no clock of its own.
    pub(super) fn set_clock(&self, client: usize, beside_s: i64) -> Option<()> {
        self.clients[client].clock.as_ref()?.set(beside_s).ok()
    }

    pub(super) fn name(&self, client: usize) -> &str {
        &self.clients[client].name
    }

    pub(super) fn len(&self) -> usize {
        self.clients.len()
    }

    pub(super) fn is_alive(&self, client: usize) -> bool {
        self.clients[client].process.as_ref().is_some_and(Sentinel::is_running)
    }

    /// Faults are over: all clients finish their work.
    pub(super) fn calm(&self) {
        for process in self.clients.iter().filter_map(|client| client.process.as_ref()) {
            process.signal(Signal::USR1);
        }
    }

    /// All clients must exit.
    pub(super) fn go(&self) {
        for process in self.clients.iter().filter_map(|client| client.process.as_ref()) {
            process.signal(Signal::TERM);
        }
    }

    /// Waits until all clients have exited; kills those that have not, and returns their names.
    pub(super) fn await_end(&mut self, within: Duration) -> Vec<String> {
        let deadline = Instant::now() + within;
        let mut left = Vec::new();
        for client in &mut self.clients {
            let Some(process) = client.process.take() else { continue };
            while process.is_running() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(10));
            }
            if process.is_running() {
                left.push(format!("{} does not go", client.name));
            }
            let group = Pid::from_raw(process.pid().cast_signed());
            signal(&process, Signal::KILL);
            process.kill();
            if group.is_some_and(|group| test_kill_process_group(group).is_ok()) {
                left.push(format!("{} left processes behind", client.name));
            }
        }
        left
    }

    /// Waits until every client has done each kind of operation since a moment; else returns the
    /// names of those that have not.
    pub(super) fn await_progress(
        &self,
        since: Stamp,
        within: Duration,
        against: LockUnderTest,
    ) -> Result<(), Vec<String>> {
        let wanted: &[OperationKind] = match against {
            LockUnderTest::Tenure | LockUnderTest::Broken(_) => {
                &[OperationKind::Lock, OperationKind::Read, OperationKind::Register]
            }
            LockUnderTest::Plain | LockUnderTest::Etcdctl => &[OperationKind::Lock],
        };
        self.await_lines(within, |lines| {
            let mut open = std::collections::BTreeMap::new();
            let mut done = BTreeSet::new();
            for line in lines.iter().filter(|line| line.at > since) {
                match &line.event {
                    HistoryEvent::Asked { op, work, .. } => {
                        open.insert(*op, *work);
                    }
                    HistoryEvent::Answered { op, outcome: OperationOutcome::Ok, .. } => {
                        done.extend(open.remove(op));
                    }
                    _ => {}
                }
            }
            wanted.iter().all(|work| done.contains(work))
        })
    }

    /// Waits until every client has settled; else returns the names of those that have not.
    pub(super) fn await_settled(&self, within: Duration) -> Result<(), Vec<String>> {
        self.await_lines(within, |lines| lines.iter().any(|line| line.event == HistoryEvent::Settled))
    }

    /// Waits until the histories of all living clients meet a condition; else returns the names of
    /// those that do not.
    fn await_lines(
        &self,
        within: Duration,
        is_enough: impl Fn(&[crate::history::HistoryLine]) -> bool,
    ) -> Result<(), Vec<String>> {
        let deadline = Instant::now() + within;
        let mut late = Vec::new();
        for client in &self.clients {
            let Some((path, _)) = client.lives.last() else { continue };
            let (mut lines, mut offset) = (Vec::new(), 0);
            loop {
                // Not there before the process has begun.
                lines.extend(read_on(path, &mut offset).unwrap_or_default());
                if is_enough(&lines) {
                    break;
                }
                if Instant::now() > deadline {
                    late.push(client.name.clone());
                    break;
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        if late.is_empty() { Ok(()) } else { Err(late) }
    }

    /// The last incarnation of every client.
    pub(super) fn living(&self) -> Result<Vec<ClientLife>, String> {
        let last = self.clients.iter().filter_map(|client| Some((client, client.lives.last()?)));
        last.map(|(client, life)| read_life(client, life)).collect()
    }

    /// All incarnations of all clients.
    pub(super) fn lives(&self) -> Result<Vec<ClientLife>, String> {
        let lives =
            self.clients.iter().flat_map(|client| client.lives.iter().map(move |life| (client, life)));
        lives.map(|(client, life)| read_life(client, life)).collect()
    }

    /// Panics that clients wrote into their logs.
    pub(super) fn panics(&self) -> Vec<String> {
        let mut panics = Vec::new();
        for client in &self.clients {
            let text = std::fs::read(self.folder.join(format!("{}.log", client.name))).unwrap_or_default();
            let text = String::from_utf8_lossy(&text);
            panics.extend(
                text.lines()
                    .filter(|line| line.contains("panicked"))
                    .map(|line| format!("{}: {line}", client.name)),
            );
        }
        panics
    }
}

fn read_life(
    client: &ClientProcess,
    (path, killed_at): &(PathBuf, Option<Stamp>),
) -> Result<ClientLife, String> {
    let lines = match read(path) {
        Ok(lines) => lines,
        // Killed before it could open its history.
        Err(_) if killed_at.is_some() && !Path::new(path).exists() => Vec::new(),
        Err(error) => return Err(error),
    };
    let file = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    Ok(ClientLife { file, client: client.name.clone(), lines, killed_at: *killed_at })
}

/// To the client and everything that it started; before it has made its group, to itself alone.
fn signal(process: &Sentinel, signal: Signal) {
    let group = Pid::from_raw(process.pid().cast_signed());
    let reached = group.is_some_and(|group| kill_process_group(group, signal).is_ok());
    if !reached {
        process.signal(signal);
    }
}

fn absolute(path: &Path) -> Result<PathBuf, String> {
    std::path::absolute(path).map_err(|error| format!("{}: {error}", path.display()))
}
