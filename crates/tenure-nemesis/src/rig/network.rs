//! A network of the rig's own: a namespace for each member and each client, with kernel links
//! between them that can be cut, narrowed and made lossy.
//!
//! The fixture's proxies forward bytes and break streams. Here packets are lost while connections
//! stay: what was sent arrives late, by itself, after the link is restored, and each direction can
//! be cut separately.
//!
//! The rig itself lives in an unnamed namespace (`unshare --net`), and so does every host, kept by
//! a process that sleeps under a sentinel.
//! **Invariant**: nothing of it outlives the rig, however that ends: an unnamed namespace is
//! removed with its last process, and its links with it. So nothing needs to be cleaned up, and
//! nothing can affect another run.
//!
//! Clients reach each member at an address of the hub, where the proxies are. The ledger has lines of its own, which are never hit: it is the witness.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tenure_fixture::Host;
use tenure_fixture::sentinel::Sentinel;

/// How many members there are.
pub(super) const MEMBERS: usize = 3;

/// No interface has this address, so packets to it are dropped.
const NOWHERE: &str = "02:00:00:00:00:01";

/// For a process to be in its namespace after it was started: it takes a few milliseconds.
const MOVING_IN: Duration = Duration::from_secs(10);

/// What may be wrong with a link that still carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkImpairment {
    /// A third of all packets are dropped.
    Loss,
    /// There is little room.
    Narrow,
    /// Everything takes longer, some of it much.
    Lag,
    /// Some packets overtake others.
    Reorder,
    /// Many arrive twice.
    Duplicate,
}

impl LinkImpairment {
    /// All of them.
    pub(super) const ALL: [LinkImpairment; 5] = [
        LinkImpairment::Loss,
        LinkImpairment::Narrow,
        LinkImpairment::Lag,
        LinkImpairment::Reorder,
        LinkImpairment::Duplicate,
    ];

    /// What `tc` calls it.
    fn tc_args(self) -> &'static str {
        match self {
            LinkImpairment::Loss => "netem loss 30%",
            LinkImpairment::Narrow => "tbf rate 128kbit burst 3200 latency 200ms",
            LinkImpairment::Lag => "netem delay 200ms 150ms distribution normal",
            LinkImpairment::Reorder => "netem delay 30ms reorder 50% 50%",
            LinkImpairment::Duplicate => "netem duplicate 40%",
        }
    }
}

/// Loss without netem, by the packet filter.
const LOSS_RULES: &str = "\
add table ip lossy; \
add chain ip lossy in { type filter hook input priority 0; }; \
add rule ip lossy in iifname \"eth0\" numgen random mod 100 < 30 drop";

/// The network namespaces, and the bridges between them.
pub(super) struct Network {
    hosts: Vec<NetworkHost>,
    /// Which packets are dropped, by source and destination; the hub has no namespace of its own.
    cuts: Mutex<BTreeSet<(Option<usize>, Ipv4Addr)>>,
}

struct NetworkHost {
    ip: Ipv4Addr,
    enter: Vec<OsString>,
    /// The namespace exists as long as this process.
    _keeper: Sentinel,
}

impl Network {
    /// Builds it inside of the namespace that this process lives in, which must be its own.
    pub(super) fn build(clients: usize, folder: &Path) -> Result<Network, String> {
        run("ip link set lo up")?;
        for (bridge, address) in [("hub", hub()), ("books", books())] {
            run(&format!("ip link add {bridge} type bridge"))?;
            run(&format!("ip addr add {address}/24 dev {bridge}"))?;
            run(&format!("ip link set {bridge} up"))?;
        }
        for member in 0..MEMBERS {
            run(&format!("ip addr add {}/24 dev hub", Network::door(member)))?;
        }
        let members = (0..MEMBERS).map(|member| (format!("m{}", member + 1), address(77, 1 + member), None));
        let clients = (0..clients)
            .map(|client| (format!("c{client}"), address(77, 11 + client), Some(address(78, 11 + client))));
        let hosts =
            members.chain(clients).map(|(name, ip, books)| NetworkHost::build(&name, ip, books, folder));
        Ok(Network { hosts: hosts.collect::<Result<_, _>>()?, cuts: Mutex::default() })
    }

