//! One etcd process: its addresses, its figures, and what can be done to it.

use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::port::Port;
use crate::sentinel::Sentinel;
use crate::{http, metrics};

/// How long a member may take to become healthy: a start takes 0.3 s, an election on a machine that is
/// busy with six builds several seconds. Doubling it only makes a broken start fail later.
const HEALTH_WAIT: Duration = Duration::from_secs(30);

/// Between two questions; a start is noticed this late at most.
const HEALTH_POLL: Duration = Duration::from_millis(5);

/// For one health or metrics request to a member on the loopback; longer means that it is stopped or has no majority.
const HEALTH_REQUEST_WAIT: Duration = Duration::from_secs(1);

/// For a request through the gateway; etcd's own timeout is seven seconds.
const REQUEST_WAIT: Duration = Duration::from_secs(10);

/// A member of an [`Etcd`](crate::Etcd); all methods may be called from any thread.
#[derive(Debug)]
pub struct EtcdMember {
    name: String,
    folder: PathBuf,
    ports: Ports,
    has_tls: bool,
    command: Vec<OsString>,
    /// `None` after a kill, until the restart.
    process: Mutex<Option<Sentinel>>,
}

/// The three ports of a member. Health and metrics have one of their own: it stays plain with TLS.
#[derive(Debug)]
pub(crate) struct Ports {
    pub(crate) client: Port,
    pub(crate) peer: Port,
    pub(crate) metrics: Port,
}

impl Ports {
    pub(crate) fn lease_at(ip: Ipv4Addr) -> Ports {
        Ports { client: Port::lease_at(ip), peer: Port::lease_at(ip), metrics: Port::lease_at(ip) }
    }

    pub(crate) fn peer_url(&self) -> String {
        format!("http://{}", self.peer.addr())
    }
}

/// What [`EtcdMember::prepare`] needs besides the shared arguments.
pub(crate) struct MemberPlan {
    pub(crate) name: String,
    pub(crate) folder: PathBuf,
    pub(crate) ports: Ports,
    /// The peer URL for the other members: its own peer port, or that of a proxy before it.
    pub(crate) advertised: String,
    pub(crate) has_tls: bool,
    /// The binary and the arguments that all members share.
    pub(crate) command: Vec<OsString>,
}

impl EtcdMember {
    /// A member that does not run yet.
    pub(crate) fn prepare(plan: MemberPlan, initial_cluster: &str, state: &str) -> EtcdMember {
        let MemberPlan { name, folder, ports, advertised, has_tls, mut command } = plan;
        let client_url = url(ports.client.addr(), has_tls);
        for (flag, value) in [
            ("--name", name.clone()),
            ("--listen-client-urls", client_url.clone()),
            ("--advertise-client-urls", client_url),
            ("--listen-peer-urls", ports.peer_url()),
            ("--initial-advertise-peer-urls", advertised),
            ("--listen-metrics-urls", url(ports.metrics.addr(), false)),
            ("--initial-cluster", initial_cluster.to_owned()),
            ("--initial-cluster-state", state.to_owned()),
        ] {
            command.extend([flag.into(), value.into()]);
        }
        command.extend(["--data-dir".into(), folder.join("data").into()]);
        EtcdMember { name, folder, ports, has_tls, command, process: Mutex::new(None) }
    }

    /// The name in the member list.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where clients connect: `http://127.0.0.1:port`, or `https` with TLS.
    pub fn client_url(&self) -> String {
        url(self.client_addr(), self.has_tls)
    }

    /// Where clients connect.
    pub fn client_addr(&self) -> SocketAddr {
        self.ports.client.addr()
    }

    /// The pid of etcd itself.
    ///
    /// # Panics
    /// If the member was killed and not restarted.
    pub fn pid(&self) -> u32 {
        self.with_process(Sentinel::pid)
    }

    /// Whether the process runs; a paused one does.
    pub fn is_running(&self) -> bool {
        self.running().as_ref().is_some_and(Sentinel::is_running)
    }

    /// Ends the process with SIGKILL and returns when it is gone; its data and its ports stay.
    pub fn kill(&self) {
        if let Some(process) = self.running().take() {
            process.kill();
        }
    }

    /// Stops the process with SIGSTOP: its sockets stay, and it does not reply.
    pub fn pause(&self) {
        self.with_process(Sentinel::pause);
    }

    /// Lets a paused process go on.
    pub fn resume(&self) {
        self.with_process(|process| process.signal(Signal::CONT));
    }

    /// Kills the process if it runs, starts it again on its data and ports, and waits for health.
    ///
    /// # Panics
    /// If it does not become healthy; without a majority of members use [`EtcdMember::spawn`].
    pub fn restart(&self) {
        self.kill();
        self.spawn();
        self.wait_until_healthy();
    }

