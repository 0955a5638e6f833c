//! Each mode of the proxy, seen from a client's socket, in front of a server that echoes.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use tenure_fixture::{Etcd, Mode, Proxy};

use crate::eventually;

/// Long enough for a byte on the loopback of a busy machine, short enough to wait for nothing.
const SILENCE: Duration = Duration::from_millis(200);

/// An echo server; what it received arrives on the channel too. It lives as long as the test process.
fn echo() -> (SocketAddr, Receiver<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let (seen, received) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, seen) = (stream.unwrap(), seen.clone());
            std::thread::spawn(move || {
                let mut bytes = [0; 64 << 10];
                while let Ok(count @ 1..) = stream.read(&mut bytes) {
                    // The test may have stopped listening; the client may be gone.
                    let _ = seen.send(bytes[..count].to_vec());
                    if stream.write_all(&bytes[..count]).is_err() {
                        break;
                    }
                }
            });
        }
    });
    (addr, received)
}

fn connect(proxy: &Proxy) -> TcpStream {
    let stream = TcpStream::connect(proxy.addr()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream
}

fn reply(stream: &mut TcpStream, text: &str) -> std::io::Result<String> {
    stream.write_all(text.as_bytes())?;
    let mut bytes = vec![0; text.len()];
    stream.read_exact(&mut bytes)?;
    Ok(String::from_utf8(bytes).unwrap())
}

/// A connection that has carried a word, behind a fresh proxy.
fn carried() -> (Proxy, TcpStream, Receiver<Vec<u8>>) {
    let (addr, received) = echo();
    let proxy = Proxy::to(addr);
    let mut stream = connect(&proxy);
    assert_eq!(reply(&mut stream, "hello").unwrap(), "hello");
    assert_eq!(received.recv_timeout(SILENCE * 10).unwrap(), b"hello");
    (proxy, stream, received)
}

fn is_silent(stream: &mut TcpStream) -> bool {
    stream.set_read_timeout(Some(SILENCE)).unwrap();
    let read = stream.read(&mut [0; 16]);
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    matches!(read, Err(error) if error.kind() == ErrorKind::WouldBlock)
}

fn is_reset(stream: &mut TcpStream) -> bool {
    matches!(stream.read(&mut [0; 16]), Err(error) if error.kind() == ErrorKind::ConnectionReset)
}

#[test]
fn pass_carries_megabytes_and_half_close() {
    let (proxy, mut stream, received) = carried();
    drop(received);
    let sent: Vec<u8> = (0..20_000_000_u32).map(|n| n.to_le_bytes()[(n % 3) as usize]).collect();
    let mut writer = stream.try_clone().unwrap();
    let copy = sent.clone();
    let writing = std::thread::spawn(move || {
        writer.write_all(&copy).unwrap();
        writer.shutdown(Shutdown::Write).unwrap();
    });
    let mut got = Vec::new();
    stream.read_to_end(&mut got).unwrap();
    writing.join().unwrap();
    assert!(got == sent, "{} of {} bytes", got.len(), sent.len());
    eventually("the finished connection is forgotten", || proxy.connections_open() == 0);
}

#[test]
fn refuse_resets_only_new_connections() {
    let (proxy, mut old, _received) = carried();
    proxy.set(Mode::Refuse);
    let begun = Instant::now();
    for _ in 0..3 {
        let mut new = connect(&proxy);
        assert!(is_reset(&mut new));
    }
    assert_eq!(proxy.connections_accepted(), 4);
    assert!(proxy.accept_times()[1..].iter().all(|time| *time >= begun));
    assert_eq!(reply(&mut old, "still").unwrap(), "still");
}

#[test]
fn closed_mode_closes_and_reopens_port() {
    let (proxy, mut old, _received) = carried();
    proxy.set(Mode::Closed);
    let refusal = TcpStream::connect(proxy.addr()).unwrap_err();
    assert_eq!(refusal.kind(), ErrorKind::ConnectionRefused);
    assert_eq!(reply(&mut old, "still").unwrap(), "still");
    proxy.set(Mode::Pass);
    assert_eq!(reply(&mut connect(&proxy), "again").unwrap(), "again");
    assert_eq!(proxy.connections_accepted(), 2);
}

#[test]
fn cut_fin_ends_connections_in_order() {
    let (proxy, mut old, _received) = carried();
    proxy.set(Mode::CutFin);
    assert_eq!(old.read(&mut [0; 16]).unwrap(), 0);
    let mut new = connect(&proxy);
    new.write_all(b"bytes that are never read").unwrap();
    assert_eq!(new.read(&mut [0; 16]).unwrap(), 0);
}

#[test]
fn cut_reset_resets_connections() {
    let (proxy, mut old, _received) = carried();
    proxy.set(Mode::CutReset);
    assert!(is_reset(&mut old));
    assert!(is_reset(&mut connect(&proxy)));
    assert_eq!(proxy.connections_open(), 0);
}

#[test]
fn cut_resets_only_old_connections() {
    let (proxy, mut old, _received) = carried();
    proxy.cut();
    assert!(is_reset(&mut old));
    assert_eq!(reply(&mut connect(&proxy), "new").unwrap(), "new");
}

#[test]
fn black_hole_swallows_then_resets() {
    let (proxy, mut old, received) = carried();
    proxy.set(Mode::BlackHole);
    let mut new = connect(&proxy);
    for stream in [&mut old, &mut new] {
        stream.write_all(b"lost").unwrap();
        assert!(is_silent(stream));
    }
    assert!(received.try_recv().is_err(), "a byte came through");
    proxy.set(Mode::Pass);
    assert!(is_reset(&mut old));
    assert!(is_reset(&mut new));
    assert_eq!(reply(&mut connect(&proxy), "new").unwrap(), "new");
}

#[test]
fn idle_connection_survives_black_hole() {
    let (proxy, mut stream, _received) = carried();
    proxy.set(Mode::BlackHole);
    proxy.set(Mode::Pass);
    assert_eq!(reply(&mut stream, "whole").unwrap(), "whole");
}

#[test]
fn reply_black_hole_delivers_request() {
    let (proxy, mut stream, received) = carried();
    proxy.set(Mode::BlackHoleAnswers);
    stream.write_all(b"commit").unwrap();
    assert_eq!(received.recv_timeout(Duration::from_secs(10)).unwrap(), b"commit");
    assert!(is_silent(&mut stream));
    proxy.set(Mode::Pass);
    assert!(is_reset(&mut stream));
}

#[test]
fn black_hole_hides_server_death() {
    let etcd = Etcd::start();
    let proxy = Proxy::to(etcd.member(0).client_addr());
    let mut stream = connect(&proxy);
    eventually("the connection is open", || proxy.connections_open() == 1);
    proxy.set(Mode::BlackHoleAnswers);
    etcd.member(0).kill();
    stream.write_all(b"GET /version HTTP/1.0\r\n\r\n").unwrap();
    assert!(is_silent(&mut stream));
    stream.write_all(b"more").unwrap();
    assert!(is_silent(&mut stream));
}

#[test]
fn delay_applies_each_way() {
    let (proxy, mut stream, _received) = carried();
    let delay = Duration::from_millis(60);
    proxy.set(Mode::Delay(delay));
    let begun = Instant::now();
    assert_eq!(reply(&mut stream, "slow").unwrap(), "slow");
    assert!(begun.elapsed() >= 2 * delay, "{:?}", begun.elapsed());

    proxy.set(Mode::Delay(Duration::from_secs(3600)));
    stream.write_all(b"held").unwrap();
    assert!(is_silent(&mut stream));
    proxy.set(Mode::Pass);
    let mut bytes = [0; 4];
    stream.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"held");
}

