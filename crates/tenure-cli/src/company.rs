//! The nodes of a namespace as they were at one revision, beside a picture of the tasks: who is there, who is frozen, whom commands wait for.

use std::collections::BTreeMap;

use tenure::core::board::Board;
use tenure::core::layout::{Key, Layout};
use tenure::core::name::NodeId;
use tenure::core::record::{FrozenRecord, NodeState, Record};
use tenure::core::roster::{Nodes, Roster};
use tenure::core::time::Moment;
use tenure::feed::FeedItem;
use tenure::membership::{Members, Node};
use tenure::store::{Get, KeyValue, Op, OpReply, Revision, Store, StoreError, Txn};

/// How often a picture is taken anew because the history it stands on was compacted away meanwhile.
const TRIES_MAX: usize = 3;

/// Tasks and nodes at one revision.
pub(crate) struct Picture {
    pub(crate) board: Board,
    pub(crate) company: Company,
    pub(crate) revision: Revision,
}

/// Nodes at one revision.
pub(crate) struct Company {
    pub(crate) members: Members,
    /// Those that take no new tasks, also if they are not there.
    pub(crate) frozen: BTreeMap<NodeId, FrozenRecord>,
    /// How many commands wait for each node, also if it is not there.
    pub(crate) waiting: BTreeMap<NodeId, usize>,
}

impl Picture {
    pub(crate) async fn take(store: &Store, layout: &Layout) -> Result<Picture, StoreError> {
        let mut tries = 1;
        loop {
            match Picture::try_take(store, layout).await {
                Err(StoreError::Compacted { .. }) if tries < TRIES_MAX => tries += 1,
                taken => return taken,
            }
        }
    }

    async fn try_take(store: &Store, layout: &Layout) -> Result<Picture, StoreError> {
        let page = store.list(layout.tasks()).await?;
        let revision = page.revision;
        let mut board = Board::new(layout.clone());
        for item in puts(page.pairs, revision) {
            board.handle_item(item, &mut Vec::new());
        }
        let company = Company::at(revision, store, layout).await?;
        Ok(Picture { board, company, revision })
    }
}

impl Company {
    /// The nodes as they were at a revision.
    pub(crate) async fn at(
        revision: Revision,
        store: &Store,
        layout: &Layout,
    ) -> Result<Company, StoreError> {
        let get = |select| Op::Get(Get::new(select).at(revision));
        let reply = store.txn(Txn::new().then(get(layout.nodes())).then(get(layout.frozen()))).await?;
        let pairs = reply.results.into_iter().flat_map(|result| match result {
            OpReply::Get(page) => page.pairs,
            OpReply::Put | OpReply::Delete { .. } => Vec::new(),
        });
        let mut roster = Roster::new(Nodes(layout.clone()));
        let (mut frozen, mut waiting) = (BTreeMap::new(), BTreeMap::new());
        let mut nodes = Vec::new();
        for pair in pairs {
            match layout.parse(&pair.key) {
                Some(Key::Frozen(node)) => {
                    // That it is there counts; one that cannot be read says neither since when nor by which sender.
                    frozen.insert(node, FrozenRecord::decode(&pair.value).unwrap_or_default());
                }
                Some(Key::NodeCommand(node, _)) => *waiting.entry(node).or_default() += 1,
                Some(_) | None => nodes.push(pair),
            }
        }
        for item in puts(nodes, revision) {
            roster.handle_item(item, Moment::ORIGIN, &mut Vec::new());
        }
        let whole = || StoreError::Corrupt("a whole picture shows nothing".to_owned());
        Ok(Company { members: roster.snapshot().ok_or_else(whole)?, frozen, waiting })
    }

    /// Whether a node takes new tasks.
    pub(crate) fn is_willing(&self, node: &Node) -> bool {
        node.record.state == NodeState::Ready && !self.frozen.contains_key(&node.id)
    }

    /// How a node stands, for people: one that is frozen says so.
    pub(crate) fn state_of(&self, node: &Node) -> String {
        match (node.record.state, self.frozen.get(&node.id)) {
            (NodeState::Ready, Some(frozen)) => frozen.to_string(),
            (state, _) => state.as_str().to_owned(),
        }
    }
}

fn puts(pairs: Vec<KeyValue>, revision: Revision) -> impl Iterator<Item = FeedItem> {
    pairs.into_iter().map(FeedItem::Put).chain([FeedItem::Whole(revision)])
}
