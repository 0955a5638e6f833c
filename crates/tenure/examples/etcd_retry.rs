//! Two keys that survive outages of etcd, with a log line for each event.
//!
//! Start etcd, run `cargo run -p tenure --example etcd_retry -- etcd://127.0.0.1:2379`, stop etcd, watch it retry, start etcd, watch it
//! re-register. An outage shorter than the TTL keeps the lease, and no other client sees it; a longer one ends with a
//! new lease and the same keys. The README shows both. A second argument is the TTL in seconds, 15 if there is none. Ctrl-C ends it.

use std::error::Error;
use std::io::IsTerminal;
use std::time::Duration;

use tenure::session::{KeyEvent, Session, SessionState};
use tenure::store::Store;
use tokio::sync::broadcast::error::RecvError;
use tracing::{info, warn};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // Tenure logs through `tracing`; the program chooses the subscriber.
    tracing_subscriber::fmt().with_target(false).with_ansi(std::io::stdout().is_terminal()).init();

    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().or_else(|| std::env::var("TENURE_STORE").ok());
    let address = address.unwrap_or_else(|| "etcd://127.0.0.1:2379".to_owned());
    let ttl = Duration::from_secs(arguments.next().map_or(Ok(15), |seconds| seconds.parse())?);

    let store = Store::open(&address.parse()?).await?;
    let session = Session::options().ttl(ttl).open(store.clone())?;

    // Subscribed before the first request, so no event is missed.
    let mut state = session.state();
    let mut events = session.events();

    session.register_raw("/example/etcd_retry/api", "10.0.0.7:80").await?;
    session.register_raw("/example/etcd_retry/admin", "10.0.0.7:81").await?;
    info!(store = %address, ?ttl, "ready, now stop etcd and start it again");

    // One future for the whole loop: a new one in each turn would miss a Ctrl-C that comes between two turns.
    let mut interrupted = std::pin::pin!(tokio::signal::ctrl_c());
    let mut is_recovering = true;
    loop {
        tokio::select! {
            biased;
            pressed = &mut interrupted => {
                pressed?;
                break;
            }
            changed = state.changed() => {
                changed?;
                let state = state.borrow_and_update().clone();
                log_state(&session, &state);
                is_recovering |= matches!(state, SessionState::Live { .. });
            }
            event = events.recv() => match event {
                Ok(event) => log_event(&event),
                Err(RecvError::Lagged(count)) => warn!(count, "key events were missed"),
                Err(RecvError::Closed) => break,
            },
            () = session.synced(), if is_recovering => {
                is_recovering = false;
                let lease = session.lease_id().map(|lease| lease.to_string()).unwrap_or_default();
                info!(keys = session.keys().len(), lease, "all keys are in the store");
            }
        }
    }

    // If etcd is down, the error reports which keys remain, and for how long.
    match session.close().await {
        Ok(()) => info!("session closed, nothing is left in the store"),
        Err(left) => warn!(%left, "session closed"),
    }
    store.close().await;
    Ok(())
}

/// Where a real program starts or stops the work that relies on the keys.
fn log_state(session: &Session, state: &SessionState) {
    let remaining = session.remaining();
    match state {
        SessionState::Idle => info!("session is idle"),
        SessionState::Live { incarnation } => info!(incarnation, ?remaining, "session is live"),
        SessionState::Suspect { incarnation, failing_for } => {
            warn!(incarnation, ?failing_for, ?remaining, "session is suspect, still valid");
        }
        SessionState::Lost { why } => warn!(?why, "session is lost, whatever relied on it must stop"),
        SessionState::Closed { why } => warn!(?why, "session is closed"),
    }
}

fn log_event(event: &KeyEvent) {
    match event {
        KeyEvent::Registered(done) => {
            info!(key = text(&done.key), lease = %done.lease, revision = %done.revision, "key registered");
        }
        KeyEvent::Missing(key) => warn!(key = text(key), "key missing, putting it back"),
        KeyEvent::Taken(key) => warn!(key = text(key), "key taken by another process"),
        KeyEvent::Refused(key) => warn!(key = text(key), "key refused, not wanted any more"),
        KeyEvent::Unregistered(key) => info!(key = text(key), "key unregistered"),
    }
}

/// Keys are bytes; those of this program are text.
fn text(key: &[u8]) -> String {
    String::from_utf8_lossy(key).into_owned()
}
