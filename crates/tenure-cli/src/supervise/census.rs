//! Who is in which process group, for many who ask: one look at all processes answers everybody who asked before it began.
//!
//! A look costs some microseconds for each process of the machine. With a thousand tasks that end together, a look for each would keep a core busy
//! for many seconds, and the leases of all of them would not be renewed meanwhile.

use tokio::sync::{mpsc, oneshot};

use super::group::{Group, Member, others_of};

/// Where one can ask. Cheap to clone; it ends with its last clone.
#[derive(Clone)]
pub(super) struct Census {
    asks: mpsc::UnboundedSender<Ask>,
}

type Ask = (Group, oneshot::Sender<Vec<Member>>);

impl Census {
    pub(super) fn start() -> Census {
        let (asks, mut asked) = mpsc::unbounded_channel::<Ask>();
        tokio::spawn(async move {
            while let Some(first) = asked.recv().await {
                let mut asks = vec![first];
                while let Ok(ask) = asked.try_recv() {
                    asks.push(ask);
                }
                let groups = asks.iter().map(|(group, _)| *group).collect();
                let Ok(mut found) = tokio::task::spawn_blocking(move || others_of(&groups)).await else {
                    continue;
                };
                for (group, answer) in asks {
                    // Whoever does not wait any more does not want to know.
                    let _ = answer.send(found.remove(&group).unwrap_or_default());
                }
            }
        });
        Census { asks }
    }

    /// Who runs in a group, besides its leader.
    pub(super) async fn others(&self, group: Group) -> Vec<Member> {
        let (answer, answered) = oneshot::channel();
        let asked = self.asks.send((group, answer));
        match (asked, answered.await) {
            (Ok(()), Ok(others)) => others,
            // It ends only with the runtime.
            _ => group.others(),
        }
    }
}