    /// Where the proxies to a member are.
    pub(super) fn door(member: usize) -> Ipv4Addr {
        address(77, 101 + member)
    }

    /// Where the ledger is.
    pub(super) fn books(&self) -> Ipv4Addr {
        books()
    }

    /// The namespace of a member.
    pub(super) fn member(&self, member: usize) -> Host {
        self.host(member)
    }

    /// The namespace of a client.
    pub(super) fn client(&self, client: usize) -> Host {
        self.host(MEMBERS + client)
    }

    fn host(&self, host: usize) -> Host {
        let host = &self.hosts[host];
        Host { ip: host.ip, enter: host.enter.clone() }
    }

    /// From now on nothing that one member sends comes to another; the other direction is another wire.
    pub(super) fn cut_wire(&self, from: usize, to: usize) -> Result<(), String> {
        self.cut(Some(from), self.hosts[to].ip)
    }

    /// What a client sends to these members is dropped.
    pub(super) fn mute(&self, client: usize, members: std::ops::Range<usize>) -> Result<(), String> {
        members.into_iter().try_for_each(|member| self.cut(Some(MEMBERS + client), Network::door(member)))
    }

    /// What members send to a client is dropped.
    pub(super) fn deafen(&self, client: usize) -> Result<(), String> {
        self.cut(None, self.hosts[MEMBERS + client].ip)
    }

    /// A client's link is set down: its system reports immediately that there is no route.
    pub(super) fn unplug(&self, client: usize) -> Result<(), String> {
        self.inside(MEMBERS + client, "ip link set eth0 down")
    }

    /// A client's link gets worse.
    pub(super) fn shape_client(&self, client: usize, shape: LinkImpairment) -> Result<(), String> {
        self.shape(MEMBERS + client, shape)
    }

    /// A member's link gets worse, for all clients and members.
    pub(super) fn shape_member(&self, member: usize, shape: LinkImpairment) -> Result<(), String> {
        self.shape(member, shape)
    }

    fn shape(&self, host: usize, shape: LinkImpairment) -> Result<(), String> {
        let shaped = self.inside(host, &format!("tc qdisc replace dev eth0 root {}", shape.tc_args()));
        match (shaped, shape) {
            (Err(_), LinkImpairment::Loss) => {
                let mut words: Vec<OsString> = self.hosts[host].enter.clone();
                words.extend(["nft".into(), LOSS_RULES.into()]);
                execute(&words)
            }
            (shaped, _) => shaped,
        }
    }

    /// Whether a link can be made worse like this here; else why not.
    pub(super) fn can(&self, shape: LinkImpairment) -> Result<(), String> {
        let tried = self.shape_member(0, shape);
        self.mend(0);
        tried
    }

    /// A client's link is whole again.
    pub(super) fn mend_client(&self, client: usize) {
        self.mend(MEMBERS + client);
    }

    /// Members' links are whole again.
    pub(super) fn mend_members(&self) {
        (0..MEMBERS).for_each(|member| self.mend(member));
    }

    /// Everything is whole again.
    pub(super) fn mend_all(&self) {
        (0..self.hosts.len()).for_each(|host| self.mend(host));
    }

    fn mend(&self, host: usize) {
        let ip = self.hosts[host].ip;
        let is_of = |(by, to): &(Option<usize>, Ipv4Addr)| *by == Some(host) || (by.is_none() && *to == ip);
        let cuts: Vec<_> = self.cuts().iter().copied().filter(is_of).collect();
        for (by, to) in cuts {
            self.cuts().remove(&(by, to));
            // What is not there needs no mending.
            let _ = match by {
                Some(by) => self.inside(by, &format!("ip neigh del {to} dev eth0")),
                None => run(&format!("ip neigh del {to} dev hub")),
            };
        }
        for words in ["ip link set eth0 up", "tc qdisc del dev eth0 root", "nft delete table ip lossy"] {
            let _ = self.inside(host, words);
        }
    }

    /// Packets are addressed to a machine that is not there, silently, whatever connection they belong to.
    fn cut(&self, host: Option<usize>, to: Ipv4Addr) -> Result<(), String> {
        self.cuts().insert((host, to));
        let link = if host.is_some() { "eth0" } else { "hub" };
        let words = format!("ip neigh replace {to} lladdr {NOWHERE} nud permanent dev {link}");
        match host {
            Some(host) => self.inside(host, &words),
            None => run(&words),
        }
    }

