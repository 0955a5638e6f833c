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
    /// A store with tasks in it that nobody owns.
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

    fn ask(&mut self, name: &str) -> (ClaimRequest, LeaseId) {
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
        let checkpoint_requests = names.iter().map(|name| self.ask(name)).collect();
        ClaimBatch::new(checkpoint_requests, ClaimReadMode::Together)
    }

    /// The same claims in a bundle.
    fn one(&mut self, names: &[&str]) -> ClaimBatch {
        let checkpoint_requests = names.iter().map(|name| self.ask(name)).collect();
        let request = ClaimBatch::new(checkpoint_requests, ClaimReadMode::Bundled);
        assert_eq!(request.txns(&self.layout).len(), 1);
        request
    }

    /// Asks until everything is answered; says how often that was.
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
fn words(replies: &[ClaimReply]) -> Vec<String> {
    let text = |pair: &Option<crate::kv::KeyValue>| {
        pair.as_ref().map_or("-".to_owned(), |pair| String::from_utf8_lossy(&pair.value).into_owned())
    };
    let word = |reply: &ClaimReply| match reply {
        ClaimReply::Won(won) => format!("ours {} {}", text(&won.state), text(&won.command)),
        other => format!("{other:?}"),
    };
    replies.iter().map(word).collect()
}

#[test]
fn new_tasks_are_claimed_in_one_go_and_only_one_of_them_reads() {
    let mut world = ClaimWorld::with(&["a", "b", "c"]);
    let mut request = world.request(&["a", "b", "c"]);
    let reads = |txn: &Txn| txn.then.iter().filter(|op| matches!(op, Op::Get(_))).count();
    assert_eq!(request.txns(&world.layout).iter().map(reads).collect::<Vec<_>>(), [0, 0, 2]);
    assert_eq!(world.settle(&mut request), 1);
    let mut habit = ClaimModeHistory::default();
    habit.learn(&request);
    assert_eq!(habit.next_reading(), ClaimReadMode::Bundled);
    let replies = request.into_replies();
    assert_eq!(words(&replies), ["ours - -"; 3]);
    for (reply, name) in replies.iter().zip(["a", "b", "c"]) {
        let ClaimReply::Won(won) = reply else { panic!("{reply:?}") };
        assert_eq!(Some(won.token.0), world.get(&Key::TaskOwner(task(name))).map(|pair| pair.created));
    }
}

#[test]
fn a_state_or_a_command_of_one_task_is_found_by_its_claim() {
    for (key, found) in [
        (Key::TaskState(task("b")), ["ours - -", "ours {} -", "ours - -"]),
        (Key::TaskCommand(task("a")), ["ours - {}", "ours - -", "ours - -"]),
        (Key::TaskState(task("c")), ["ours - -", "ours - -", "ours {} -"]),
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
        assert_eq!(words(&replies), found, "{key:?}");
        for (reply, name) in replies.iter().zip(["a", "b", "c"]) {
            let ClaimReply::Won(won) = reply else { panic!("{reply:?}") };
            assert_eq!(Some(won.token.0), world.get(&Key::TaskOwner(task(name))).map(|pair| pair.created));
        }
    }
}

