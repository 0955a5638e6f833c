//! etcd's own gRPC proxy in front of a running etcd. It renews leases for its clients, by its own schedule.

use std::ffi::OsString;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::Etcd;
use crate::binary::binary;
use crate::port::Port;
use crate::sentinel::Sentinel;

/// For the proxy to listen; it needs a tenth of a second.
const START_WAIT: Duration = Duration::from_secs(30);

/// A running proxy; dropping it ends its process.
#[derive(Debug)]
pub struct GrpcProxy {
    // Before the folder: the process must be gone when it is removed.
    _process: Sentinel,
    port: Port,
    _folder: TempDir,
}

impl GrpcProxy {
    /// A proxy to all members, listening.
    ///
    /// # Panics
    /// If it does not listen within half a minute.
    pub fn to(etcd: &Etcd) -> GrpcProxy {
        let folder = TempDir::new().unwrap_or_else(|error| panic!("no folder can be made: {error}"));
        let port = Port::lease();
        let mut command: Vec<OsString> = vec![binary().into(), "grpc-proxy".into(), "start".into()];
        command.push(format!("--endpoints={}", etcd.endpoints()).into());
        command.push(format!("--listen-addr={}", port.addr()).into());
        let log = folder.path().join("log");
        let process = Sentinel::spawn(folder.path(), &log, &command);
        let deadline = Instant::now() + START_WAIT;
        while TcpStream::connect(port.addr()).is_err() {
            assert!(
                process.is_running() && Instant::now() < deadline,
                "the gRPC proxy does not listen: {}",
                std::fs::read_to_string(&log).unwrap_or_default()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        GrpcProxy { _process: process, port, _folder: folder }
    }

    /// Where clients connect.
    pub fn addr(&self) -> SocketAddr {
        self.port.addr()
    }
}
