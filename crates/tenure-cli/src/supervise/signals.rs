//! The signals that are sent to us and meant for the command.
//!
//! What was ignored when we started stays ignored, and the command inherits that: `nohup` and background jobs of a script rely on it.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};

/// What is passed on.
const FORWARDED: [Signal; 7] =
    [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2, Signal::WINCH];

/// What ends us while there is no command to pass it on to.
pub(crate) fn is_end_request(signal: Signal) -> bool {
    [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT].contains(&signal)
}

/// Everything that is sent to us, from the moment this was made.
pub(crate) struct Signals {
    streams: Vec<(Signal, unix::Signal)>,
}

impl Signals {
    /// Begins to listen: from here on these signals do not end us.
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

    /// The next one. Cancelling loses none.
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

    /// The next one that asks us to end; the others have nobody to go to.
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

/// What the helper processes do not react to: a stop of all processes of a service includes them, but they end last.
const DEAF_TO: [Signal; 6] =
    [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2];

/// Makes this process survive polite signals for as long as the result lives. A handler that does nothing is the nearest to ignoring that there
/// is without unsafe code.
pub(super) fn deafen() -> io::Result<(tokio::runtime::Runtime, Vec<unix::Signal>)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let streams = {
        let _inside = runtime.enter();
        // What is ignored already stays so, because commands inherit that.
        let ignored = ignored();
        let heard = DEAF_TO.into_iter().filter(|signal| ignored & bit(*signal) == 0);
        heard.map(stream).collect::<io::Result<Vec<_>>>()?
    };
    Ok((runtime, streams))
}

fn bit(signal: Signal) -> u64 {
    1 << (signal.as_raw() - 1)
}

/// The signals that were ignored when we started, as a mask; none where there is no /proc.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
