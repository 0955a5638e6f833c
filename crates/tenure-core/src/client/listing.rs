//! Reads the stored states of many tasks at one revision.

use bytes::Bytes;

use crate::error::StoreError;
use crate::exchange::{Exchange, ExchangeStep, StoreReply, StoreRequest};
use crate::id::TaskId;
use crate::kv::{Get, KeyValue, Selection};
use crate::layout::{Key, Layout};
use crate::record::Record;
use crate::revision::Revision;
use crate::task::StateRecord;

/// How many states one page has. A state with a checkpoint may be long, and this many of the longest still fit into one reply.
const STATES_PER_PAGE: u32 = 100;

/// The states of tasks, or why they cannot be read.
pub type TaskStates = Vec<(TaskId, Result<StateRecord, String>)>;

/// The keys with the states of these tasks. The states of all tasks that ever were may be many more.
pub fn state_keys<'a>(layout: &Layout, tasks: impl Iterator<Item = &'a TaskId>) -> Vec<Bytes> {
    tasks.map(|task| layout.encode(&Key::TaskState(task.clone()))).collect()
}

/// The states that these pairs contain.
pub fn read_states(layout: &Layout, pairs: impl IntoIterator<Item = KeyValue>) -> TaskStates {
    pairs.into_iter().filter_map(|pair| read_state(layout, &pair)).collect()
}

/// A key that the layout does not have is another program's.
fn read_state(layout: &Layout, pair: &KeyValue) -> Option<(TaskId, Result<StateRecord, String>)> {
    let Key::TaskState(task) = layout.parse(&pair.key)? else { return None };
    Some((task, StateRecord::decode(&pair.value).map_err(|bad| bad.reason())))
}

/// Reads the states of all tasks, those that have ended among them, page by page.
#[derive(Clone, Debug)]
pub struct ReadAllStates {
    layout: Layout,
    revision: Revision,
    /// What is still to be read.
    rest: Selection,
    states: TaskStates,
}

impl ReadAllStates {
    /// The states as they were at this revision.
    pub fn new(layout: &Layout, revision: Revision) -> ReadAllStates {
        ReadAllStates { layout: layout.clone(), revision, rest: layout.states(), states: Vec::new() }
    }
}

impl Exchange for ReadAllStates {
    type Output = Result<TaskStates, StoreError>;

    fn request(&self) -> StoreRequest {
        StoreRequest::Get(Get::new(self.rest.clone()).at(self.revision).limit(STATES_PER_PAGE))
    }

    fn handle(&mut self, reply: Result<StoreReply, StoreError>) -> ExchangeStep<Self::Output> {
        let page = match reply.and_then(StoreReply::into_page) {
            Ok(page) => page,
            Err(error) => return ExchangeStep::Done(Err(error)),
        };
        let next = page.pairs.last().and_then(|pair| Selection::Key(pair.key.clone()).end());
        self.states.extend(page.pairs.iter().filter_map(|pair| read_state(&self.layout, pair)));
        match (next, self.rest.end()) {
            (Some(next), Some(end)) if page.more => {
                self.rest = Selection::Range(next, end);
                ExchangeStep::Send
            }
            _ => ExchangeStep::Done(Ok(std::mem::take(&mut self.states))),
        }
    }
}