#[test]
fn a_claim_that_fails_says_why_at_once_and_harms_no_other() {
    for (first, last) in [("taken", "b"), ("b", "taken"), ("gone", "b"), ("b", "gone")] {
        let mut world = ClaimWorld::with(&["taken", "b"]);
        world.put(&Key::TaskOwner(task("taken")), r#"{"node":"you"}"#);
        let mut request = world.request(&[first, last]);
        assert_eq!(world.settle(&mut request), 1);
        let of = |name: &str| {
            if name == "b" {
                "ours - -"
            } else if name == "gone" {
                "TaskGone"
            } else {
                "Taken"
            }
        };
        assert_eq!(words(&request.into_replies()), [of(first), of(last)]);
    }
}

/// The store may carry out transactions that travel together in any order, and others between them.
#[test]
fn that_there_was_nothing_before_a_claim_does_not_count_for_it() {
    let mut world = ClaimWorld::with(&["a", "b"]);
    let mut request = world.request(&["a", "b"]);
    let txns = request.txns(&world.layout);
    let last = world.apply(&txns[1]);
    world.put(&Key::TaskState(task("a")), r#"{"by":"its former owner"}"#);
    let first = world.apply(&txns[0]);
    request.handle(vec![first, last]);
    assert!(!request.has_reply());
    world.settle(&mut request);
    assert_eq!(words(&request.into_replies()), [r#"ours {"by":"its former owner"} -"#, "ours - -"]);
}

#[test]
fn what_may_be_ours_is_never_said_not_to_be_done() {
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
fn without_the_answer_of_the_one_who_reads_the_others_read_for_themselves() {
    let mut world = ClaimWorld::with(&["a", "b"]);
    let mut request = world.request(&["a", "b"]);
    let txns = request.txns(&world.layout);
    let first = world.apply(&txns[0]);
    request.handle(vec![first, Err(StoreError::Unavailable(Cause::new("down")))]);
    assert!(!request.has_reply());
    assert_eq!(world.settle(&mut request), 1);
    assert_eq!(words(&request.into_replies()), ["ours - -", "NotDone"]);
}

#[test]
fn props_are_read_by_the_claims_of_tasks_that_have_some() {
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
    assert_eq!(words(&request.into_replies()), ["ours {} -"]);
}

#[test]
fn asking_together_is_tried_again_after_a_while() {
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
fn whoever_was_faster_fails_all_once_and_then_each_is_asked_for_itself_for_a_while() {
    let mut world = ClaimWorld::with(&["a", "taken", "c"]);
    world.put(&Key::TaskOwner(task("taken")), r#"{"node":"you"}"#);
    let mut request = world.one(&["a", "taken", "gone", "c"]);
    assert_eq!(world.settle(&mut request), 2);
    let mut habit = ClaimModeHistory::default();
    habit.learn(&request);
    assert_eq!(words(&request.into_replies()), ["ours - -", "Taken", "TaskGone", "ours - -"]);
    let apart = (0..).take_while(|_| habit.next_reading() == ClaimReadMode::Together).count();
    assert_eq!(apart, usize::try_from(APART_FOR).unwrap());
}

#[test]
fn a_lease_that_is_over_ends_only_its_own_claims() {
    let mut world = ClaimWorld::with(&["a", "b"]);
    let ((first, _), second) = (world.ask("a"), world.ask("b"));
    let checkpoint_requests = vec![(first, LeaseId::new(99).unwrap()), second];
    let mut request = ClaimBatch::new(checkpoint_requests, ClaimReadMode::Bundled);
    assert_eq!(world.settle(&mut request), 2);
    assert_eq!(words(&request.into_replies()), ["LeaseLost", "ours - -"]);
}

#[test]
fn a_state_that_one_transaction_finds_is_read_by_each_claim() {
    let mut world = ClaimWorld::with(&["a", "b"]);
    world.put(&Key::TaskState(task("b")), "{}");
    let mut request = world.one(&["a", "b"]);
    assert_eq!(world.settle(&mut request), 2);
    assert_eq!(words(&request.into_replies()), ["ours - -", "ours {} -"]);
}

#[test]
fn what_came_of_one_transaction_came_of_all_claims() {
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
fn a_bundle_has_an_end_and_what_was_asked_before_is_in_none() {
    let names: Vec<String> = (0..BUNDLE * 2).map(|n| format!("t{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut world = ClaimWorld::with(&names);
    for name in &names {
        world.put(&Key::TaskProps(task(name)), "{}");
    }
    let txns = |world: &mut ClaimWorld, names: &[&str], is_again: bool| {
        let mut checkpoint_requests: Vec<_> = names.iter().map(|name| world.ask(name)).collect();
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
    let checkpoint_requests = names.iter().map(|name| world.ask(name)).collect();
    let mut request = ClaimBatch::new(checkpoint_requests, ClaimReadMode::Bundled);
    assert_eq!(world.settle(&mut request), 2);
    let words = words(&request.into_replies());
    assert!(words.iter().enumerate().all(|(n, word)| (word == "Taken") == (n == BUNDLE)), "{words:?}");
}
