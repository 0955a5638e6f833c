//! Ports that no other test process takes while we hold them.
//!
//! The range ends below 32768: ports above it are handed to outgoing connections, and a restarted
//! member would find its own port taken. A port number is leased by holding the *UDP* port of the
//! same number, which is unused here. The lease is exclusive between processes, survives a killed
//! member (its TCP port is free then, yet no other process may have it), and ends with the process.
//! Where a member has a network of its own the number is leased here all the same: it is free there
//! too, and unique.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

const FIRST: u16 = 20_000;
const COUNT: u16 = 12_000;

/// A leased port; the lease ends with the value.
#[derive(Debug)]
pub(crate) struct Port {
    ip: Ipv4Addr,
    number: u16,
    _lease: UdpSocket,
}

impl Port {
    /// Leases a port of the loopback on which nothing listens at this moment.
    pub(crate) fn lease() -> Port {
        let start = start_of_search();
        (0..COUNT).find_map(|step| Port::try_lease(FIRST + (start + step) % COUNT)).unwrap_or_else(|| {
            panic!("no free loopback port in {FIRST}..{}: all are taken by other programs", FIRST + COUNT)
        })
    }

    /// The same number at another address.
    pub(crate) fn lease_at(ip: Ipv4Addr) -> Port {
        Port { ip, ..Port::lease() }
    }

    fn try_lease(number: u16) -> Option<Port> {
        let lease = UdpSocket::bind((Ipv4Addr::LOCALHOST, number)).ok()?;
        TcpListener::bind((Ipv4Addr::LOCALHOST, number)).ok()?;
        Some(Port { ip: Ipv4Addr::LOCALHOST, number, _lease: lease })
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        SocketAddr::from((self.ip, self.number))
    }
}

/// Where to begin looking: different in each process and each call, so that parallel tests rarely meet.
fn start_of_search() -> u16 {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.subsec_nanos());
    let mixed = std::process::id()
        .wrapping_mul(2_654_435_761)
        .wrapping_add(nanos)
        .wrapping_add(CALLS.fetch_add(1, Ordering::Relaxed).wrapping_mul(97));
    u16::try_from(mixed % u32::from(COUNT)).expect("a remainder of a u16 is a u16")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leased_port_is_exclusive() {
        let port = Port::lease();
        assert!((FIRST..FIRST + COUNT).contains(&port.number));
        assert!(Port::try_lease(port.number).is_none());
        let number = port.number;
        drop(port);
        assert!(Port::try_lease(number).is_some());
    }

    #[test]
    fn port_with_listener_is_skipped() {
        let port = Port::lease();
        let listener = TcpListener::bind(port.addr()).unwrap();
        let number = port.number;
        drop(port);
        assert!(Port::try_lease(number).is_none());
        drop(listener);
    }
}
