//! A TCP proxy inside the test process that breaks connections in the ways networks do.
//!
//! It needs no root and no kernel module, and a change takes effect in less than a millisecond.
//! One thread accepts, one thread per connection carries the bytes of both directions; both wait in `poll`
//! with a waker, so nothing here ticks. `TCP_NODELAY` is set on both legs: without it a call takes 40 ms more.
//!
//! **Invariant**: when [`Proxy::set`] or [`Proxy::cut`] returns, every existing connection obeys it.

mod connection;
mod flow;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

use self::connection::{ProxyConnection, finish, reset};
use crate::port::Port;

/// For connections to follow a change of mode. A thread that needs longer hangs, and the test must
/// fail.
const OBEY_WAIT: Duration = Duration::from_secs(10);

/// What the proxy does to connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Carries everything.
    Pass,
    /// Carries everything this much later, each way.
    Delay(Duration),
    /// What clients send arrives at once, what the server answers comes this much later.
    DelayAnswers(Duration),
    /// New connections are accepted, counted and reset at once; existing ones go on.
    Refuse,
    /// New connections are refused by the kernel, and not counted; existing ones go on.
    Closed,
    /// Existing and new connections end with a FIN, as if the server had closed them.
    CutFin,
    /// Existing and new connections end with an RST, as if the server had died.
    CutReset,
    /// Bytes vanish both ways; sockets stay, and new connections are accepted and never answered.
    ///
    /// A connection that lost bytes here is reset when the mode changes: its stream has a hole.
    BlackHole,
    /// What clients send arrives, what the server answers vanishes: a commit happens and its answer is lost.
    ///
    /// A connection that lost bytes here is reset when the mode changes: its stream has a hole.
    BlackHoleAnswers,
    /// What clients send arrives, what the server answers waits until the mode changes: a commit happens and its answer comes late.
    HoldAnswers,
}

/// A proxy in front of one address; dropping it resets its connections.
#[derive(Debug)]
pub struct Proxy {
    port: Port,
    shared: Arc<ProxyShared>,
    listener: Mutex<Option<Listener>>,
}

impl Proxy {
    /// Starts carrying connections from the loopback to `target`.
    pub fn to(target: SocketAddr) -> Proxy {
        Proxy::at(Ipv4Addr::LOCALHOST, target)
    }

    /// The same at another local address.
    pub fn at(ip: Ipv4Addr, target: SocketAddr) -> Proxy {
        let port = Port::lease_at(ip);
        let state = ProxyState {
            mode: Mode::Pass,
            order: 0,
            connections: BTreeMap::new(),
            connections_made: 0,
            accepted: Vec::new(),
        };
        let shared = Arc::new(ProxyShared { target, state: Mutex::new(state), obeyed: Condvar::new() });
        let listener = Mutex::new(Some(Listener::start(port.addr(), &shared)));
        Proxy { port, shared, listener }
    }

    /// Where clients connect.
    pub fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    /// Where clients connect: `http://address:port`.
    pub fn url(&self) -> String {
        format!("http://{}", self.addr())
    }

    /// Changes the mode, for existing connections too, and returns when they all obey.
    pub fn set(&self, mode: Mode) {
        let mut listener = self.listener.lock().unwrap_or_else(PoisonError::into_inner);
        if mode == Mode::Closed {
            *listener = None;
        }
        self.shared.order(|state| state.mode = mode);
        if mode != Mode::Closed && listener.is_none() {
            *listener = Some(Listener::start(self.addr(), &self.shared));
        }
    }

    /// Resets all existing connections once; the mode stays.
    pub fn cut(&self) {
        self.shared.order(|state| state.connections.values_mut().for_each(|handle| handle.is_cut = true));
    }

    /// How many connections were accepted, in whatever mode.
    pub fn connections_accepted(&self) -> u64 {
        self.accept_times().len().try_into().expect("a count of things in memory")
    }

    /// When each connection was accepted, in order.
    pub fn accept_times(&self) -> Vec<Instant> {
        self.shared.lock().accepted.clone()
    }

    /// How many connections are open at this moment.
    pub fn connections_open(&self) -> usize {
        self.shared.lock().connections.len()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        *self.listener.get_mut().unwrap_or_else(PoisonError::into_inner) = None;
        if !std::thread::panicking() {
            self.set(Mode::CutReset);
            return;
        }
        // A panicking test does not wait, and a second panic would abort the test run.
        self.shared.lock().mode = Mode::CutReset;
        self.shared.lock().wake_all();
    }
}

