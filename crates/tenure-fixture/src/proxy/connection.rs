//! One proxied connection: a thread that carries both directions and obeys the mode.
//!
//! **Invariant**: the thread is the only owner of its two sockets, so closing them here is what the
//! network sees: a FIN, or an RST when the linger time is zero.

use std::io::{self, Read};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::flow::{Flow, ReadAction};
use super::{Mode, ProxyShared, settle};

/// The target is on this machine: it accepts or refuses at once, or its queue is full.
const CONNECT_WAIT: Duration = Duration::from_secs(5);

/// How long a closed connection is read on, so that bytes still on their way do not turn the FIN into an RST.
const DRAIN_WAIT: Duration = Duration::from_secs(1);

/// Longer than any test holds an answer back; it is hastened when the mode changes.
const HELD_FOR: Duration = Duration::from_secs(3_600);

/// Read at once; more than a socket usually has.
const READ_BYTES: usize = 64 << 10;

pub(super) struct ProxyConnection {
    client: TcpStream,
    /// `None` if the connection began in a black hole.
    server: Option<TcpStream>,
    up: Flow,
    down: Flow,
    mode: Mode,
    /// Bytes are missing from a stream: it can stay silent, but never go on.
    has_lost: bool,
    /// Where reads land, kept so that they need not clear new memory each time.
    buffer: Box<[u8]>,
}

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Fin,
    Reset,
}

impl ProxyConnection {
    /// Carries a connection until it ends, then takes its handle out of the map.
    pub(super) fn run(id: u64, mode: Mode, client: TcpStream, mut woken: UnixStream, shared: &ProxyShared) {
        let end = match ProxyConnection::open(mode, client, shared) {
            Ok(mut connection) => {
                let end = connection.carry(id, &mut woken, shared);
                connection.close(end)
            }
            // Nothing listens there: the client was reset with its socket.
            Err(_) => Vec::new(),
        };
        shared.lock().connections.remove(&id);
        shared.obeyed.notify_all();
        end.into_iter().for_each(drain);
    }

    fn open(mode: Mode, client: TcpStream, shared: &ProxyShared) -> io::Result<ProxyConnection> {
        let server = match mode {
            Mode::BlackHole => None,
            _ => match TcpStream::connect_timeout(&shared.target, CONNECT_WAIT) {
                Ok(server) => Some(server),
                Err(error) => {
                    reset(client);
                    return Err(error);
                }
            },
        };
        for socket in server.iter().chain([&client]) {
            socket.set_nodelay(true)?;
            socket.set_nonblocking(true)?;
        }
        let has_lost = server.is_none();
        let buffer = vec![0; READ_BYTES].into_boxed_slice();
        Ok(ProxyConnection {
            client,
            server,
            up: Flow::default(),
            down: Flow::default(),
            mode,
            has_lost,
            buffer,
        })
    }

    fn carry(&mut self, id: u64, woken: &mut UnixStream, shared: &ProxyShared) -> End {
        loop {
            let is_woken = match self.wait(woken) {
                Ok(is_woken) => is_woken,
                Err(_) => return End::Reset,
            };
            if is_woken {
                settle(woken);
                if let Err(end) = self.obey(id, shared) {
                    return end;
                }
            }
            if self.step().is_err() {
                return End::Reset;
            }
            if self.up.is_closed() && self.down.is_closed() {
                return End::Fin;
            }
        }
    }

