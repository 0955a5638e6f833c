//! Where the clients work: etcd with three members behind a proxy for each client and member, or a file.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tenure::store::{Store, StoreError, StoreUrl};
use tenure_fixture::{Etcd, Mode, Proxy};
use tokio::runtime::Runtime;

use super::network::{MEMBERS, Network};
use crate::client::{USER, open};
use crate::options::{EngineKind, NetworkKind, Options};

/// How long the rig insists on something while the store may be away.
const INSISTENCE: Duration = Duration::from_secs(30);

/// Idle seconds after which etcd forgets a token, where it requires one: less than many faults
/// last.
const TOKEN_TTL_S: u32 = 2;

/// The store, as the rig sees it.
pub(crate) struct NemesisStore {
    runtime: Runtime,
    observer: Option<Store>,
    /// By client, then by member.
    pub(super) proxies: Vec<Vec<Proxy>>,
    // Before the network: members live in its namespaces.
    pub(super) etcd: Option<Etcd>,
    /// The network of members and clients, where that is not the loopback.
    pub(super) network: Option<Network>,
    file: Option<(TempDir, PathBuf)>,
    auth: bool,
}

impl NemesisStore {
    /// Starts it, empty.
    pub(super) fn start(options: &Options) -> Result<NemesisStore, String> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        let mut place = match options.kind {
            EngineKind::Etcd => {
                let network = match options.network {
                    NetworkKind::Own => Some(Network::build(options.clients, &options.folder)?),
                    NetworkKind::Loopback => None,
                };
                let mut builder = Etcd::builder().members(MEMBERS);
                builder = match &network {
                    Some(network) => {
                        builder.hosts((0..MEMBERS).map(|member| network.member(member)).collect())
                    }
                    None => builder.peer_wires(),
                };
                if options.auth {
                    builder = builder.auth_token_ttl_s(TOKEN_TTL_S).bcrypt_cost(4);
                }
                let etcd = builder.start();
                let at = |member| match &network {
                    Some(_) => Network::door(member),
                    None => Ipv4Addr::LOCALHOST,
                };
                let to_all = |_| {
                    let members = etcd.members().iter().enumerate();
                    members.map(|(index, member)| Proxy::at(at(index), member.client_addr())).collect()
                };
                let proxies = (0..options.clients).map(to_all).collect();
                let etcd = Some(etcd);
                NemesisStore {
                    runtime,
                    observer: None,
                    proxies,
                    etcd,
                    network,
                    file: None,
                    auth: options.auth,
                }
            }
            EngineKind::File => {
                let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
                let path = folder.path().join("nemesis.db");
                NemesisStore {
                    runtime,
                    observer: None,
                    proxies: Vec::new(),
                    etcd: None,
                    network: None,
                    file: Some((folder, path)),
                    auth: false,
                }
            }
        };
        if options.auth {
            place.enable_auth()?;
        }
        place.observer = Some(
            place.runtime.block_on(open(&place.direct(), place.auth)).map_err(|error| error.to_string())?,
        );
        Ok(place)
    }

    /// The address without anything in between.
    fn direct(&self) -> StoreUrl {
        match (&self.etcd, &self.file) {
            (Some(etcd), _) => format!("etcd://{}", etcd.endpoints()).parse().expect("addresses of members"),
            (None, Some((_, path))) => StoreUrl::File(path.clone()),
            (None, None) => StoreUrl::Memory,
        }
    }

    /// The address for a client.
    pub(super) fn address(&self, client: usize) -> StoreUrl {
        match self.proxies.get(client) {
            Some(proxies) => {
                let addrs: Vec<String> = proxies.iter().map(|proxy| proxy.addr().to_string()).collect();
                format!("etcd://{}", addrs.join(",")).parse().expect("addresses of proxies")
            }
            None => self.direct(),
        }
    }

    /// Asks the store something, again and again while it is away.
    pub(super) fn insist<T, F: Future<Output = Result<T, StoreError>>>(
        &self,
        what: &str,
        read: impl Fn(Store) -> F,
    ) -> Result<T, String> {
        let Some(observer) = &self.observer else { return Err(format!("{what}: the observer is closed")) };
        let deadline = Instant::now() + INSISTENCE;
        self.runtime.block_on(async {
            loop {
                match read(observer.clone()).await {
                    Ok(answer) => return Ok(answer),
                    Err(error) if Instant::now() > deadline => return Err(format!("{what}: {error}")),
                    Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                }
            }
        })
    }

    /// Reads once; the store may be unreachable.
    pub(super) fn read<T>(&self, read: impl AsyncFnOnce(Store) -> T) -> Option<T> {
        let observer = self.observer.clone()?;
        self.runtime
            .block_on(async { tokio::time::timeout(Duration::from_secs(5), read(observer)).await.ok() })
    }

    /// Posts to the first member that replies.
    pub(super) fn post(&self, path: &str, document: &str) -> Result<String, String> {
        let Some(etcd) = &self.etcd else { return Err("no etcd".to_owned()) };
        let mut last = String::new();
        for member in etcd.members().iter().filter(|member| member.is_running()) {
            match member.post(path, document) {
                Ok(answer) => return Ok(answer),
                Err(error) => last = error.to_string(),
            }
        }
        Err(format!("{path}: {last}"))
    }

    /// No message of one member reaches another, until the link is restored.
    pub(super) fn cut_wire(&self, from: usize, to: usize) {
        match (&self.network, &self.etcd) {
            (Some(network), _) => {
                network.cut_wire(from, to).unwrap_or_else(|why| panic!("a wire cannot be cut: {why}"));
            }
            (None, Some(etcd)) => etcd.cut_wire(from, to),
            (None, None) => {}
        }
    }

    /// All members hear each other again.
    pub(super) fn mend_wires(&self) {
        match (&self.network, &self.etcd) {
            (Some(network), _) => network.mend_members(),
            (None, Some(etcd)) => etcd.mend_wires(),
            (None, None) => {}
        }
    }

    /// A client's link in the kernel is whole again.
    pub(super) fn mend_link(&self, client: usize) {
        if let Some(network) = &self.network {
            network.mend_client(client);
        }
    }

    /// Where the ledger is to be.
    pub(super) fn books(&self) -> Ipv4Addr {
        self.network.as_ref().map_or(Ipv4Addr::LOCALHOST, Network::books)
    }

    /// Ends everything that was done to links and members.
    pub(super) fn heal(&self) {
        self.proxies.iter().flatten().for_each(|proxy| proxy.set(Mode::Pass));
        if let Some(network) = &self.network {
            network.mend_all();
        }
        self.mend_wires();
        if let Some(etcd) = &self.etcd {
            etcd.members()
                .iter()
                .filter(|member| member.is_running())
                .for_each(tenure_fixture::EtcdMember::resume);
            etcd.restart_all();
        }
    }

    /// Closes the observer; watches that etcd still has then were not cancelled by a client.
    pub(super) fn watchers_left(&mut self) -> u64 {
        if let Some(observer) = self.observer.take() {
            self.runtime.block_on(observer.close());
        }
        let Some(etcd) = &self.etcd else { return 0 };
        let watchers = || {
            etcd.members()
                .iter()
                .map(|member| member.metric("etcd_debugging_mvcc_watcher_total"))
                .sum::<f64>()
        };
        let deadline = Instant::now() + Duration::from_secs(10);
        while watchers() > 0.0 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
        format!("{:.0}", watchers()).parse().unwrap_or(u64::MAX)
    }

    /// From now on etcd requires a user and a password.
    fn enable_auth(&self) -> Result<(), String> {
        let (user, password) = USER;
        for (path, document) in [
            ("/v3/auth/user/add", format!("{{\"name\":\"{user}\",\"password\":\"{password}\"}}")),
            ("/v3/auth/role/add", "{\"name\":\"root\"}".to_owned()),
            ("/v3/auth/user/grant", format!("{{\"user\":\"{user}\",\"role\":\"root\"}}")),
            ("/v3/auth/enable", "{}".to_owned()),
        ] {
            self.post(path, &document)?;
        }
        Ok(())
    }
}
