//! A running etcd of one or more members, ended with the value.

use std::fs::Permissions;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::binary::{EtcdVersion, binary, version_of};
use crate::builder::Builder;
use crate::grant;
use crate::member::{EtcdMember, MemberPlan, Ports};
use crate::peers::Peers;

/// Space a memory disk must have free. A member preallocates 123 MB; three members with some data in
/// each of two parallel tests still fit. Docker's 64 MB do not.
const MEMORY_DISK_BYTES_MIN: u64 = 2 << 30;

/// How often a start is tried with other ports when another program took one in between.
const STARTS_MAX: usize = 5;

/// For the cluster to accept a new member or to agree on a leader.
const AGREEMENT_WAIT: Duration = Duration::from_secs(30);

/// A running etcd; dropping it ends its processes and removes its files.
#[derive(Debug)]
pub struct Etcd {
    // Before the folder: the processes must be gone when it is removed.
    members: Vec<EtcdMember>,
    peers: Option<Peers>,
    folder: TempDir,
    builder: Builder,
    binary: PathBuf,
    version: EtcdVersion,
}

impl Etcd {
    /// One member with fast timers, healthy.
    pub fn start() -> Etcd {
        Etcd::builder().start()
    }

    /// That many members with fast timers, all healthy.
    pub fn cluster(members: usize) -> Etcd {
        Etcd::builder().members(members).start()
    }

    /// For everything else.
    pub fn builder() -> Builder {
        Builder::new()
    }

    pub(crate) fn from_builder(builder: Builder) -> Etcd {
        let binary = binary();
        let version = version_of(&binary);
        let folder = folder(&builder);
        let mut etcd = Etcd { members: Vec::new(), peers: None, folder, builder, binary, version };
        for attempt in 1.. {
            etcd.prepare_all();
            etcd.members.iter().for_each(EtcdMember::spawn);
            let trouble = etcd.members.iter().find_map(|member| Some((member, member.await_health().err()?)));
            let Some((member, trouble)) = trouble else { break };
            let log = member.log_excerpt();
            let is_port_taken = log.contains("address already in use");
            assert!(
                is_port_taken && attempt < STARTS_MAX,
                "etcd {} {trouble}; its log:\n{log}",
                member.name()
            );
            etcd.members.clear();
        }
        if let Some(peers) = &etcd.peers {
            peers.introduce(etcd.ids());
        }
        if etcd.builder.tls.is_none() && !etcd.builder.without_auth {
            grant::enable(&etcd.members[0]);
        }
        etcd
    }

    /// The ids of the members, in their order.
    fn ids(&self) -> Vec<u64> {
        let answer = self.insist("/v3/cluster/member/list", "{}");
        let id_of = |member: &EtcdMember| {
            let of_one = answer
                .split("{\"ID\":\"")
                .find(|text| text.contains(&format!("\"name\":\"{}\"", member.name())))?;
            of_one.split('"').next()?.parse::<u64>().ok()
        };
        let ids = self
            .members
            .iter()
            .map(|member| id_of(member).unwrap_or_else(|| panic!("{} has no id in {answer}", member.name())));
        ids.collect()
    }

    /// Lays out the members with fresh ports and empty folders.
    fn prepare_all(&mut self) {
        let ports: Vec<Ports> =
            (0..self.builder.members).map(|index| Ports::lease_at(self.builder.host(index).ip)).collect();
        if self.builder.peer_wires {
            let addrs: Vec<SocketAddr> = ports.iter().map(|ports| ports.peer.addr()).collect();
            self.peers = Some(Peers::to(&addrs));
        }
        let peers: Vec<String> = ports
            .iter()
            .enumerate()
            .map(|(index, ports)| format!("{}={}", name(index), self.advertised(index, ports)))
            .collect();
        let peers = peers.join(",");
        self.members = ports
            .into_iter()
            .enumerate()
            .map(|(index, ports)| EtcdMember::prepare(self.plan(index, ports), &peers, "new"))
            .collect();
    }

    fn advertised(&self, index: usize, ports: &Ports) -> String {
        self.peers.as_ref().map_or_else(|| ports.peer_url(), |peers| peers.url(index))
    }

    fn plan(&self, index: usize, ports: Ports) -> MemberPlan {
        let name = name(index);
        let folder = self.folder.path().join(&name);
        // Left over from a start that lost its port.
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir(&folder)
            .unwrap_or_else(|error| panic!("{} cannot be made: {error}", folder.display()));
        let mut command = self.builder.host(index).enter;
        command.push(self.binary.clone().into());
        self.builder.push_args(self.version, &mut command);
        let advertised = self.advertised(index, &ports);
        MemberPlan { name, folder, ports, advertised, has_tls: self.builder.tls.is_some(), command }
    }

    /// The members in the order they were started.
    pub fn members(&self) -> &[EtcdMember] {
        &self.members
    }

    /// One member, counted from 0.
    pub fn member(&self, index: usize) -> &EtcdMember {
        &self.members[index]
    }

    /// The clients' URLs of all members.
    pub fn client_urls(&self) -> Vec<String> {
        self.members.iter().map(EtcdMember::client_url).collect()
    }

