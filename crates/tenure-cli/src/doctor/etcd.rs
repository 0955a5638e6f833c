//! The checks of an etcd cluster: connection, TLS, permissions, members, space and known defects.

use std::collections::BTreeSet;

use tenure::store::{StoreUrl, Transport};
use tenure_core::id::Namespace;
use tenure_core::layout::{Key, Layout};
use tenure_etcd::{
    Alarm, Client, Compare, CompareValue, Error, Op, Put, Range, Relation, Status, Txn, known_defects,
};

use super::{DoctorCheck, round_trip};
use crate::connect::{self, ConnectSettings};
use crate::failure::{Code, Failure};

pub(super) async fn check(
    url: &StoreUrl,
    endpoints: &[String],
    security: Transport,
    settings: &ConnectSettings,
    checks: &mut Vec<DoctorCheck>,
) {
    let config = match connect::etcd_config(endpoints, security, settings).await {
        Ok(config) => config,
        Err(failure) => return checks.push(DoctorCheck::fail("connection", failure)),
    };
    let client = match settings.retry.open(|| Client::connect(config.clone())).await {
        Ok(client) => client,
        Err(Some(error)) => return checks.extend(not_connected(error, url, security, settings)),
        Err(None) => {
            let failure = Failure::new(Code::Unavailable, format!("{url} did not answer in time"))
                .hint("check the addresses with `tenure config show`, and that the members run");
            return checks.push(DoctorCheck::fail("connection", failure));
        }
    };
    checks.push(tls(url, security));
    checks.push(auth(url, settings));
    let read = || async {
        let key = format!("/{}/doctor", settings.namespace.value).into();
        client.range(Range { key, ..Range::default() }).await?;
        Ok(())
    };
    checks.push(round_trip(read).await);
    checks.push(access(&client, settings.namespace.value.as_str()).await);
    checks.extend(proxy(&client).await);
    match client.status().await {
        Ok(status) => {
            checks.extend(version(&status));
            checks.push(members(&client, &status).await);
            checks.push(space(&client, &status).await);
        }
        Err(error) => checks.push(DoctorCheck::fail("server", error.into())),
    }
    client.close().await;
}

/// The failed check. TLS and sign-in are not reported as ok, because without a connection they are unknown.
fn not_connected(
    error: Error,
    url: &StoreUrl,
    security: Transport,
    settings: &ConnectSettings,
) -> Vec<DoctorCheck> {
    let (tls_failed, auth_failed) = (matches!(error, Error::Tls { .. }), matches!(error, Error::Denied(_)));
    let mut checks = Vec::new();
    // A plain address and a missing user are known from the configuration.
    if security == Transport::Plain && !tls_failed {
        checks.push(tls(url, security));
    }
    if settings.user.is_none() && settings.cert.is_none() && !auth_failed {
        checks.push(auth(url, settings));
    }
    let name = match (tls_failed, auth_failed) {
        (true, _) => "tls",
        (_, true) => "auth",
        (false, false) => "connection",
    };
    checks.push(DoctorCheck::fail(name, error.into()));
    checks
}

/// Whether this user may read and write in the namespace. No command needs more.
///
/// The writes are in a transaction with a condition that is never true: the server checks the permission and changes nothing.
async fn access(client: &Client, namespace: &str) -> DoctorCheck {
    let prefix = format!("/{}/", namespace.trim_matches('/'));
    let end = format!("{}0", prefix.trim_end_matches('/'));
    let all =
        Range { key: prefix.clone().into(), range_end: end.into(), count_only: true, ..Range::default() };
    let never = Compare {
        key: format!("{prefix}doctor").into(),
        relation: Relation::Less,
        target: CompareValue::Version(0),
    };
    let puts = written_prefixes()
        .into_iter()
        .map(|folder| Op::Put(Put { key: format!("{prefix}{folder}doctor").into(), ..Put::default() }));
    let txn = Txn { when: vec![never], then: puts.collect(), ..Txn::default() };
    let read = client.range(all).await.map(drop);
    let tried = match read {
        Ok(()) => client.txn(txn).await.map(drop),
        Err(error) => Err(error),
    };
    match tried {
        Ok(()) => DoctorCheck::ok("access", format!("the prefix {prefix} can be read and written")),
        Err(error) => DoctorCheck::fail("access", error.into()),
    }
}

/// The prefixes that commands write to, below that of the namespace, and the namespace itself. A grant may be narrower than the
/// namespace, so each is checked.
fn written_prefixes() -> BTreeSet<String> {
    let namespace = Namespace::parse("n").expect("a name");
    let layout = Layout::new(&namespace);
    let keys = Key::one_of_each().into_iter().map(|key| layout.encode(&key));
    let folders = keys.filter_map(|key| {
        let text = String::from_utf8_lossy(&key);
        Some(format!("{}/", text.strip_prefix("/n/")?.split('/').next()?))
    });
    folders.chain([String::new()]).collect()
}

