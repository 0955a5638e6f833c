//! The desk at which a process stands in line: drives `core::line` for every name, on one session.
//!
//! Requests of different names that wait while another is under way travel together; an idle desk sends at once. Two places of one name
//! never share a request, because they would share a revision and nobody could say which is first.

mod acquired;
mod alarm;
mod ask;
mod desk;
mod handover;
mod held;
mod lined;
mod lines;
mod outbox;
mod own;
mod pace;
mod post;
mod seat;
mod turn;
mod watches;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tenure_core::layout::{Layout, Rank};
use tenure_core::line::Mode;

use crate::session::{LendError, Loan, Session};

pub(crate) use ask::Regard;
pub(crate) use handover::Outcome;
pub(crate) use held::{Arrival, Held};
pub(crate) use seat::{Seat, SeatEnd, SeatState};
pub(crate) use turn::{Patience, Wish};

pub use held::{Lost, ReleaseError};
pub use turn::StandError;

use desk::{Crowding, Shared};

/// Where a process stands in line. Cheap to clone; all clones are one desk.
#[derive(Clone)]
pub(crate) struct Desk {
    handle: Arc<Handle>,
}

/// Lets the desk's task end when the last clone is gone; it leaves every line first.
struct Handle {
    shared: Arc<Shared>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.begin_close();
    }
}

impl Desk {
    /// Opens a desk and starts its task. Asks nothing of the store yet.
    pub(crate) fn open(session: &Session, layout: &Layout, regard: Regard) -> Desk {
        let shared = Arc::new(Shared::new(session, layout, regard));
        tokio::spawn(desk::drive(shared.clone()));
        Desk { handle: Arc::new(Handle { shared }) }
    }

    /// A lease to stand on; asks nothing of the store if there is one already.
    async fn loan(&self, ttl: Option<Duration>, within: Duration) -> Result<(Loan, Crowding), LendError> {
        self.handle.shared.loan(ttl, within).await
    }

    /// Stands in a line. `line` is the prefix under which its places are, `value` what others see of ours.
    fn stand(&self, line: Bytes, stance: (Mode, Rank), value: Bytes, loan: (Loan, Crowding)) -> Seat {
        self.handle.shared.stand(line, stance, value, loan)
    }
}
