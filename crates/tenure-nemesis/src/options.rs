//! What a run is asked for, as words on a command line: the rig's own, and those that it gives to its clients.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use tenure::store::StoreUrl;
use tenure_core::sabotage::SabotageRule;

use crate::rig::Fault;

/// The TTL of everybody's session: the shortest that the documentation recommends, so that most faults outlast it.
const TTL: Duration = Duration::from_secs(3);

/// The TTL where the margin would hide what is to be found: nobody waits for an answer for longer than a quarter of a TTL or a second, and of 3 s that is hardly more
/// than the margin.
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
    /// In a network of the rig's own, whose namespace it lives in already.
    Own,
}

/// Whose locks are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockUnderTest {
    /// Ours, with all other work beside it.
    Tenure,
    /// Ours, with one rule broken on purpose.
    Broken(SabotageRule),
    /// A lock as it is often written: a key with a lease, and whoever has put it believes in it until it deletes it.
    Plain,
    /// `etcdctl lock` with a command.
    Etcdctl,
}

impl LockUnderTest {
    /// Whether its tokens are those of the store, so that they say who came first.
    pub fn has_tokens(self) -> bool {
        !matches!(self, LockUnderTest::Etcdctl)
    }

    /// Whether it is ours, with all other work beside it.
    pub fn does_all_work(self) -> bool {
        matches!(self, LockUnderTest::Tenure | LockUnderTest::Broken(_))
    }

    /// The TTL of everybody's session.
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

/// What the rig is asked for.
#[derive(Clone, Debug)]
pub struct Options {
    /// For how long faults are injected.
    pub faults_for: Duration,
    /// Which store.
    pub kind: EngineKind,
    /// How processes reach each other.
    pub network: NetworkKind,
    /// Whose locks.
    pub against: LockUnderTest,
    /// What the script comes from.
    pub seed: u64,
    /// How many processes.
    pub clients: usize,
    /// Whether etcd asks who we are, with tokens that expire.
    pub auth: bool,
    /// Only these faults; all that fit otherwise.
    pub faults: Option<Vec<Fault>>,
    /// Where histories, logs and the report go.
    pub folder: PathBuf,
    /// The program to start as clients.
    pub program: PathBuf,
}

/// What a client is asked for.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Its name, which stays over its lives.
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
    /// Whose locks.
    pub against: LockUnderTest,
}

impl ClientOptions {
    /// As words that [`ClientOptions::read`] understands.
    pub fn words(&self) -> Vec<String> {
        let mut words: Vec<String> = Vec::new();
        for (name, value) in [
            ("--name", self.name.clone()),
            ("--store", self.store.to_string()),
            ("--auth", self.auth.to_string()),
            ("--ledger", self.ledger.to_string()),
            ("--history", self.history.display().to_string()),
            ("--seed", self.seed.to_string()),
            ("--against", self.against.name()),
        ] {
            words.extend([name.to_owned(), value]);
        }
        words
    }

    /// Reads what [`ClientOptions::words`] wrote.
    ///
    /// # Errors
    ///
    /// Which word is missing or wrong.
    pub fn read(words: &[String]) -> Result<ClientOptions, String> {
        Ok(ClientOptions {
            name: value(words, "--name")?,
            store: value(words, "--store")?,
            auth: value(words, "--auth")?,
            ledger: value(words, "--ledger")?,
            history: value(words, "--history")?,
            seed: value(words, "--seed")?,
            against: value(words, "--against")?,
        })
    }
}

/// The value after a name.
///
/// # Errors
///
/// If there is none, or it makes no sense.
pub fn value<T: FromStr>(words: &[String], name: &str) -> Result<T, String> {
    let at = words.iter().position(|word| word == name).ok_or_else(|| format!("{name} is missing"))?;
    let text = words.get(at + 1).ok_or_else(|| format!("{name} needs a value"))?;
    text.parse().map_err(|_| format!("{name} cannot be {text:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_reads_what_the_rig_wrote() {
        let options = ClientOptions {
            name: "c0".to_owned(),
            store: "etcd://127.0.0.1:1,127.0.0.1:2".parse().unwrap(),
            auth: true,
            ledger: "127.0.0.1:9".parse().unwrap(),
            history: PathBuf::from("/x/y"),
            seed: 7,
            against: LockUnderTest::Broken(SabotageRule::Margin),
        };
        let read = ClientOptions::read(&options.words()).unwrap();
        assert_eq!(format!("{read:?}"), format!("{options:?}"));
        assert!(ClientOptions::read(&options.words()[2..]).is_err());
        assert!("Marginal".parse::<LockUnderTest>().is_err());
    }
}