    /// Starts the process without waiting for health; a running one is left alone.
    pub fn spawn(&self) {
        let mut process = self.running();
        if process.is_none() {
            *process = Some(Sentinel::spawn(&self.folder, &self.log_path(), &self.command));
        }
    }

    /// Waits until the member reports that it is healthy, which requires a majority of its cluster.
    ///
    /// # Panics
    /// If it does not within half a minute or the process ends, with the end of its log.
    pub fn wait_until_healthy(&self) {
        if let Err(trouble) = self.await_health() {
            panic!("etcd {} {trouble}; its log:\n{}", self.name, self.log_excerpt());
        }
    }

    pub(crate) fn await_health(&self) -> Result<(), &'static str> {
        let deadline = Instant::now() + HEALTH_WAIT;
        while !self.is_healthy() {
            if !self.is_running() {
                return Err("ended instead of becoming healthy");
            }
            if Instant::now() > deadline {
                return Err("did not become healthy within 30 s");
            }
            std::thread::sleep(HEALTH_POLL);
        }
        Ok(())
    }

    /// Whether the member has a leader and can commit; a full database does not count as ill.
    pub fn is_healthy(&self) -> bool {
        let answer = http::get(self.ports.metrics.addr(), "/health?exclude=NOSPACE", HEALTH_REQUEST_WAIT);
        answer.is_ok_and(|answer| answer.status == 200 && answer.body.contains("\"true\""))
    }

    /// Whether this member is the leader at this moment; one that does not reply is not.
    pub fn is_leader(&self) -> bool {
        self.try_metrics().is_ok_and(|page| metrics::sum(&page, "etcd_server_is_leader", "") > 0.0)
    }

    /// The whole `/metrics` page.
    ///
    /// # Panics
    /// If the member does not answer.
    pub fn metrics(&self) -> String {
        self.try_metrics().unwrap_or_else(|error| panic!("{} does not show its metrics: {error}", self.name))
    }

    /// The sum of all series of one metric; 0 if there is none yet.
    pub fn metric(&self, name: &str) -> f64 {
        metrics::sum(&self.metrics(), name, "")
    }

    /// The sum of the series with labels that contain `labels`, such as `grpc_method="Txn"`.
    pub fn metric_with(&self, name: &str, labels: &str) -> f64 {
        metrics::sum(&self.metrics(), name, labels)
    }

    /// Posts to etcd's JSON gateway, such as `/v3/kv/put`; bytes inside the document are base64.
    ///
    /// For requests that must work without a client library; a refusal is an error with the
    /// server's message.
    pub fn post(&self, path: &str, json: &str) -> std::io::Result<String> {
        self.post_as(None, path, json)
    }

    /// The same with a user's token.
    pub(crate) fn post_as(&self, token: Option<&str>, path: &str, json: &str) -> std::io::Result<String> {
        assert!(!self.has_tls, "the fixture's HTTP has no TLS: use a client of your own");
        let answer = http::post(self.client_addr(), path, token, json, REQUEST_WAIT)?;
        if answer.status != 200 {
            return Err(std::io::Error::other(format!("{}: {}", answer.status, answer.body)));
        }
        Ok(answer.body)
    }

    /// Everything etcd wrote to its log, over all its restarts.
    pub fn log(&self) -> String {
        std::fs::read(self.log_path()).map_or_else(
            |error| format!("(the log cannot be read: {error})"),
            |bytes| String::from_utf8_lossy(&bytes).into_owned(),
        )
    }

    /// The beginning, where etcd complains about arguments, and the end, where it logs why it died.
    pub(crate) fn log_excerpt(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        if lines.len() <= 30 {
            return log;
        }
        let (head, tail) = (lines[..5].join("\n"), lines[lines.len() - 20..].join("\n"));
        format!("{head}\n({} lines left out)\n{tail}", lines.len() - 25)
    }

    pub(crate) fn peer_url(&self) -> String {
        self.ports.peer_url()
    }

    /// The folder with the member's data and log; it is removed with the [`Etcd`](crate::Etcd).
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn try_metrics(&self) -> std::io::Result<String> {
        Ok(http::get(self.ports.metrics.addr(), "/metrics", HEALTH_REQUEST_WAIT)?.body)
    }

    fn log_path(&self) -> PathBuf {
        self.folder.join("log")
    }

    fn with_process<T>(&self, act: impl FnOnce(&Sentinel) -> T) -> T {
        let process = self.running();
        act(process.as_ref().unwrap_or_else(|| panic!("{} does not run", self.name)))
    }

    fn running(&self) -> MutexGuard<'_, Option<Sentinel>> {
        // A panic under the lock leaves the process as it was, and Drop must still be able to end it.
        self.process.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

fn url(addr: SocketAddr, has_tls: bool) -> String {
    format!("{}://{addr}", if has_tls { "https" } else { "http" })
}
