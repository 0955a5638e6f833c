//! The connections between the members of a cluster, each of which can be cut, in one direction or
//! both.
//!
//! Members advertise these ports instead of their own, so that all their messages come through
//! here. The dialling member is named by the header `X-Server-From` of its first request, or of a
//! later one, because probes lack it. A message from A to B travels in a request that A has sent to
//! B, or in the reply to a stream that B has opened at A; both belong to the direction from A to B.
//!
//! **Invariant**: a connection that has lost bytes never carries any again. It stays silent while
//! the direction is cut, and is closed when it is restored.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::port::Port;

/// The header that names the dialling member; the value is its id in hex.
const HEADER: &[u8] = b"X-Server-From: ";

/// The dialling member is not known yet; no member has this id.
const UNKNOWN: u64 = 0;

/// The connections between all members; dropping it closes them.
#[derive(Debug)]
pub(crate) struct Peers {
    shared: Arc<PeersShared>,
    doors: Vec<PeerDoor>,
}

#[derive(Debug, Default)]
struct PeersShared {
    state: Mutex<PeersState>,
    is_over: AtomicBool,
}

#[derive(Debug, Default)]
struct PeersState {
    /// By index, once they are known.
    ids: Vec<u64>,
    /// The directions in which nothing is forwarded, by source and destination.
    cuts: BTreeSet<(usize, usize)>,
    connections: Vec<Arc<PeerConnection>>,
}

#[derive(Debug)]
struct PeerConnection {
    /// The member that it leads to.
    owner: usize,
    /// The id of the dialling member, which may dial before the ids are known.
    dialer: AtomicU64,
    has_lost: AtomicBool,
    is_closed: AtomicBool,
    dialed: TcpStream,
    server: TcpStream,
}

/// Where one member is reached by the others.
#[derive(Debug)]
struct PeerDoor {
    port: Port,
    thread: Option<JoinHandle<()>>,
}

impl Peers {
    /// Doors for members with these addresses.
    pub(crate) fn to(targets: &[SocketAddr]) -> Peers {
        let shared = Arc::new(PeersShared::default());
        let doors = targets.iter().enumerate();
        let doors = doors.map(|(owner, target)| PeerDoor::open(owner, *target, &shared)).collect();
        Peers { shared, doors }
    }

    /// What a member advertises.
    pub(crate) fn url(&self, index: usize) -> String {
        format!("http://{}", self.doors[index].port.addr())
    }

    /// Passes the ids of the members. Before this nothing can be cut.
    pub(crate) fn introduce(&self, ids: Vec<u64>) {
        self.shared.lock().ids = ids;
    }

    /// From now on nothing comes through from one to the other.
    pub(crate) fn cut(&self, from: usize, to: usize) {
        let mut state = self.shared.lock();
        assert!(!state.ids.is_empty(), "members are cut off after the cluster has started");
        state.cuts.insert((from, to));
    }

    /// Everything comes through again; what has lost something is closed.
    pub(crate) fn mend(&self) {
        let mut state = self.shared.lock();
        state.cuts.clear();
        let lost = state.connections.iter().filter(|connection| connection.has_lost.load(Ordering::SeqCst));
        lost.for_each(|connection| connection.close());
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        self.shared.lock().connections.iter().for_each(|connection| connection.close());
        for door in &mut self.doors {
            // Wakes the thread that waits for a connection; it is refused if the thread has ended
            // already.
            let _ = TcpStream::connect(door.port.addr());
            if let Some(thread) = door.thread.take() {
                // A panic in there was printed by its own thread.
                let _ = thread.join();
            }
        }
    }
}

impl PeersShared {
    fn lock(&self) -> MutexGuard<'_, PeersState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PeersState {
    fn index_of(&self, id: u64) -> Option<usize> {
        self.ids.iter().position(|known| *known == id)
    }
}

