//! The signals that the supervisor forwards to the command.
//!
//! A signal that was ignored at the start stays ignored, and the command inherits that: `nohup` and background jobs of a script rely on it.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};

/// The forwarded signals.
const FORWARDED: [Signal; 7] =
    [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2, Signal::WINCH];

/// Whether a signal ends this process while no command runs.
pub(crate) fn is_end_request(signal: Signal) -> bool {
    [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT].contains(&signal)
}

/// The signals to this process since `listen`.
pub(crate) struct Signals {
    streams: Vec<(Signal, unix::Signal)>,
}

impl Signals {
    /// Installs the handlers. From here on these signals do not end this process.
    pub(crate) fn listen() -> io::Result<Signals> {
        let ignored = ignored();
        let mut streams = Vec::new();
        for signal in FORWARDED {
            if ignored & bit(signal) == 0 {
                streams.push((signal, stream(signal)?));
            }
        }
        Ok(Signals { streams })
    }

    /// Waits for the next signal. Cancelling loses none.
    pub(crate) async fn next(&mut self) -> Signal {
        poll_fn(|context| {
            for (signal, stream) in &mut self.streams {
                // A stream of signals never ends.
                if let Poll::Ready(Some(())) = stream.poll_recv(context) {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Waits for the next signal that ends this process, and drops the others.
    pub(crate) async fn next_end(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            if is_end_request(signal) {
                return signal;
            }
        }
    }
}

pub(super) fn stream(signal: Signal) -> io::Result<unix::Signal> {
    unix::signal(SignalKind::from_raw(signal.as_raw()))
}

/// The signals that helper processes ignore. A service manager sends its stop to all processes of a service, but the helpers must end last.
const IGNORED_BY_HELPERS: [Signal; 6] =
    [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2];

/// Makes this process survive these signals until the result is dropped. It installs handlers that do nothing, because ignoring a signal needs
/// unsafe code.
pub(super) fn ignore_requests() -> io::Result<(tokio::runtime::Runtime, Vec<unix::Signal>)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let streams = {
        let _inside = runtime.enter();
        // An ignored signal stays ignored, because commands inherit that.
        let ignored = ignored();
        let handled = IGNORED_BY_HELPERS.into_iter().filter(|signal| ignored & bit(*signal) == 0);
        handled.map(stream).collect::<io::Result<Vec<_>>>()?
    };
    Ok((runtime, streams))
}

fn bit(signal: Signal) -> u64 {
    1 << (signal.as_raw() - 1)
}

/// The mask of the signals that were ignored at the start; empty without `/proc`.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
