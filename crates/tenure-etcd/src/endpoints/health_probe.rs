//! One health probe per member: it tests failed members in the background, so that calls do not
//! have to.

use std::sync::Arc;

use tokio::time::sleep_until;

use crate::endpoint_selector::{EndpointId, ProbeAction};
use crate::endpoints::Endpoints;
use crate::endpoints::connecting::{ConnectFailure, LEARNER, StatusFailure};
use crate::error::Cause;

/// Runs until the client closes.
pub(super) async fn watch_over(endpoints: Arc<Endpoints>, id: EndpointId) {
    let slot = &endpoints.slots[id.0];
    loop {
        let probe_action = endpoints.selector().probe_action(id);
        let due = match probe_action {
            ProbeAction::Idle => None,
            ProbeAction::Probe { at } | ProbeAction::Release { at } => Some(endpoints.started + at),
        };
        let woken = tokio::select! {
            biased;
            () = endpoints.stop.cancelled() => break,
            () = slot.wake.notified() => true,
            () = sleep_until(due.unwrap_or(endpoints.started)), if due.is_some() => false,
        };
        match probe_action {
            // The state changed while waiting: decide again.
            _ if woken => {}
            ProbeAction::Idle => {}
            ProbeAction::Release { .. } => endpoints.selector().healthy(id, endpoints.now()),
            ProbeAction::Probe { .. } => probe(&endpoints, id).await,
        }
    }
}

/// Opens a connection if there is none and requests the member's status. A member without a leader
/// serves no request and counts as failed.
async fn probe(endpoints: &Arc<Endpoints>, id: EndpointId) {
    let slot = &endpoints.slots[id.0];
    let connection = match endpoints.open(id).await {
        Ok(connection) => connection,
        // The task that failed to connect has quarantined the member already.
        Err(ConnectFailure::Unreachable(_) | ConnectFailure::Tls { .. }) => return,
        Err(fatal @ ConnectFailure::Fatal(_)) => return endpoints.fail(id, fatal),
    };
    match endpoints.status_of(&connection).await {
        Ok(status) if status.leader == 0 => {
            let cause = Cause::at(&slot.address, "the member knows no leader");
            endpoints.fail(id, ConnectFailure::Unreachable(cause));
        }
        Ok(status) if status.is_learner => {
            endpoints.fail(id, ConnectFailure::Unreachable(Cause::at(&slot.address, LEARNER)));
        }
        Ok(_) | Err(StatusFailure::Refused) => {
            endpoints.selector().healthy(id, endpoints.now());
            endpoints.changed.send_modify(|times| *times += 1);
        }
        Err(StatusFailure::Silent(cause)) => endpoints.fail(id, ConnectFailure::Unreachable(cause)),
        Err(StatusFailure::BrokeOff(text)) => {
            endpoints.fail(id, ConnectFailure::Unreachable(Cause::at(&slot.address, text)));
        }
        Err(StatusFailure::Replaced(error)) => endpoints.fail(id, ConnectFailure::Fatal(error)),
    }
}
