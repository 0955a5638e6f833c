//! One watchman for each member: knocks at those who failed, so that callers need not.

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
            // Something happened: look again at what is to be done.
            _ if woken => {}
            ProbeAction::Idle => {}
            ProbeAction::Release { .. } => endpoints.selector().healthy(id, endpoints.now()),
            ProbeAction::Probe { .. } => probe(&endpoints, id).await,
        }
    }
}

/// Opens a connection if there is none and asks for the member's status. A member without a leader serves
/// nobody and counts as failed.
async fn probe(endpoints: &Arc<Endpoints>, id: EndpointId) {
    let slot = &endpoints.slots[id.0];
    let connection = match endpoints.open(id).await {
        Ok(connection) => connection,
        // Quarantined again by whoever opened.
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