/// Detects etcd's gRPC proxy. It renews leases on its own schedule and merges renewals, so a lease with a short TTL is lost behind it.
async fn proxy(client: &Client) -> Option<DoctorCheck> {
    let is_proxy = client.is_grpc_proxy().await.unwrap_or(false);
    is_proxy.then(|| {
        DoctorCheck::warn(
            "proxy",
            "the endpoint is etcd's gRPC proxy, which delays renewals: leases with a short TTL are lost",
            "name the members themselves with --endpoints, or use a --ttl of 15s or more",
        )
    })
}

fn tls(url: &StoreUrl, security: Transport) -> DoctorCheck {
    match security {
        Transport::Tls => DoctorCheck::ok("tls", "connections are encrypted"),
        Transport::Plain if connect::is_loopback(url) => {
            DoctorCheck::ok("tls", "in the clear, on this machine only")
        }
        Transport::Plain => DoctorCheck::warn(
            "tls",
            "in the clear over a network: keys, values and passwords can be read on the way",
            "use etcds:// with --cacert",
        ),
    }
}

fn auth(url: &StoreUrl, settings: &ConnectSettings) -> DoctorCheck {
    match &settings.user {
        Some(user) => DoctorCheck::ok("auth", format!("signed in as {}", user.value)),
        None if settings.cert.is_some() => DoctorCheck::ok("auth", "by client certificate"),
        None if connect::is_loopback(url) => DoctorCheck::ok("auth", "off, on this machine only"),
        None => DoctorCheck::warn(
            "auth",
            "off: every client that reaches the cluster can change everything in it",
            "enable authentication at the server, then use --user and --password-file",
        ),
    }
}

fn version(status: &Status) -> Vec<DoctorCheck> {
    let Some(version) = status.version else {
        return vec![DoctorCheck::warn(
            "server",
            format!("etcd {}", status.version_text),
            "check whether this is an etcd: its version is unknown",
        )];
    };
    let defects = known_defects(version);
    if defects.is_empty() {
        return vec![DoctorCheck::ok(
            "server",
            format!("etcd {version}, without known lease or watch defects"),
        )];
    }
    let warn = |defect: &tenure_etcd::Defect| {
        let next = format!("upgrade; fixed in {}", defect.fixed_in);
        DoctorCheck::warn("server", format!("etcd {version}: {}", defect.what), next)
    };
    defects.iter().map(warn).collect()
}

async fn members(client: &Client, status: &Status) -> DoctorCheck {
    if status.leader.is_none() {
        let failure = Failure::new(Code::Unavailable, "the cluster has no leader")
            .hint("start a majority of its members; until then the cluster accepts no writes");
        return DoctorCheck::fail("members", failure);
    }
    let members = match client.members().await {
        Ok(members) => members,
        Err(error) => return DoctorCheck::fail("members", error.into()),
    };
    let voters = members.iter().filter(|member| !member.is_learner).count();
    let learners = members.len() - voters;
    let quorum = voters / 2 + 1;
    let learners = if learners > 0 { format!(" and {learners} learners") } else { String::new() };
    let spare = voters - quorum;
    let detail = format!("{voters} voting{learners}; {quorum} must be alive, so {spare} may fail");
    if status.is_learner {
        return DoctorCheck::warn(
            "members",
            format!("{detail}; the connected member is a learner"),
            "add the others to --endpoints",
        );
    }
    if voters % 2 == 0 {
        return DoctorCheck::warn(
            "members",
            detail,
            "use an odd number: one more member tolerates no more failures",
        );
    }
    DoctorCheck::ok("members", detail)
}

async fn space(client: &Client, status: &Status) -> DoctorCheck {
    let mib = |bytes: i64| bytes / (1024 * 1024);
    let detail = format!(
        "the database has {} MiB, {} MiB of them in use",
        mib(status.db_bytes),
        mib(status.db_bytes_in_use)
    );
    match client.alarms().await {
        Err(error) => DoctorCheck::warn(
            "space",
            format!("{detail}; its alarms cannot be read: {error}"),
            "run `tenure doctor` as a user with the root role",
        ),
        Ok(alarms) if alarms.is_empty() => DoctorCheck::ok("space", detail),
        Ok(alarms) => {
            let name = |alarm: &Alarm| match alarm {
                Alarm::NoSpace { member } => format!("NOSPACE at member {member:x}"),
                Alarm::Corrupt { member } => format!("CORRUPT at member {member:x}"),
                Alarm::Other { member, kind } => format!("alarm {kind} at member {member:x}"),
            };
            let names: Vec<String> = alarms.iter().map(name).collect();
            let failure = Failure::new(Code::NoSpace, format!("{detail}; {}", names.join(", ")))
                .hint("delete keys, compact, defragment, then clear the alarm with `etcdctl alarm disarm`");
            DoctorCheck::fail("space", failure)
        }
    }
}