#[derive(Debug)]
struct ProxyShared {
    target: SocketAddr,
    state: Mutex<ProxyState>,
    obeyed: Condvar,
}

#[derive(Debug)]
struct ProxyState {
    mode: Mode,
    /// Counts the changes; a connection obeys when it has seen the newest.
    order: u64,
    connections: BTreeMap<u64, ConnectionHandle>,
    connections_made: u64,
    accepted: Vec<Instant>,
}

/// How the proxy speaks to a connection's thread.
#[derive(Debug)]
struct ConnectionHandle {
    waker: UnixStream,
    order_seen: u64,
    is_cut: bool,
}

impl ProxyShared {
    fn lock(&self) -> MutexGuard<'_, ProxyState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state and waits until every connection has seen it.
    fn order(&self, change: impl FnOnce(&mut ProxyState)) {
        let mut state = self.lock();
        change(&mut state);
        state.order += 1;
        let order = state.order;
        state.wake_all();
        let lags =
            |state: &mut ProxyState| state.connections.values().any(|handle| handle.order_seen < order);
        let (state, wait) =
            self.obeyed.wait_timeout_while(state, OBEY_WAIT, lags).unwrap_or_else(PoisonError::into_inner);
        drop(state);
        assert!(!wait.timed_out(), "a connection of the proxy did not obey within 10 s");
    }
}

impl ProxyState {
    fn wake_all(&mut self) {
        for handle in self.connections.values_mut() {
            wake(&mut handle.waker);
        }
    }
}

/// The accepting thread; dropping it closes the listening socket.
#[derive(Debug)]
struct Listener {
    waker: UnixStream,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    fn start(addr: SocketAddr, shared: &Arc<ProxyShared>) -> Listener {
        let socket = TcpListener::bind(addr)
            .and_then(|socket| socket.set_nonblocking(true).map(|()| socket))
            .unwrap_or_else(|error| panic!("the proxy cannot listen on {addr}: {error}"));
        let (waker, woken) = waker();
        let shared = Arc::clone(shared);
        let thread = std::thread::spawn(move || accept_all(&socket, &woken, &shared));
        Listener { waker, thread: Some(thread) }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        wake(&mut self.waker);
        if let Some(thread) = self.thread.take() {
            // A panic in there was printed by its own thread.
            let _ = thread.join();
        }
    }
}

fn accept_all(socket: &TcpListener, woken: &UnixStream, shared: &Arc<ProxyShared>) {
    loop {
        let mut fds = [PollFd::new(woken, PollFlags::IN), PollFd::new(socket, PollFlags::IN)];
        match poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("the proxy cannot wait for connections: {error}"),
        }
        if !fds[0].revents().is_empty() {
            return;
        }
        while let Ok((client, _)) = socket.accept() {
            admit(client, shared);
        }
    }
}

/// Counts a new connection and treats it as the mode requires.
fn admit(client: TcpStream, shared: &Arc<ProxyShared>) {
    let mut state = shared.lock();
    state.accepted.push(Instant::now());
    let mode = state.mode;
    match mode {
        Mode::Refuse | Mode::Closed | Mode::CutReset => return reset(client),
        Mode::CutFin => {
            std::thread::spawn(move || finish(client));
            return;
        }
        Mode::Pass
        | Mode::Delay(_)
        | Mode::DelayAnswers(_)
        | Mode::BlackHole
        | Mode::BlackHoleAnswers
        | Mode::HoldAnswers => {}
    }
    let (waker, woken) = waker();
    let id = state.connections_made;
    state.connections_made += 1;
    let handle = ConnectionHandle { waker, order_seen: state.order, is_cut: false };
    state.connections.insert(id, handle);
    drop(state);
    let shared = Arc::clone(shared);
    // The handle in the map owns the thread: it goes when the thread has closed its sockets.
    std::thread::spawn(move || ProxyConnection::run(id, mode, client, woken, &shared));
}

fn waker() -> (UnixStream, UnixStream) {
    let pair = UnixStream::pair().and_then(|(waker, woken)| {
        waker.set_nonblocking(true)?;
        woken.set_nonblocking(true)?;
        Ok((waker, woken))
    });
    pair.unwrap_or_else(|error| panic!("no socket pair for the proxy: {error}"))
}

/// One byte is enough; a full or closed waker means that the thread is awake or gone.
fn wake(waker: &mut UnixStream) {
    let _ = waker.write(&[1]);
}

/// Takes the bytes that woke us.
fn settle(woken: &mut UnixStream) {
    let mut bytes = [0; 64];
    while woken.read(&mut bytes).is_ok_and(|count| count == bytes.len()) {}
}
