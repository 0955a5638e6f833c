//! One watchman for each member: knocks at those who failed, so that callers need not.

use std::sync::Arc;

use tokio::time::sleep_until;

use crate::choice::{EndpointId, Errand};
use crate::endpoints::Endpoints;
use crate::endpoints::opening::{Knocked, LEARNER, OpenError};
use crate::error::Cause;

/// Runs until the client closes.
pub(super) async fn watch_over(endpoints: Arc<Endpoints>, id: EndpointId) {
    let slot = &endpoints.slots[id.0];
    loop {
        let errand = endpoints.choice().errand(id);
        let due = match errand {
            Errand::Rest => None,
            Errand::Knock { at } | Errand::Release { at } => Some(endpoints.started + at),
        };
        let woken = tokio::select! {
            biased;
            () = endpoints.stop.cancelled() => break,
            () = slot.wake.notified() => true,
            () = sleep_until(due.unwrap_or(endpoints.started)), if due.is_some() => false,
        };
        match errand {
            // Something happened: look again at what is to be done.
            _ if woken => {}
            Errand::Rest => {}
            Errand::Release { .. } => endpoints.choice().healthy(id, endpoints.now()),
            Errand::Knock { .. } => knock(&endpoints, id).await,
        }
    }
}

/// Opens a connection if there is none and asks for the member's status. A member without a leader serves
/// nobody and counts as failed.
async fn knock(endpoints: &Arc<Endpoints>, id: EndpointId) {
    let slot = &endpoints.slots[id.0];
    let connection = match endpoints.open(id).await {
        Ok(connection) => connection,
        // Quarantined again by whoever opened.
        Err(OpenError::Unreachable(_) | OpenError::Tls { .. }) => return,
        Err(fatal @ OpenError::Fatal(_)) => return endpoints.fail(id, fatal),
    };
    match endpoints.status_of(&connection).await {
        Ok(status) if status.leader == 0 => {
            let cause = Cause::at(&slot.address, "the member knows no leader");
            endpoints.fail(id, OpenError::Unreachable(cause));
        }
        Ok(status) if status.is_learner => {
            endpoints.fail(id, OpenError::Unreachable(Cause::at(&slot.address, LEARNER)));
        }
        Ok(_) | Err(Knocked::Refused) => {
            endpoints.choice().healthy(id, endpoints.now());
            endpoints.changed.send_modify(|times| *times += 1);
        }
        Err(Knocked::Silent(cause)) => endpoints.fail(id, OpenError::Unreachable(cause)),
        Err(Knocked::BrokeOff(text)) => {
            endpoints.fail(id, OpenError::Unreachable(Cause::at(&slot.address, text)));
        }
        Err(Knocked::Replaced(error)) => endpoints.fail(id, OpenError::Fatal(error)),
    }
}
