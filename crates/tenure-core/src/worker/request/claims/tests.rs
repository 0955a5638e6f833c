//! Claims beside the store that they are carried out in.

use std::time::Duration;

use super::*;
use crate::error::Cause;
use crate::id::Namespace;
use crate::keyspace::Keyspace;
use crate::limits::Limits;
use crate::time::Moment;

const NOW: Moment = Moment::ORIGIN;

struct ClaimWorld {
    store: Keyspace,
    layout: Layout,
    lease: LeaseId,
}

impl ClaimWorld {
    /// A store with unowned tasks.
    fn with(tasks: &[&str]) -> ClaimWorld {
        let layout = Layout::new(&Namespace::parse("ns").unwrap());
        let mut store = Keyspace::new(Limits::EMBEDDED);
        let lease = LeaseId::new(7).unwrap();
        store.grant(lease, Duration::from_secs(60), NOW).unwrap();
        let mut world = ClaimWorld { store, layout, lease };
        for name in tasks {
            world.put(&Key::Task(task(name)), "{}");
        }
        world
    }

    fn put(&mut self, key: &Key, value: &'static str) {
        self.apply(&Txn::new().then(Op::put(self.layout.encode(key), value))).unwrap();
    }

    fn apply(&mut self, txn: &Txn) -> Result<TxnReply, StoreError> {
        self.store.apply(txn, NOW)
    }

    fn get(&mut self, key: &Key) -> Option<crate::kv::KeyValue> {
        let reply = self.apply(&Txn::new().then(Op::get(self.layout.encode(key)))).unwrap();
        match &reply.results[..] {
            [OpReply::Get(page)] => page.pairs.first().cloned(),
            _ => None,
        }
    }