    /// Waits until there is something to do; `true` if the proxy wants to be heard.
    fn wait(&self, woken: &UnixStream) -> io::Result<bool> {
        let mut fds = vec![PollFd::new(woken, PollFlags::IN)];
        for (socket, incoming, outgoing) in
            [(Some(&self.client), &self.up, &self.down), (self.server.as_ref(), &self.down, &self.up)]
        {
            let mut events = PollFlags::empty();
            events.set(PollFlags::IN, incoming.wants_read());
            events.set(PollFlags::OUT, outgoing.wants_write());
            // A socket that hung up would wake us without end, so one we want nothing from stays out.
            if let Some(socket) = socket.filter(|_| !events.is_empty()) {
                fds.push(PollFd::new(socket, events));
            }
        }
        let due = [self.up.next_due(), self.down.next_due()].into_iter().flatten().min();
        let timeout = due.map(|due| timespec(due.saturating_duration_since(Instant::now())));
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(!fds[0].revents().is_empty()),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes the newest order; the handle is marked when it is carried out, or goes with the connection.
    fn obey(&mut self, id: u64, shared: &ProxyShared) -> Result<(), End> {
        let mut state = shared.lock();
        let (mode, order) = (state.mode, state.order);
        let handle = state.connections.get_mut(&id).expect("the handle goes only after its thread's loop");
        if handle.is_cut {
            return Err(End::Reset);
        }
        self.change(mode)?;
        handle.order_seen = order;
        drop(state);
        shared.obeyed.notify_all();
        Ok(())
    }

    fn change(&mut self, mode: Mode) -> Result<(), End> {
        let was = std::mem::replace(&mut self.mode, mode);
        // A stream with a hole may stay silent or fall more silent, nothing else.
        if self.has_lost && mode != was && mode != Mode::BlackHole {
            return Err(if mode == Mode::CutFin { End::Fin } else { End::Reset });
        }
        match mode {
            Mode::CutFin => return Err(End::Fin),
            Mode::CutReset => return Err(End::Reset),
            Mode::BlackHole => self.has_lost |= self.up.lose() | self.down.lose(),
            Mode::BlackHoleAnswers => self.has_lost |= self.down.lose(),
            Mode::Pass
            | Mode::Delay(_)
            | Mode::DelayAnswers(_)
            | Mode::Refuse
            | Mode::Closed
            | Mode::HoldAnswers => {}
        }
        let now = Instant::now();
        self.up.hasten(now);
        self.down.hasten(now);
        Ok(())
    }

    /// Moves what can be moved without waiting.
    fn step(&mut self) -> io::Result<()> {
        let now = Instant::now();
        let up_fate = self.read_action(&[Mode::BlackHole]);
        let down_fate = match self.mode {
            Mode::HoldAnswers => ReadAction::Carry(HELD_FOR),
            Mode::DelayAnswers(delay) => ReadAction::Carry(delay),
            _ => self.read_action(&[Mode::BlackHole, Mode::BlackHoleAnswers]),
        };
        if self.up.wants_read() {
            self.has_lost |= self.up.read(&mut self.client, &mut self.buffer, (up_fate, now))?;
        }
        let Some(server) = self.server.as_mut() else { return Ok(()) };
        if self.down.wants_read() {
            self.has_lost |= self.down.read(server, &mut self.buffer, (down_fate, now))?;
        }
        if up_fate != ReadAction::Vanish {
            match self.up.write(server, now) {
                // The server is gone, and that too is an answer which must not arrive.
                Err(_) if down_fate == ReadAction::Vanish => self.has_lost |= self.up.lose(),
                written => written?,
            }
        }
        if down_fate != ReadAction::Vanish {
            self.down.write(&mut self.client, now)?;
        }
        Ok(())
    }

    fn read_action(&self, vanish_in: &[Mode]) -> ReadAction {
        match self.mode {
            mode if vanish_in.contains(&mode) => ReadAction::Vanish,
            Mode::Delay(delay) => ReadAction::Carry(delay),
            _ => ReadAction::Carry(Duration::ZERO),
        }
    }

    /// Ends both sockets; those returned wait for the other side's last bytes.
    fn close(self, end: End) -> Vec<TcpStream> {
        let sockets = [Some(self.client), self.server].into_iter().flatten();
        match end {
            End::Reset => {
                sockets.for_each(reset);
                Vec::new()
            }
            End::Fin => sockets.filter(|socket| socket.shutdown(Shutdown::Write).is_ok()).collect(),
        }
    }
}

/// Closes with a FIN, even if bytes are still on their way to us.
pub(super) fn finish(socket: TcpStream) {
    if socket.shutdown(Shutdown::Write).is_ok() {
        drain(socket);
    }
}

/// Closes with an RST. If the option cannot be set the socket is broken already.
pub(super) fn reset(socket: TcpStream) {
    let _ = rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::ZERO));
    drop(socket);
}

/// Reads until the other side has closed too, for a while.
fn drain(mut socket: TcpStream) {
    let deadline = Instant::now() + DRAIN_WAIT;
    let mut bytes = vec![0; READ_BYTES];
    let is_ready = socket.set_nonblocking(false).and_then(|()| socket.set_read_timeout(Some(DRAIN_WAIT)));
    while is_ready.is_ok()
        && Instant::now() < deadline
        && socket.read(&mut bytes).is_ok_and(|count| count > 0)
    {}
}

fn timespec(duration: Duration) -> Timespec {
    // Rounded up: waking early would spin until the moment has come.
    let duration = duration + Duration::from_micros(1);
    Timespec::try_from(duration).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 })
}
