//! The options of a run, as arguments of a command line: the rig's own, and those that it passes to
//! its clients.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use tenure::store::StoreUrl;
use tenure_core::sabotage::SabotageRule;

use crate::rig::Fault;

/// The TTL of every session: the shortest that the documentation recommends, so that most faults
/// outlast it.
const TTL: Duration = Duration::from_secs(3);

/// The TTL where the margin would hide what is to be found: a renewal waits for its reply for at
/// most a quarter of the TTL or a second, and of 3 s that is hardly more than the margin.
const TTL_BEYOND_MARGIN: Duration = Duration::from_secs(4);

/// Which store is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineKind {
    /// etcd with three members, reached through proxies.
    Etcd,
    /// A file that the processes share.
    File,
}

/// How processes reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkKind {
    /// Over the machine's loopback.
    Loopback,
    /// In a network namespace of the rig's own.
    Own,
}

/// Which lock is tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockUnderTest {
    /// Tenure's, with all other work beside it.
    Tenure,
    /// Tenure's, with one rule broken on purpose.
    Broken(SabotageRule),
    /// A lock as it is often written: a key with a lease. The process that created it relies on it
    /// until it deletes it.
    Plain,
    /// `etcdctl lock` with a command.
    Etcdctl,
}

impl LockUnderTest {
    /// Whether its tokens are those of the store, so that they show the order of holders.
    pub fn has_tokens(self) -> bool {
        !matches!(self, LockUnderTest::Etcdctl)
    }

    /// Whether it is Tenure's, with all other work beside it.
    pub fn does_all_work(self) -> bool {
        matches!(self, LockUnderTest::Tenure | LockUnderTest::Broken(_))
    }

    /// The TTL of every session.
    pub fn ttl(self) -> Duration {
        match self {
            LockUnderTest::Broken(SabotageRule::ValidityFromSending) => TTL_BEYOND_MARGIN,
            LockUnderTest::Tenure
            | LockUnderTest::Broken(_)
            | LockUnderTest::Plain
            | LockUnderTest::Etcdctl => TTL,
        }
    }

    /// Its name on the command line and in the results.
    pub fn name(self) -> String {
        match self {
            LockUnderTest::Tenure => "tenure".to_owned(),
            LockUnderTest::Broken(rule) => format!("{rule:?}"),
            LockUnderTest::Plain => "plain".to_owned(),
            LockUnderTest::Etcdctl => "etcdctl".to_owned(),
        }
    }
}

impl FromStr for LockUnderTest {
    type Err = String;

    fn from_str(text: &str) -> Result<LockUnderTest, String> {
        match text {
            "tenure" => Ok(LockUnderTest::Tenure),
            "plain" => Ok(LockUnderTest::Plain),
            "etcdctl" => Ok(LockUnderTest::Etcdctl),
            rule => SabotageRule::ALL
                .into_iter()
                .find(|known| format!("{known:?}") == rule)
                .map(LockUnderTest::Broken)
                .ok_or_else(|| format!("{rule:?} is neither tenure, plain, etcdctl nor a rule")),
        }
    }
}

/// The options of the rig.
#[derive(Clone, Debug)]
pub struct Options {
    /// For how long faults are injected.
    pub faults_for: Duration,
    /// Which store.
    pub kind: EngineKind,
    /// How processes reach each other.
    pub network: NetworkKind,
    /// Which lock is tested.
    pub against: LockUnderTest,
    /// The seed of the schedule.
    pub seed: u64,
    /// How many processes.
    pub clients: usize,
    /// Whether etcd requires a user, with tokens that expire.
    pub auth: bool,
    /// Only these faults; all that fit otherwise.
    pub faults: Option<Vec<Fault>>,
    /// Where histories, logs and the report go.
    pub folder: PathBuf,
    /// The program to start as clients.
    pub program: PathBuf,
}

/// The options of a client.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Its name, which stays the same in all incarnations.
    pub name: String,
    /// Its store.
    pub store: StoreUrl,
    /// Whether it signs in at etcd.
    pub auth: bool,
    /// Where the counters are.
    pub ledger: SocketAddr,
    /// Where it writes its history.
    pub history: PathBuf,
    /// What it leaves to chance.
    pub seed: u64,
    /// Which lock is tested.
    pub against: LockUnderTest,
}

impl ClientOptions {
    /// As to_args that [`ClientOptions::read`] understands.
    pub fn to_args(&self) -> Vec<String> {
        let mut to_args: Vec<String> = Vec::new();
        for (name, value) in [
            ("--name", self.name.clone()),
            ("--store", self.store.to_string()),
            ("--auth", self.auth.to_string()),
            ("--ledger", self.ledger.to_string()),
            ("--history", self.history.display().to_string()),
            ("--seed", self.seed.to_string()),
            ("--against", self.against.name()),
        ] {
            to_args.extend([name.to_owned(), value]);
        }
        to_args
    }

    /// Reads what [`ClientOptions::to_args`] wrote.
    ///
    /// # Errors
    ///
    /// Which word is missing or wrong.
    pub fn read(to_args: &[String]) -> Result<ClientOptions, String> {
        Ok(ClientOptions {
            name: value(to_args, "--name")?,
            store: value(to_args, "--store")?,
            auth: value(to_args, "--auth")?,
            ledger: value(to_args, "--ledger")?,
            history: value(to_args, "--history")?,
            seed: value(to_args, "--seed")?,
            against: value(to_args, "--against")?,
        })
    }
}

/// The value after a name.
///
/// # Errors
///
/// If there is none, or it makes no sense.
pub fn value<T: FromStr>(to_args: &[String], name: &str) -> Result<T, String> {
    let at = to_args.iter().position(|word| word == name).ok_or_else(|| format!("{name} is missing"))?;
    let text = to_args.get(at + 1).ok_or_else(|| format!("{name} needs a value"))?;
    text.parse().map_err(|_| format!("{name} cannot be {text:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_options_survive_round_trip() {
        let options = ClientOptions {
            name: "c0".to_owned(),
            store: "etcd://127.0.0.1:1,127.0.0.1:2".parse().unwrap(),
            auth: true,
            ledger: "127.0.0.1:9".parse().unwrap(),
            history: PathBuf::from("/x/y"),
            seed: 7,
            against: LockUnderTest::Broken(SabotageRule::Margin),
        };
        let read = ClientOptions::read(&options.to_args()).unwrap();
        assert_eq!(format!("{read:?}"), format!("{options:?}"));
        assert!(ClientOptions::read(&options.to_args()[2..]).is_err());
        assert!("Marginal".parse::<LockUnderTest>().is_err());
    }
}