    fn inside(&self, host: usize, words: &str) -> Result<(), String> {
        let enter = self.hosts[host].enter.iter().cloned();
        execute(&enter.chain(words.split(' ').map(OsString::from)).collect::<Vec<_>>())
    }

    fn cuts(&self) -> MutexGuard<'_, BTreeSet<(Option<usize>, Ipv4Addr)>> {
        self.cuts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl NetworkHost {
    fn build(
        name: &str,
        ip: Ipv4Addr,
        books: Option<Ipv4Addr>,
        folder: &Path,
    ) -> Result<NetworkHost, String> {
        let words = ["unshare", "--net", "sleep", "1000000"].map(OsString::from);
        // The sentinel removes this folder, which is never created, when the rig dies.
        let keeper = Sentinel::spawn(&folder.join(format!("{name}.host")), &folder.join("hosts.log"), &words);
        let space = format!("/proc/{}/ns/net", keeper.pid());
        let deadline = Instant::now() + MOVING_IN;
        while !is_elsewhere(&space) {
            if Instant::now() > deadline {
                return Err(format!("no network of its own for {name}"));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let enter: Vec<OsString> = vec!["nsenter".into(), format!("--net={space}").into()];
        let links = [("hub", "eth0", Some(ip)), ("books", "eth1", books)];
        for (bridge, link, ip) in links.into_iter().filter_map(|(bridge, link, ip)| Some((bridge, link, ip?)))
        {
            let outside = format!("{bridge}-{name}");
            run(&format!("ip link add {outside} type veth peer name {link} netns {}", keeper.pid()))?;
            run(&format!("ip link set {outside} master {bridge} up"))?;
            for words in [format!("ip addr add {ip}/24 dev {link}"), format!("ip link set {link} up")] {
                execute(
                    &enter.iter().cloned().chain(words.split(' ').map(OsString::from)).collect::<Vec<_>>(),
                )?;
            }
        }
        let lo = enter.iter().cloned().chain("ip link set lo up".split(' ').map(OsString::from));
        execute(&lo.collect::<Vec<_>>())?;
        Ok(NetworkHost { ip, enter, _keeper: keeper })
    }
}

/// Whether this process may have a network of its own, and by which words it moves there; else why not, and how it could.
///
/// # Errors
///
/// The reason, for people.
pub fn way_in() -> Result<Vec<&'static str>, String> {
    for (tool, version, package) in [("ip", "-V", "iproute2"), ("nsenter", "--version", "util-linux")] {
        execute(&[tool.into(), version.into()])
            .map_err(|_| format!("there is no `{tool}`: `apt-get install {package}`"))?;
    }
    let ways = [vec!["unshare", "--net", "--"], vec!["unshare", "--user", "--map-root-user", "--net", "--"]];
    for way in ways {
        let tried: Vec<OsString> = way.iter().chain(&["true"]).map(OsString::from).collect();
        if execute(&tried).is_ok() {
            return Ok(way);
        }
    }
    Err("neither `unshare --net` nor `unshare --user --net` is allowed: run it as root".to_owned())
}

fn is_elsewhere(space: &str) -> bool {
    match (std::fs::read_link(space), std::fs::read_link("/proc/self/ns/net")) {
        (Ok(theirs), Ok(outside)) => theirs != outside,
        _ => false,
    }
}

fn hub() -> Ipv4Addr {
    address(77, 254)
}

fn books() -> Ipv4Addr {
    address(78, 254)
}

/// In a namespace of its own every address is free.
fn address(net: u8, number: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, net, 0, u8::try_from(number).expect("there are fewer than a hundred hosts"))
}

fn run(words: &str) -> Result<(), String> {
    execute(&words.split(' ').map(OsString::from).collect::<Vec<_>>())
}

fn execute(words: &[OsString]) -> Result<(), String> {
    let shown = || words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
    let output = Command::new(&words[0])
        .args(&words[1..])
        .output()
        .map_err(|error| format!("{}: {error}", shown()))?;
    if output.status.success() {
        return Ok(());
    }
    let output = String::from_utf8_lossy(&output.stderr);
    Err(format!("`{}` failed: {}", shown(), output.trim().lines().next().unwrap_or_default()))
}
