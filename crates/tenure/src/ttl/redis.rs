//! Redis as a TTL storage: one string per key, compared and changed by scripts on the server.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ErrorKind, RedisError, Script};
use tokio::sync::Mutex;

use super::storage::{StorageError, TtlStorage};

/// The default prefix of all keys, which separates them from others on a shared server.
const PREFIX: &str = "tenure:ttl:";

/// How long to wait for a connection or a reply. Elections repeat a request after a quarter of the TTL anyway, so this only bounds how long a
/// dead connection is used.
const WAIT: Duration = Duration::from_secs(5);

/// Returns 1 if it swapped, 0 if not.
const SWAP: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then \
    redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3]) return 1 else return 0 end";

/// Returns 1 if it deleted, 0 if not.
const DELETE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end";

/// A Redis server as a TTL storage, with TTLs in milliseconds.
///
/// ```no_run
/// use tenure::ttl::{RedisStorage, TtlElections};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let elections = TtlElections::new(RedisStorage::open("redis://127.0.0.1:6379")?);
/// let term = elections.election("reports").campaign("web-1").await?;
/// # Ok(())
/// # }
/// ```
///
/// # Not guaranteed
///
/// * Fencing: Redis has no number that never goes back, so effects of two leaders can mix.
///   [`require_fencing`](super::TtlElectionsBuilder::require_fencing) refuses it.
/// * One leader through a failover: a promoted replica may lack acknowledged writes, and then two candidates lead for up to one TTL. The same
///   holds for a server that restarts without its data.
pub struct RedisStorage {
    client: Client,
    prefix: String,
    connection: Mutex<Option<MultiplexedConnection>>,
    swap: Script,
    delete: Script,
}

impl RedisStorage {
    /// The server at a URL such as `redis://user:password@host:6379/0` or `unix:///run/redis.sock`. Connects when it is first used.
    ///
    /// # Errors
    ///
    /// [`StorageError::NotApplied`] if it is no such URL.
    pub fn open(url: &str) -> Result<RedisStorage, StorageError> {
        let client = Client::open(url).map_err(StorageError::not_applied)?;
        Ok(RedisStorage {
            client,
            prefix: PREFIX.to_owned(),
            connection: Mutex::new(None),
            swap: Script::new(SWAP),
            delete: Script::new(DELETE),
        })
    }

    /// With another prefix of all keys than `tenure:ttl:`.
    #[must_use]
    pub fn prefix(self, prefix: impl Into<String>) -> RedisStorage {
        RedisStorage { prefix: prefix.into(), ..self }
    }

    fn key(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    /// The connection, opened if there is none. A failure to connect is not ambiguous: nothing was sent.
    async fn connect(&self) -> Result<MultiplexedConnection, StorageError> {
        // Held while connecting: concurrent requests then share one connection instead of opening several.
        let mut connection = self.connection.lock().await;
        if let Some(connection) = &*connection {
            return Ok(connection.clone());
        }
        let config =
            AsyncConnectionConfig::new().set_connection_timeout(Some(WAIT)).set_response_timeout(Some(WAIT));
        let made = self.client.get_multiplexed_async_connection_with_config(&config).await;
        Ok(connection.insert(made.map_err(StorageError::not_applied)?).clone())
    }

    /// The outcome of a failure. Drops the connection if it cannot be used any more.
    async fn failed(&self, error: RedisError) -> StorageError {
        let has_answered = matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension);
        if has_answered && !error.is_unrecoverable_error() {
            // The server refused, and scripts write last: nothing was applied.
            return StorageError::not_applied(error);
        }
        // The next request opens a new connection; requests in flight keep the old one.
        *self.connection.lock().await = None;
        StorageError::ambiguous(error)
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

impl TtlStorage for RedisStorage {
    type Key = String;
    type Value = Bytes;

    async fn insert_if_absent(
        &self,
        key: &String,
        value: &Bytes,
        ttl: Duration,
    ) -> Result<bool, StorageError> {
        let mut connection = self.connect().await?;
        // One command, so the key never exists without its TTL.
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
        self.run(&self.swap, key, &[old, new, milliseconds(ttl).to_string().as_bytes()]).await
    }

    async fn compare_and_delete(&self, key: &String, value: &Bytes) -> Result<bool, StorageError> {
        self.run(&self.delete, key, &[value]).await
    }
}

/// Without the URL, which may contain a password.
impl fmt::Debug for RedisStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStorage").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

/// Rounded up: a key may stay longer than requested, never shorter.
fn milliseconds(ttl: Duration) -> u64 {
    let rounded = ttl.as_nanos().div_ceil(1_000_000);
    // Redis counts in signed 64 bits from 1970: a quarter of that range never overflows.
    u64::try_from(rounded).unwrap_or(u64::MAX).min(i64::MAX as u64 / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ttl_is_rounded_up_to_milliseconds() {
        assert_eq!(milliseconds(Duration::from_nanos(1)), 1);
        assert_eq!(milliseconds(Duration::from_millis(1_500)), 1_500);
        assert_eq!(milliseconds(Duration::from_micros(1_500_001)), 1_501);
        assert!(milliseconds(Duration::MAX) < u64::MAX / 4);
    }

    #[test]
    fn password_is_not_shown() {
        let redis = RedisStorage::open("redis://:secret@127.0.0.1:1/0").unwrap();
        assert!(!format!("{redis:?}").contains("secret"));
        assert!(RedisStorage::open("http://127.0.0.1").is_err());
    }
}
