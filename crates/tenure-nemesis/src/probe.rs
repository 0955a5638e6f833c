//! Packets that are sent, heard and answered: how it is seen that a fault of a link is one.

use std::ffi::OsString;
use std::fmt;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How many packets are sent, and how large they are: together more than a narrow link carries in the time that is waited.
const PACKETS: u64 = 100;
const BYTES: usize = 1_000;

/// For an answer, after the last packet.
const PATIENCE: Duration = Duration::from_millis(700);

/// What came through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeCounts {
    /// How many were sent, as far as the system took them.
    pub sent: u64,
    /// How many arrived.
    pub heard: u64,
    /// How many answers came back.
    pub answered: u64,
    /// When half of the answers were there.
    pub half_after_ms: u64,
}

impl fmt::Display for ProbeCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ProbeCounts { sent, heard, answered, half_after_ms } = self;
        write!(f, "{sent} sent, {heard} heard, {answered} answered, half after {half_after_ms} ms")
    }
}

/// Answers every packet, and writes down how many it heard.
///
/// # Errors
///
/// The error of the system.
pub fn echo(at: SocketAddr, heard: &Path) -> Result<(), String> {
    let told = |error: std::io::Error| error.to_string();
    let socket = UdpSocket::bind(at).map_err(told)?;
    let mut bytes = [0; 2 * BYTES];
    for count in 0_u64.. {
        // In one step, for readers in other processes.
        let fresh = heard.with_extension("fresh");
        std::fs::write(&fresh, count.to_string())
            .and_then(|()| std::fs::rename(&fresh, heard))
            .map_err(told)?;
        let (len, from) = socket.recv_from(&mut bytes).map_err(told)?;
        // An answer that cannot be sent is an answer that does not arrive.
        let _ = socket.send_to(&bytes[..len], from);
    }
    Ok(())
}

/// Sends packets and counts replies; prints two numbers and a time, for `run`.
///
/// # Errors
///
/// The error of the system.
pub fn send(to: SocketAddr) -> Result<String, String> {
    let told = |error: std::io::Error| error.to_string();
    let socket = UdpSocket::bind("0.0.0.0:0").map_err(told)?;
    let begun = Instant::now();
    let packet = [7; BYTES];
    let mut sent = 0;
    let mut arrivals = Vec::new();
    let mut bytes = [0; 2 * BYTES];
    for _ in 0..PACKETS {
        sent += u64::from(socket.send_to(&packet, to).is_ok());
        socket.set_read_timeout(Some(Duration::from_millis(2))).map_err(told)?;
        if socket.recv_from(&mut bytes).is_ok() {
            arrivals.push(begun.elapsed());
        }
    }
    let over = Instant::now() + PATIENCE;
    loop {
        let left = over.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        socket.set_read_timeout(Some(left)).map_err(told)?;
        if socket.recv_from(&mut bytes).is_ok() {
            arrivals.push(begun.elapsed());
        }
    }
    let half = arrivals.get(arrivals.len() / 2).map_or(0, Duration::as_millis);
    Ok(format!("{sent} {} {half}", arrivals.len()))
}

/// The wall clock, in seconds.
pub fn wall() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Waits until an echo listens.
pub(crate) fn await_echo(heard: &Path) -> Result<(), String> {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !heard.exists() {
        if Instant::now() > deadline {
            return Err("the echo does not begin".to_owned());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Sends from a network namespace, and reads what was received.
pub(crate) fn run(
    enter: &[OsString],
    program: &Path,
    to: SocketAddr,
    heard: &Path,
) -> Result<ProbeCounts, String> {
    let count = || std::fs::read_to_string(heard).ok().and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    let before = count();
    let output = Command::new(&enter[0])
        .args(&enter[1..])
        .arg(program)
        .args(["probe", &to.to_string()])
        .output()
        .map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let numbers: Vec<u64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    match numbers.as_slice() {
        [sent, answered, half_after_ms] => Ok(ProbeCounts {
            sent: *sent,
            heard: count() - before,
            answered: *answered,
            half_after_ms: *half_after_ms,
        }),
        _ => Err(format!("a probe printed {text:?} and {}", String::from_utf8_lossy(&output.stderr))),
    }
}