    /// All members as `127.0.0.1:port,127.0.0.1:port`.
    pub fn endpoints(&self) -> String {
        let addrs: Vec<String> = self.members.iter().map(|member| member.client_addr().to_string()).collect();
        addrs.join(",")
    }

    /// The version that the binary reports.
    pub fn version(&self) -> EtcdVersion {
        self.version
    }

    /// The folder with everything the members write.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The index of the leader, waited for.
    ///
    /// # Panics
    /// If there is none within half a minute.
    pub fn leader(&self) -> usize {
        let deadline = Instant::now() + AGREEMENT_WAIT;
        loop {
            let mut running = self.members.iter().enumerate().filter(|(_, member)| member.is_running());
            if let Some((index, _)) = running.find(|(_, member)| member.is_leader()) {
                return index;
            }
            assert!(Instant::now() < deadline, "no leader within 30 s:\n{}", self.members[0].log_excerpt());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// From now on no message of one member reaches the other, until [`Etcd::mend_wires`]. The
    /// other direction is separate.
    ///
    /// # Panics
    /// Unless it was started with [`Builder::peer_wires`].
    pub fn cut_wire(&self, from: usize, to: usize) {
        self.wires().cut(from, to);
    }

    /// All members hear each other again.
    ///
    /// # Panics
    /// As [`Etcd::cut_wire`].
    pub fn mend_wires(&self) {
        self.wires().mend();
    }

    fn wires(&self) -> &Peers {
        self.peers.as_ref().expect("wires are cut where they were asked for: Builder::peer_wires")
    }

    /// Kills all members at once, as a power cut would.
    pub fn kill_all(&self) {
        self.members.iter().for_each(EtcdMember::kill);
    }

    /// Starts every member that does not run and waits until all are healthy.
    pub fn restart_all(&self) {
        self.members.iter().for_each(EtcdMember::spawn);
        self.members.iter().for_each(EtcdMember::wait_until_healthy);
    }

    /// Adds one member to the running ones and waits until all are healthy.
    ///
    /// It joins as a learner and is promoted when it has caught up. A voter that does not run yet would
    /// take the majority from a single member, and the new one waits five seconds for its answers.
    /// Start with [`Timers::Cluster`](crate::Timers::Cluster): the fast timers of a single member elect
    /// too often once there are several.
    ///
    /// # Panics
    /// If the cluster does not take the member or it does not become healthy, and with TLS.
    pub fn grow(&mut self) -> &EtcdMember {
        assert!(self.peers.is_none(), "a cluster with wires that can be cut cannot grow");
        let ports = Ports::lease_at(self.builder.host(self.members.len()).ip);
        let document = format!("{{\"peerURLs\":[\"{}\"],\"isLearner\":true}}", ports.peer_url());
        let answer = self.insist("/v3/cluster/member/add", &document);
        let Some(id) = id_of_added(&answer) else { panic!("the new member has no id in {answer}") };
        let index = self.members.len();
        let mut peers: Vec<String> =
            self.members.iter().map(|member| format!("{}={}", member.name(), member.peer_url())).collect();
        peers.push(format!("{}={}", name(index), ports.peer_url()));
        let member = EtcdMember::prepare(self.plan(index, ports), &peers.join(","), "existing");
        member.spawn();
        self.insist("/v3/cluster/member/promote", &format!("{{\"ID\":\"{id}\"}}"));
        self.members.push(member);
        self.members.iter().for_each(EtcdMember::wait_until_healthy);
        &self.members[index]
    }

    /// Posts until the cluster agrees: without a leader, or with a learner behind, it refuses at once.
    fn insist(&self, path: &str, document: &str) -> String {
        let deadline = Instant::now() + AGREEMENT_WAIT;
        loop {
            let member = self.members.iter().find(|member| member.is_running());
            let member = member.expect("an etcd grows only while a member runs");
            match member.post(path, document) {
                Ok(answer) => return answer,
                Err(refusal) => assert!(Instant::now() < deadline, "{path} is refused: {refusal}"),
            };
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// The decimal id of the member in `{"header":{…},"member":{"ID":"123",…},…}`.
fn id_of_added(answer: &str) -> Option<&str> {
    answer.split_once("\"member\":{\"ID\":\"")?.1.split('"').next()
}

fn name(index: usize) -> String {
    format!("m{}", index + 1)
}

/// A 0700 folder, in memory where that is wanted and has room.
fn folder(builder: &Builder) -> TempDir {
    let memory_disk = Path::new("/dev/shm");
    let parent = if !builder.durable && free_bytes(memory_disk) >= MEMORY_DISK_BYTES_MIN {
        memory_disk.to_owned()
    } else {
        std::env::temp_dir()
    };
    tempfile::Builder::new()
        .prefix("tenure-etcd-")
        .permissions(Permissions::from_mode(0o700))
        .tempdir_in(&parent)
        .unwrap_or_else(|error| panic!("no folder can be made in {}: {error}", parent.display()))
}

fn free_bytes(folder: &Path) -> u64 {
    rustix::fs::statvfs(folder).map_or(0, |stat| stat.f_bavail.saturating_mul(stat.f_frsize))
}
