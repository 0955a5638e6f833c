//! A running Redis without persistence, gone with the value.
//!
//! Unlike etcd it does not come through cargo: `TENURE_REDIS_BIN` names it, else it is found on the PATH. `cargo xtask check` installs the
//! distribution's package where it may.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::port::Port;
use crate::sentinel::Sentinel;

/// How long a start may take: it takes milliseconds, on a machine that is busy with six builds a second or two.
const READY_WAIT: Duration = Duration::from_secs(30);

/// Between two questions whether it is ready.
const READY_POLL: Duration = Duration::from_millis(5);

/// For one answer on the loopback; longer means that the server is stopped.
const REPLY_WAIT: Duration = Duration::from_secs(1);

/// How often a start is tried with another port when a stranger took it in between.
const STARTS_MAX: usize = 5;

/// A running Redis; dropping it ends its process and removes its files. All methods may be called from any thread.
#[derive(Debug)]
pub struct Redis {
    // Before the folder: the process must be gone when it is removed.
    process: Mutex<Option<Sentinel>>,
    port: Port,
    folder: TempDir,
    binary: PathBuf,
}

impl Redis {
    /// One server on a loopback port, answering.
    ///
    /// # Panics
    /// If there is no `redis-server`, or it does not come up. A test without Redis must fail: a skipped test looks like a passed one.
    pub fn start() -> Redis {
        let binary = binary();
        for attempt in 1.. {
            let folder = tempfile::tempdir()
                .unwrap_or_else(|error| panic!("no temporary folder for Redis can be made: {error}"));
            let redis =
                Redis { process: Mutex::new(None), port: Port::lease(), folder, binary: binary.clone() };
            // A folder of its own inside: the sentinel of a process that was killed removes it and its empty parent.
            std::fs::create_dir(redis.server_folder()).unwrap_or_else(|error| {
                panic!("{} cannot be made: {error}", redis.server_folder().display())
            });
            redis.spawn();
            let Err(trouble) = redis.await_reply() else { return redis };
            let log = redis.log();
            assert!(
                log.contains("in use") && attempt < STARTS_MAX,
                "redis-server {trouble}; its log:\n{log}"
            );
        }
        unreachable!("the last attempt returned or panicked")
    }

    /// Where clients connect: `redis://127.0.0.1:port`.
    pub fn url(&self) -> String {
        format!("redis://{}", self.addr())
    }

    /// Where clients connect.
    pub fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    /// The pid of the server.
    ///
    /// # Panics
    /// If it was killed and not restarted.
    pub fn pid(&self) -> u32 {
        self.with_process(Sentinel::pid)
    }

    /// The folder of the server's log; it goes with the value.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Ends the server with SIGKILL and returns when it is gone. What it stored is gone too.
    pub fn kill(&self) {
        if let Some(process) = self.running().take() {
            process.kill();
        }
    }

    /// Stops the server with SIGSTOP: its sockets stay, and it does not reply.
    pub fn pause(&self) {
        self.with_process(Sentinel::pause);
    }

    /// Lets a paused server go on.
    pub fn resume(&self) {
        self.with_process(|process| process.signal(Signal::CONT));
    }

    /// Kills the server if it runs and starts it again, empty, on the same port.
    ///
    /// # Panics
    /// If it does not come up.
    pub fn restart(&self) {
        self.kill();
        self.spawn();
        if let Err(trouble) = self.await_reply() {
            panic!("redis-server {trouble}; its log:\n{}", self.log());
        }
    }

    /// Sends one command to the server, with arguments that contain no spaces, and returns the raw
    /// reply.
    ///
    /// For what must work without a client of our own.
    pub fn command(&self, words: &[&str]) -> std::io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&self.addr(), REPLY_WAIT)?;
        stream.set_read_timeout(Some(REPLY_WAIT))?;
        stream.write_all(format!("{}\r\n", words.join(" ")).as_bytes())?;
        let mut answer = [0; 4096];
        let count = stream.read(&mut answer)?;
        Ok(String::from_utf8_lossy(&answer[..count]).into_owned())
    }

    fn spawn(&self) {
        let mut process = self.running();
        if process.is_none() {
            *process = Some(Sentinel::spawn(&self.server_folder(), &self.log_path(), &self.server_command()));
        }
    }

    fn server_command(&self) -> Vec<OsString> {
        let port = self.addr().port().to_string();
        let mut command: Vec<OsString> = vec![self.binary.clone().into()];
        for (flag, value) in [
            ("--bind", "127.0.0.1"),
            ("--port", &port),
            ("--daemonize", "no"),
            // Nothing on disk: a test that kills it wants it empty.
            ("--save", ""),
            ("--appendonly", "no"),
        ] {
            command.extend([flag.into(), value.into()]);
        }
        command.extend(["--dir".into(), self.server_folder().into()]);
        command
    }

    fn await_reply(&self) -> Result<(), &'static str> {
        let deadline = Instant::now() + READY_WAIT;
        while !self.command(&["PING"]).is_ok_and(|answer| answer.starts_with("+PONG")) {
            if !self.running().as_ref().is_some_and(Sentinel::is_running) {
                return Err("ended instead of answering");
            }
            if Instant::now() > deadline {
                return Err("did not answer within 30 s");
            }
            std::thread::sleep(READY_POLL);
        }
        Ok(())
    }

    fn server_folder(&self) -> PathBuf {
        self.folder.path().join("redis")
    }

    fn log_path(&self) -> PathBuf {
        self.server_folder().join("log")
    }

    fn log(&self) -> String {
        std::fs::read(self.log_path()).map_or_else(
            |error| format!("(the log cannot be read: {error})"),
            |bytes| String::from_utf8_lossy(&bytes).into_owned(),
        )
    }

    fn with_process<T>(&self, act: impl FnOnce(&Sentinel) -> T) -> T {
        let process = self.running();
        act(process.as_ref().expect("the server was killed and not restarted"))
    }

    fn running(&self) -> MutexGuard<'_, Option<Sentinel>> {
        // A panic under the lock leaves the process as it was, and Drop must still be able to end it.
        self.process.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// The Redis to test with: `TENURE_REDIS_BIN` if set, else the one on the PATH.
fn binary() -> PathBuf {
    if let Some(path) = std::env::var_os("TENURE_REDIS_BIN") {
        let path = PathBuf::from(path);
        assert!(path.is_file(), "TENURE_REDIS_BIN names {}, and there is no such file", path.display());
        return path;
    }
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&paths).map(|folder| folder.join("redis-server"));
    found.into_iter().find(|path| path.is_file()).unwrap_or_else(|| {
        panic!(
            "no redis-server: install the package redis-server or set TENURE_REDIS_BIN; \
             `cargo xtask check --without redis` leaves these tests out"
        )
    })
}
