//! An etcd cluster from outside: can it be reached and trusted, who are its members, what is known to be wrong with it.

use tenure::store::{Security, StoreUrl};
use tenure_etcd::{Alarm, Client, Range, Status, known_defects};

use super::{Check, round_trip};
use crate::connect::{self, Decision};
use crate::failure::{Code, Failure};

pub(super) async fn look(
    url: &StoreUrl,
    endpoints: &[String],
    security: Security,
    decision: &Decision,
    checks: &mut Vec<Check>,
) {
    checks.push(tls(url, security));
    checks.push(auth(url, decision));
    let client = match connect(endpoints, security, decision).await {
        Ok(client) => client,
        Err(failure) => return checks.push(Check::fail("connection", failure)),
    };
    let read = || async {
        let key = format!("/{}/doctor", decision.namespace.value).into();
        Ok(drop(client.range(Range { key, ..Range::default() }).await?))
    };
    checks.push(round_trip(read).await);
    match client.status().await {
        Ok(status) => {
            checks.extend(version(&status));
            checks.push(members(&client, &status).await);
            checks.push(space(&client, &status).await);
        }
        Err(error) => checks.push(Check::fail("server", error.into())),
    }
    client.close().await;
}

async fn connect(endpoints: &[String], security: Security, decision: &Decision) -> Result<Client, Failure> {
    let config = connect::etcd_config(endpoints, security, decision).await?;
    Ok(Client::connect(config).await?)
}

fn tls(url: &StoreUrl, security: Security) -> Check {
    match security {
        Security::Tls => Check::ok("tls", "connections are encrypted"),
        Security::Plain if connect::is_loopback(url) => {
            Check::ok("tls", "in the clear, on this machine only")
        }
        Security::Plain => Check::warn(
            "tls",
            "in the clear over a network: whoever listens reads keys, values and passwords",
            "use etcds:// with --cacert",
        ),
    }
}

fn auth(url: &StoreUrl, decision: &Decision) -> Check {
    match &decision.user {
        Some(user) => Check::ok("auth", format!("signed in as {}", user.value)),
        None if decision.cert.is_some() => Check::ok("auth", "by client certificate"),
        None if connect::is_loopback(url) => Check::ok("auth", "off, on this machine only"),
        None => Check::warn(
            "auth",
            "off: whoever reaches the cluster can change everything in it",
            "turn authentication on at the server, then use --user and --password-file",
        ),
    }
}

fn version(status: &Status) -> Vec<Check> {
    let Some(version) = status.version else {
        return vec![Check::warn(
            "server",
            format!("etcd {}", status.version_text),
            "its version cannot be read",
        )];
    };
    let defects = known_defects(version);
    if defects.is_empty() {
        return vec![Check::ok("server", format!("etcd {version}, without known lease or watch defects"))];
    }
    let warn = |defect: &tenure_etcd::Defect| {
        let next = format!("upgrade; repaired in {}", defect.fixed_in);
        Check::warn("server", format!("etcd {version}: {}", defect.what), next)
    };
    defects.iter().map(warn).collect()
}

async fn members(client: &Client, status: &Status) -> Check {
    if status.leader.is_none() {
        let failure = Failure::new(Code::Unavailable, "the cluster has no leader")
            .hint("bring a majority of its members back; until then nothing can be written");
        return Check::fail("members", failure);
    }
    let members = match client.members().await {
        Ok(members) => members,
        Err(error) => return Check::fail("members", error.into()),
    };
    let voters = members.iter().filter(|member| !member.is_learner).count();
    let learners = members.len() - voters;
    let quorum = voters / 2 + 1;
    let learners = if learners > 0 { format!(" and {learners} that only follow") } else { String::new() };
    let spare = voters - quorum;
    let detail = format!("{voters} voting{learners}; {quorum} must be alive, so {spare} may fail");
    if status.is_learner {
        return Check::warn(
            "members",
            format!("{detail}; the one that answered only follows"),
            "add the others to --endpoints",
        );
    }
    if voters % 2 == 0 {
        return Check::warn("members", detail, "use an odd number: an even one survives no more failures");
    }
    Check::ok("members", detail)
}

async fn space(client: &Client, status: &Status) -> Check {
    let mib = |bytes: i64| bytes / (1024 * 1024);
    let detail = format!(
        "the database has {} MiB, {} MiB of them in use",
        mib(status.db_bytes),
        mib(status.db_bytes_in_use)
    );
    match client.alarms().await {
        Err(error) => Check::warn(
            "space",
            format!("{detail}; its alarms cannot be seen: {error}"),
            "let a user with the root role run `tenure doctor`",
        ),
        Ok(alarms) if alarms.is_empty() => Check::ok("space", detail),
        Ok(alarms) => {
            let name = |alarm: &Alarm| match alarm {
                Alarm::NoSpace { member } => format!("NOSPACE at member {member:x}"),
                Alarm::Corrupt { member } => format!("CORRUPT at member {member:x}"),
                Alarm::Other { member, kind } => format!("alarm {kind} at member {member:x}"),
            };
            let names: Vec<String> = alarms.iter().map(name).collect();
            let failure = Failure::new(Code::NoSpace, format!("{detail}; {}", names.join(", ")))
                .hint("delete keys, compact, defragment, then clear the alarm with `etcdctl alarm disarm`");
            Check::fail("space", failure)
        }
    }
}