/// The member's id in the head of a request.
fn id_in(head: &[u8]) -> Option<u64> {
    let at = head.windows(HEADER.len()).position(|window| window.eq_ignore_ascii_case(HEADER))?;
    let rest = &head[at + HEADER.len()..];
    let end = rest.iter().position(|byte| !byte.is_ascii_hexdigit())?;
    u64::from_str_radix(std::str::from_utf8(&rest[..end]).ok()?, 16).ok()
}

impl PeerDoor {
    fn open(owner: usize, target: SocketAddr, shared: &Arc<PeersShared>) -> PeerDoor {
        let port = Port::lease();
        let listener = TcpListener::bind(port.addr())
            .unwrap_or_else(|error| panic!("members cannot be reached on {}: {error}", port.addr()));
        let shared = Arc::clone(shared);
        let thread = std::thread::spawn(move || {
            for dialed in listener.incoming().flatten() {
                if shared.is_over.load(Ordering::SeqCst) {
                    return;
                }
                // A member that does not run refuses connections, and so does its proxy.
                if let Ok(connection) = PeerConnection::open(owner, dialed, target) {
                    connection.carry(&shared);
                }
            }
        });
        PeerDoor { port, thread: Some(thread) }
    }
}

impl PeerConnection {
    fn open(owner: usize, dialed: TcpStream, target: SocketAddr) -> std::io::Result<Arc<PeerConnection>> {
        let server = TcpStream::connect(target)?;
        dialed.set_nodelay(true)?;
        server.set_nodelay(true)?;
        Ok(Arc::new(PeerConnection {
            owner,
            dialer: AtomicU64::new(UNKNOWN),
            has_lost: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            dialed,
            server,
        }))
    }

    /// Carries both directions, each on a thread that ends with the connection.
    fn carry(self: Arc<PeerConnection>, shared: &Arc<PeersShared>) {
        let mut state = shared.lock();
        state.connections.retain(|connection| !connection.is_closed.load(Ordering::SeqCst));
        state.connections.push(Arc::clone(&self));
        drop(state);
        for is_request in [true, false] {
            let (connection, shared) = (Arc::clone(&self), Arc::clone(shared));
            std::thread::spawn(move || {
                // However it ended, the other direction is of no use any more.
                let _ = connection.pump(is_request, &shared);
                connection.close();
            });
        }
    }

    fn pump(&self, is_request: bool, shared: &PeersShared) -> std::io::Result<()> {
        let (mut from, mut to) =
            if is_request { (&self.dialed, &self.server) } else { (&self.server, &self.dialed) };
        let mut buffer = vec![0; 64 << 10];
        loop {
            let count = from.read(&mut buffer)?;
            if count == 0 {
                return Ok(());
            }
            let bytes = &buffer[..count];
            if is_request && self.dialer.load(Ordering::SeqCst) == UNKNOWN {
                self.dialer.store(id_in(bytes).unwrap_or(UNKNOWN), Ordering::SeqCst);
            }
            let is_cut = {
                let state = shared.lock();
                let dialer = state.index_of(self.dialer.load(Ordering::SeqCst));
                let wire =
                    dialer.map(|dialer| if is_request { (dialer, self.owner) } else { (self.owner, dialer) });
                wire.is_some_and(|wire| state.cuts.contains(&wire))
            };
            if is_cut {
                self.has_lost.store(true, Ordering::SeqCst);
            }
            if !self.has_lost.load(Ordering::SeqCst) {
                to.write_all(bytes)?;
            }
        }
    }

    fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        for socket in [&self.dialed, &self.server] {
            // One that is closed already needs no closing.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_dialer_is_identified_by_header() {
        let head = |line: &str| {
            format!("GET /raft/stream/message/abc HTTP/1.1\r\nHost: x\r\n{line}\r\n\r\n").into_bytes()
        };
        assert_eq!(id_in(&head("X-Server-From: 1f")), Some(0x1f));
        assert_eq!(id_in(&head("x-server-from: abc")), Some(0xabc));
        assert_eq!(id_in(&head("Accept: */*")), None);
    }
}