#[test]
fn missing_server_is_a_reset() {
    let etcd = Etcd::start();
    let proxy = Proxy::to(etcd.member(0).client_addr());
    etcd.member(0).kill();
    assert!(is_reset(&mut connect(&proxy)));
}

/// A message in two pieces, and an reply in two: with Nagle's algorithm on either leg the second piece
/// would wait for the first one's acknowledgement, which comes after 40 ms.
#[test]
fn partial_message_is_forwarded() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = Proxy::to(listener.local_addr().unwrap());
    let mut client = connect(&proxy);
    client.set_nodelay(true).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    server.set_nodelay(true).unwrap();
    let in_pieces = |stream: &mut TcpStream| {
        stream.write_all(b"a").unwrap();
        // Apart, or the proxy may read both pieces at once.
        std::thread::sleep(Duration::from_millis(1));
        stream.write_all(b"b").unwrap();
    };
    let mut times = Vec::new();
    for _ in 0..40 {
        let begun = Instant::now();
        in_pieces(&mut client);
        server.read_exact(&mut [0; 2]).unwrap();
        in_pieces(&mut server);
        client.read_exact(&mut [0; 2]).unwrap();
        times.push(begun.elapsed());
    }
    times.sort();
    assert!(times[20] < Duration::from_millis(25), "{:?}", times[20]);
}