    fn claim_request(&mut self, name: &str) -> (ClaimRequest, LeaseId) {
        let created = self.get(&Key::Task(task(name))).map_or(Revision(1), |pair| pair.created);
        let has_props = self.get(&Key::TaskProps(task(name))).is_some();
        let (nonce, owner) = (name.to_owned(), format!(r#"{{"node":"me","nonce":"{name}"}}"#).into());
        let attempt = r#"{"node":"me"}"#.into();
        (
            ClaimRequest { task: task(name), created, nonce, owner, attempt, has_props, is_again: false },
            self.lease,
        )
    }

    fn request(&mut self, names: &[&str]) -> ClaimBatch {
        let checkpoint_requests = names.iter().map(|name| self.claim_request(name)).collect();
        ClaimBatch::new(checkpoint_requests, ClaimReadMode::Together)
    }

    /// The same claims in a bundle.
    fn one(&mut self, names: &[&str]) -> ClaimBatch {
        let checkpoint_requests = names.iter().map(|name| self.claim_request(name)).collect();
        let request = ClaimBatch::new(checkpoint_requests, ClaimReadMode::Bundled);
        assert_eq!(request.txns(&self.layout).len(), 1);
        request
    }

    /// Sends transactions until every claim has a reply. Returns the number of rounds.
    fn settle(&mut self, request: &mut ClaimBatch) -> usize {
        let mut rounds = 0;
        while !request.has_reply() {
            let replies = request.txns(&self.layout).iter().map(|txn| self.apply(txn)).collect();
            request.handle(replies);
            rounds += 1;
        }
        rounds
    }
}

fn task(name: &str) -> TaskId {
    TaskId::parse(name).unwrap()
}

/// What was won, in short: the state and the command that were found.
fn summaries(replies: &[ClaimReply]) -> Vec<String> {
    let text = |pair: &Option<crate::kv::KeyValue>| {
        pair.as_ref().map_or("-".to_owned(), |pair| String::from_utf8_lossy(&pair.value).into_owned())
    };
    let summary = |reply: &ClaimReply| match reply {
        ClaimReply::Won(won) => format!("won {} {}", text(&won.state), text(&won.command)),
        other => format!("{other:?}"),
    };
    replies.iter().map(summary).collect()
}

#[test]
fn new_tasks_are_claimed_with_one_read() {
    let mut world = ClaimWorld::with(&["a", "b", "c"]);
    let mut request = world.request(&["a", "b", "c"]);
    let reads = |txn: &Txn| txn.then.iter().filter(|op| matches!(op, Op::Get(_))).count();
    assert_eq!(request.txns(&world.layout).iter().map(reads).collect::<Vec<_>>(), [0, 0, 2]);
    assert_eq!(world.settle(&mut request), 1);
    let mut habit = ClaimModeHistory::default();
    habit.learn(&request);
    assert_eq!(habit.next_reading(), ClaimReadMode::Bundled);
    let replies = request.into_replies();
    assert_eq!(summaries(&replies), ["won - -"; 3]);
    for (reply, name) in replies.iter().zip(["a", "b", "c"]) {
        let ClaimReply::Won(won) = reply else { panic!("{reply:?}") };
        assert_eq!(Some(won.token.0), world.get(&Key::TaskOwner(task(name))).map(|pair| pair.created));
    }
}

#[test]
fn claim_finds_state_and_command() {
    for (key, found) in [
        (Key::TaskState(task("b")), ["won - -", "won {} -", "won - -"]),
        (Key::TaskCommand(task("a")), ["won - {}", "won - -", "won - -"]),
        (Key::TaskState(task("c")), ["won - -", "won - -", "won {} -"]),
    ] {
        let mut world = ClaimWorld::with(&["a", "b", "c"]);
        world.put(&key, "{}");
        let mut request = world.request(&["a", "b", "c"]);
        assert_eq!(world.settle(&mut request), 2, "{key:?}");
        let mut habit = ClaimModeHistory::default();
        habit.learn(&request);
        assert_eq!(
            habit.next_reading(),
            ClaimReadMode::Each,
            "what has just been found is not asked for in vain again"
        );
        let replies = request.into_replies();
        assert_eq!(summaries(&replies), found, "{key:?}");
        for (reply, name) in replies.iter().zip(["a", "b", "c"]) {
            let ClaimReply::Won(won) = reply else { panic!("{reply:?}") };
            assert_eq!(Some(won.token.0), world.get(&Key::TaskOwner(task(name))).map(|pair| pair.created));
        }
    }
}

#[test]
fn failed_claim_harms_no_other() {
    for (first, last) in [("taken", "b"), ("b", "taken"), ("gone", "b"), ("b", "gone")] {
        let mut world = ClaimWorld::with(&["taken", "b"]);
        world.put(&Key::TaskOwner(task("taken")), r#"{"node":"you"}"#);
        let mut request = world.request(&[first, last]);
        assert_eq!(world.settle(&mut request), 1);
        let of = |name: &str| {
            if name == "b" {
                "won - -"
            } else if name == "gone" {
                "TaskGone"
            } else {
                "Taken"
            }
        };
        assert_eq!(summaries(&request.into_replies()), [of(first), of(last)]);
    }
}

/// The store may carry out transactions that travel together in any order, and others between them.
#[test]
fn read_before_claim_does_not_count() {
    let mut world = ClaimWorld::with(&["a", "b"]);
    let mut request = world.request(&["a", "b"]);
    let txns = request.txns(&world.layout);
    let last = world.apply(&txns[1]);
    world.put(&Key::TaskState(task("a")), r#"{"by":"its former owner"}"#);
    let first = world.apply(&txns[0]);
    request.handle(vec![first, last]);
    assert!(!request.has_reply());
    world.settle(&mut request);
    assert_eq!(summaries(&request.into_replies()), [r#"won {"by":"its former owner"} -"#, "won - -"]);
}

#[test]
fn maybe_applied_claim_is_ambiguous() {
    let mut world = ClaimWorld::with(&["a", "b", "c"]);
    world.put(&Key::TaskState(task("c")), "{}");
    let mut request = world.request(&["a", "b", "c"]);
    let replies = request.txns(&world.layout).iter().map(|txn| world.apply(txn)).collect();
    request.handle(replies);
    let down = || Err(StoreError::Unavailable(Cause::new("down")));
    request.handle(vec![down(), Err(StoreError::Ambiguous(Cause::new("lost"))), down()]);
    assert_eq!(request.into_replies(), [ClaimReply::Ambiguous, ClaimReply::Ambiguous, ClaimReply::Ambiguous]);

    let mut request = world.request(&["a", "b", "c"]);
    request.handle(vec![down(), down(), down()]);
    assert_eq!(request.into_replies(), [ClaimReply::NotDone, ClaimReply::NotDone, ClaimReply::NotDone]);
}

#[test]
fn lost_shared_read_makes_each_claim_read() {
    let mut world = ClaimWorld::with(&["a", "b"]);
    let mut request = world.request(&["a", "b"]);
    let txns = request.txns(&world.layout);
    let first = world.apply(&txns[0]);
    request.handle(vec![first, Err(StoreError::Unavailable(Cause::new("down")))]);
    assert!(!request.has_reply());
    assert_eq!(world.settle(&mut request), 1);
    assert_eq!(summaries(&request.into_replies()), ["won - -", "NotDone"]);
}

#[test]
fn claims_read_props_only_where_present() {
    let mut world = ClaimWorld::with(&["a", "b"]);
    for state in [None, Some("{}")] {
        world.put(&Key::TaskProps(task("a")), r#"{"to":"a"}"#);
        if let Some(state) = state {
            world.put(&Key::TaskState(task("a")), state);
        }
        for name in ["a", "b"] {
            let owner = world.layout.encode(&Key::TaskOwner(task(name)));
            world.apply(&Txn::new().then(Op::delete(owner))).unwrap();
        }
        let mut request = world.request(&["a", "b"]);
        world.settle(&mut request);
        let props = |reply: ClaimReply| match reply {
            ClaimReply::Won(won) => won.props,
            other => panic!("{other:?}"),
        };
        let props: Vec<_> = request.into_replies().into_iter().map(props).collect();
        assert_eq!(props, [Some(r#"{"to":"a"}"#.into()), None]);
    }
}

#[test]
fn one_claim_by_itself_reads_for_itself() {
    let mut world = ClaimWorld::with(&["a"]);
    world.put(&Key::TaskState(task("a")), "{}");
    let mut request = world.request(&["a"]);
    assert_eq!(world.settle(&mut request), 1);
    assert_eq!(summaries(&request.into_replies()), ["won {} -"]);
}

#[test]
fn shared_read_is_retried_after_a_while() {
    let mut world = ClaimWorld::with(&["a", "b"]);
    world.put(&Key::TaskState(task("a")), "{}");
    let mut request = world.request(&["a", "b"]);
    world.settle(&mut request);
    let mut habit = ClaimModeHistory::default();
    habit.learn(&request);
    let each = (0..).take_while(|_| habit.next_reading() == ClaimReadMode::Each).count();
    assert_eq!(each, usize::try_from(EACH_FOR).unwrap());
}

#[test]
fn claims_that_all_succeed_are_one_transaction() {
    let mut world = ClaimWorld::with(&["a", "b", "c"]);
    world.put(&Key::TaskProps(task("b")), r#"{"to":"b"}"#);
    let mut request = world.one(&["a", "b", "c"]);
    assert_eq!(world.settle(&mut request), 1);
    let mut habit = ClaimModeHistory::default();
    habit.learn(&request);
    assert_eq!(habit.next_reading(), ClaimReadMode::Bundled);
    for (reply, (name, props)) in request.into_replies().into_iter().zip([
        ("a", None),
        ("b", Some(r#"{"to":"b"}"#.into())),
        ("c", None),
    ]) {
        let ClaimReply::Won(won) = reply else { panic!("{reply:?}") };
        assert_eq!(Some(won.token.0), world.get(&Key::TaskOwner(task(name))).map(|pair| pair.created));
        assert_eq!((won.props, won.state, won.command), (props, None, None));
    }
}

#[test]
fn failed_bundle_is_split_for_a_while() {
    let mut world = ClaimWorld::with(&["a", "taken", "c"]);
    world.put(&Key::TaskOwner(task("taken")), r#"{"node":"you"}"#);
    let mut request = world.one(&["a", "taken", "gone", "c"]);
    assert_eq!(world.settle(&mut request), 2);
    let mut habit = ClaimModeHistory::default();
    habit.learn(&request);
    assert_eq!(summaries(&request.into_replies()), ["won - -", "Taken", "TaskGone", "won - -"]);
    let apart = (0..).take_while(|_| habit.next_reading() == ClaimReadMode::Together).count();
    assert_eq!(apart, usize::try_from(APART_FOR).unwrap());
}

#[test]
fn ended_lease_ends_only_its_claims() {
    let mut world = ClaimWorld::with(&["a", "b"]);
    let ((first, _), second) = (world.claim_request("a"), world.claim_request("b"));
    let checkpoint_requests = vec![(first, LeaseId::new(99).unwrap()), second];
    let mut request = ClaimBatch::new(checkpoint_requests, ClaimReadMode::Bundled);
    assert_eq!(world.settle(&mut request), 2);
    assert_eq!(summaries(&request.into_replies()), ["LeaseLost", "won - -"]);
}

#[test]
fn state_found_by_bundle_is_read_by_each() {
    let mut world = ClaimWorld::with(&["a", "b"]);
    world.put(&Key::TaskState(task("b")), "{}");
    let mut request = world.one(&["a", "b"]);
    assert_eq!(world.settle(&mut request), 2);
    assert_eq!(summaries(&request.into_replies()), ["won - -", "won {} -"]);
}

#[test]
fn bundle_result_applies_to_all_claims() {
    let mut world = ClaimWorld::with(&["a", "b"]);
    for (error, reply) in [
        (StoreError::Ambiguous(Cause::new("lost")), ClaimReply::Ambiguous),
        (StoreError::Unavailable(Cause::new("down")), ClaimReply::NotDone),
    ] {
        let mut request = world.one(&["a", "b"]);
        request.handle(vec![Err(error)]);
        assert_eq!(request.into_replies(), [reply.clone(), reply]);
    }
}

#[test]
fn bundle_is_limited_and_excludes_repeats() {
    let names: Vec<String> = (0..BUNDLE * 2).map(|n| format!("t{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut world = ClaimWorld::with(&names);
    for name in &names {
        world.put(&Key::TaskProps(task(name)), "{}");
    }
    let txns = |world: &mut ClaimWorld, names: &[&str], is_again: bool| {
        let mut checkpoint_requests: Vec<_> = names.iter().map(|name| world.claim_request(name)).collect();
        checkpoint_requests[0].0.is_again = is_again;
        ClaimBatch::new(checkpoint_requests, ClaimReadMode::Bundled).txns(&world.layout)
    };
    assert_eq!(txns(&mut world, &names[..2], true).len(), 2);
    assert_eq!(txns(&mut world, &names[..1], false).len(), 1);
    let full = txns(&mut world, &names, false);
    assert_eq!(full.len(), 2);
    assert!(full.iter().all(|txn| txn.check(&Limits::EMBEDDED).is_ok()), "as etcd comes");
}

#[test]
fn a_bundle_that_is_refused_harms_no_other() {
    let names: Vec<String> = (0..BUNDLE + 2).map(|n| format!("t{n:03}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut world = ClaimWorld::with(&names);
    world.put(&Key::TaskOwner(task(names[BUNDLE])), r#"{"node":"you"}"#);
    let checkpoint_requests = names.iter().map(|name| world.claim_request(name)).collect();
    let mut request = ClaimBatch::new(checkpoint_requests, ClaimReadMode::Bundled);
    assert_eq!(world.settle(&mut request), 2);
    let summaries = summaries(&request.into_replies());
    assert!(
        summaries.iter().enumerate().all(|(n, summary)| (summary == "Taken") == (n == BUNDLE)),
        "{summaries:?}"
    );
}
