//! Replies and events as text that is the same for every store: revisions count from the start, leases are slots.

use tenure::store::{
    Change, Grant, KeyValue, LeaseId, LeaseView, OpReply, Page, Renewal, Revision, StoreError, TxnReply,
};

/// What a store's own numbers are called.
#[derive(Clone, Debug)]
pub(super) struct Normalizer {
    pub(super) base: Revision,
    pub(super) prefix: String,
    pub(super) first_lease: i64,
}

impl Normalizer {
    pub(super) fn revision(&self, revision: Revision) -> String {
        if revision == Revision::ZERO { "0".into() } else { format!("{:+}", revision.0 - self.base.0) }
    }

    fn lease(&self, lease: Option<LeaseId>) -> String {
        lease.map_or(String::new(), |lease| format!(" L{}", lease.get() - self.first_lease))
    }

    fn key(&self, key: &[u8]) -> String {
        let name = key.strip_prefix(self.prefix.as_bytes()).unwrap_or(key);
        String::from_utf8_lossy(name).into_owned()
    }

    fn pair(&self, pair: &KeyValue) -> String {
        format!(
            "{}={}(c{} m{} v{}{})",
            self.key(&pair.key),
            String::from_utf8_lossy(&pair.value),
            self.revision(pair.created),
            self.revision(pair.modified),
            pair.version,
            self.lease(pair.lease)
        )
    }

    pub(super) fn page(&self, page: &Page) -> String {
        let mut pairs: Vec<_> = page.pairs.iter().collect();
        // Keys created together are in no defined order, so they are sorted by key.
        let by_created = pairs.is_sorted_by_key(|pair| pair.created);
        let by_created_descending = pairs.is_sorted_by_key(|pair| std::cmp::Reverse(pair.created));
        if !pairs.is_sorted_by_key(|pair| &pair.key) {
            if by_created {
                pairs.sort_by_key(|pair| (pair.created, pair.key.clone()));
            } else if by_created_descending {
                pairs.sort_by_key(|pair| (std::cmp::Reverse(pair.created), pair.key.clone()));
            }
        }
        let pairs: Vec<_> = pairs.into_iter().map(|pair| self.pair(pair)).collect();
        let more = if page.more { ", and more" } else { "" };
        format!("[{}{more}] at {}", pairs.join(", "), self.revision(page.revision))
    }

    pub(super) fn reply(&self, reply: &TxnReply) -> String {
        let result = |result: &OpReply| match result {
            OpReply::Put => "put".into(),
            OpReply::Delete { count } => format!("deleted {count}"),
            OpReply::Get(page) => self.page(page),
        };
        let results: Vec<String> = reply.results.iter().map(result).collect();
        let branch = if reply.succeeded { "then" } else { "otherwise" };
        format!("{branch} ({}) at {}", results.join("; "), self.revision(reply.revision))
    }

    pub(super) fn grant(&self, grant: &Grant) -> String {
        format!("granted{} for {:?}", self.lease(Some(grant.id)), grant.ttl)
    }

    pub(super) fn renewal(renewal: &Renewal) -> String {
        match renewal {
            Renewal::Renewed { ttl, .. } => format!("renewed for {ttl:?}"),
            Renewal::Gone => "gone".into(),
        }
    }

    pub(super) fn view(&self, view: Option<&LeaseView>) -> String {
        let Some(view) = view else { return "none".into() };
        assert!(view.remaining <= view.granted, "more remains than was granted: {view:?}");
        let keys: Vec<_> = view.keys.iter().map(|key| self.key(key)).collect();
        format!("of {:?} with [{}]", view.granted, keys.join(", "))
    }

    /// The changes of one revision, without the revisions of deletes if their order is not defined.
    pub(super) fn changes(&self, changes: &[Change]) -> String {
        let previous = |previous: &Option<KeyValue>| {
            previous.as_ref().map_or("nothing".into(), |previous| self.pair(previous))
        };
        let change = |change: &Change| match change {
            Change::Put { pair, previous: before } => format!("{} was {}", self.pair(pair), previous(before)),
            Change::Delete { key, previous: before, .. } => {
                format!("-{} was {}", self.key(key), previous(before))
            }
        };
        changes.iter().map(change).collect::<Vec<_>>().join(", ")
    }

    pub(super) fn error(error: &StoreError) -> String {
        match error {
            // Some engines report where history begins, and others do not.
            StoreError::Compacted { .. } => "compacted".into(),
            StoreError::Invalid(invalid) => {
                let name = format!("{invalid:?}");
                format!("invalid: {}", name.split(['(', ' ']).next().unwrap_or(&name))
            }
            other => other.to_string(),
        }
    }
}
