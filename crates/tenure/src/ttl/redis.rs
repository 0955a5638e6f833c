//! Redis as a storage: one string per key, compared and changed by scripts on the server.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ErrorKind, RedisError, Script};
use tokio::sync::Mutex;

use super::storage::{Capabilities, StorageError, TtlStorage, refuse_zero};

/// What our keys begin with unless told otherwise, so that they meet no others in a shared server.
const PREFIX: &str = "tenure:ttl:";

/// How long to wait for a connection or an answer: a leader asks again after a quarter of its duration anyway, so this only has to
/// notice a server that is gone before its connection is used for hours.
const WAIT: Duration = Duration::from_secs(5);

/// Answers 1 if it swapped, 0 if not.
const SWAP: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then \
    redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3]) return 1 else return 0 end";

/// Answers 1 if it deleted, 0 if not.
const DELETE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end";

/// A Redis server as a storage, with TTLs in milliseconds.
///
/// ```no_run
/// use tenure::clock::BootClock;
/// use tenure::ttl::{Elections, Redis};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let elections = Elections::new(Redis::open("redis://127.0.0.1:6379")?, BootClock);
/// # Ok(())
/// # }
/// ```
///
/// # Not guaranteed
///
/// * Fencing: Redis has no number that can never go back, so strict elections refuse it, and effects of two leaders can mix.
/// * One leader through a failover: a replica that takes over may not have what the old server acknowledged, and then
///   two believe for up to a duration. The same holds for a server that restarts without its data.
pub struct Redis {
    client: Client,
    prefix: String,
    connection: Mutex<Option<MultiplexedConnection>>,
    swap: Script,
    delete: Script,
}

impl Redis {
    /// The server at a URL such as `redis://user:password@host:6379/0` or `unix:///run/redis.sock`. Connects when it is first used.
    ///
    /// # Errors
    ///
    /// [`StorageError::NotApplied`] if it is no such URL.
    pub fn open(url: &str) -> Result<Redis, StorageError> {
        let client = Client::open(url).map_err(StorageError::not_applied)?;
        Ok(Redis {
            client,
            prefix: PREFIX.to_owned(),
            connection: Mutex::new(None),
            swap: Script::new(SWAP),
            delete: Script::new(DELETE),
        })
    }

    /// With another beginning of all keys than `tenure:ttl:`.
    #[must_use]
    pub fn prefix(self, prefix: impl Into<String>) -> Redis {
        Redis { prefix: prefix.into(), ..self }
    }

    fn key(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    /// The connection, made if there is none. Whoever fails to connect has sent nothing.
    async fn connect(&self) -> Result<MultiplexedConnection, StorageError> {
        let mut connection = self.connection.lock().await;
        if let Some(connection) = &*connection {
            return Ok(connection.clone());
        }
        let config =
            AsyncConnectionConfig::new().set_connection_timeout(Some(WAIT)).set_response_timeout(Some(WAIT));
        let made = self.client.get_multiplexed_async_connection_with_config(&config).await;
        Ok(connection.insert(made.map_err(StorageError::not_applied)?).clone())
    }

    /// What a failure means, and whether the connection is of any more use.
    async fn failed(&self, error: RedisError) -> StorageError {
        let has_answered = matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension);
        if has_answered && !error.is_unrecoverable_error() {
            // The server said no, and scripts write last: nothing was done.
            return StorageError::not_applied(error);
        }
        // Whoever asks next connects anew; those who still wait on the old one keep it.
        *self.connection.lock().await = None;
        StorageError::unknown(error)
    }

    async fn run(&self, script: &Script, key: &str, args: &[&[u8]]) -> Result<bool, StorageError> {
        let mut connection = self.connect().await?;
        let mut call = script.key(self.key(key));
        for arg in args {
            call.arg(*arg);
        }
        match call.invoke_async::<i64>(&mut connection).await {
            Ok(done) => Ok(done == 1),
            Err(error) => Err(self.failed(error).await),
        }
    }
}

impl TtlStorage<String, Bytes> for Redis {
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    async fn insert_if_absent(
        &self,
        key: &String,
        value: &Bytes,
        ttl: Duration,
    ) -> Result<bool, StorageError> {
        refuse_zero(ttl)?;
        let mut connection = self.connect().await?;
        let mut set = redis::cmd("SET");
        set.arg(self.key(key)).arg(&value[..]).arg("NX").arg("PX").arg(milliseconds(ttl));
        match set.query_async::<Option<String>>(&mut connection).await {
            Ok(done) => Ok(done.is_some()),
            Err(error) => Err(self.failed(error).await),
        }
    }

    async fn compare_and_swap(
        &self,
        key: &String,
        old: &Bytes,
        new: &Bytes,
        ttl: Duration,
    ) -> Result<bool, StorageError> {
        refuse_zero(ttl)?;
        self.run(&self.swap, key, &[old, new, milliseconds(ttl).to_string().as_bytes()]).await
    }

    async fn compare_and_delete(&self, key: &String, value: &Bytes) -> Result<bool, StorageError> {
        self.run(&self.delete, key, &[value]).await
    }
}

/// Without the URL, which may hold a password.
impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

/// Rounded up: a key may live longer than asked, never shorter.
fn milliseconds(ttl: Duration) -> u64 {
    let rounded = ttl.as_nanos().div_ceil(1_000_000);
    // Redis counts in signed 64 bits, from 1970: a century of centuries is for ever.
    u64::try_from(rounded).unwrap_or(u64::MAX).min(i64::MAX as u64 / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ttl_is_rounded_up_to_milliseconds() {
        assert_eq!(milliseconds(Duration::from_nanos(1)), 1);
        assert_eq!(milliseconds(Duration::from_millis(1_500)), 1_500);
        assert_eq!(milliseconds(Duration::from_micros(1_500_001)), 1_501);
        assert!(milliseconds(Duration::MAX) < u64::MAX / 4);
    }

    #[test]
    fn a_password_is_not_shown() {
        let redis = Redis::open("redis://:secret@127.0.0.1:1/0").unwrap();
        assert!(!format!("{redis:?}").contains("secret"));
        assert!(Redis::open("http://127.0.0.1").is_err());
    }
}
