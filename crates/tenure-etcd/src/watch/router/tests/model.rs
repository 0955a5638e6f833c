//! A model of the server's side of one stream, cut off at every message boundary (X17).

use std::collections::VecDeque;

use super::{A, B, Consumer, Router, RouterAction, Saw, TRUST, WatchFrom, WatchName, WatchSpec};
use super::{created, header, progress, put, refused, spec};
use crate::message::watch::{WatchRequestKind, WatchResponse, WireEvent};

/// What happened in the store: a revision and how many keys it changed.
const HISTORY: &[(i64, usize)] = &[(2, 1), (3, 4), (4, 1), (5, 2), (6, 7), (7, 1), (8, 3)];
const PRESENT: i64 = 8;

/// The replies on one stream, made when they are requested.
#[derive(Default)]
struct Server {
    answers: VecDeque<WatchResponse>,
}

impl Server {
    /// Replies to a request; history comes in fragments of three events, cut anywhere.
    fn take(&mut self, kind: WatchRequestKind) {
        match kind {
            WatchRequestKind::Create(create) if create.range_end < create.key => {
                self.answers.push_back(refused("mvcc: watcher range is empty"));
            }
            WatchRequestKind::Create(create) => {
                self.answers.push_back(created(create.watch_id, PRESENT));
                let start = if create.start_revision == 0 { PRESENT + 1 } else { create.start_revision };
                let events: Vec<WireEvent> = HISTORY
                    .iter()
                    .filter(|(revision, _)| *revision >= start)
                    .flat_map(|(revision, keys)| std::iter::repeat_n(put(*revision), *keys))
                    .collect();
                let pieces = events.chunks(3).count();
                for (n, piece) in events.chunks(3).enumerate() {
                    self.answers.push_back(WatchResponse {
                        header: header(PRESENT),
                        watch_id: create.watch_id,
                        fragment: n + 1 < pieces,
                        events: piece.to_vec(),
                        ..WatchResponse::default()
                    });
                }
            }
            WatchRequestKind::Cancel(_) => {}
            WatchRequestKind::Progress(_) => self.answers.push_back(progress(-1, PRESENT)),
        }
    }
}

/// Runs two watchers to the end of history, cutting the stream after `cuts[n]` messages of the n-th stream.
/// Probes are answered at once, or only after the next message, which may come from another stream.
fn run(cuts: &[usize], probes_are_slow: bool) -> (Vec<Saw>, Vec<Saw>, usize) {
    let consumers = [Consumer::new(), Consumer::new()];
    let mut router = Router::new();
    let from_later = WatchSpec { start: WatchFrom::After(4), ..spec(WatchFrom::Now) };
    router.subscribe(A, spec(WatchFrom::After(0)), consumers[0].clone());
    router.subscribe(B, from_later, consumers[1].clone());
    let mut unproven: VecDeque<(WatchName, u64)> = VecDeque::new();
    let mut messages = 0;
    for cut in cuts.iter().copied().chain([usize::MAX]) {
        let mut server = Server::default();
        router.connected();
        router.trust(TRUST);
        router.request_sign_of_life();
        for _ in 0..cut {
            while let Some(request) = router.poll_request() {
                server.take(request.request.unwrap());
            }
            let Some(answer) = server.answers.pop_front() else { break };
            messages += 1;
            router.handle(answer);
            if probes_are_slow {
                prove(&mut router, &mut unproven);
            }
            while let Some(action) = router.poll_action() {
                let RouterAction::Probe { name, epoch, .. } = action else {
                    panic!("unexpected: {action:?}")
                };
                unproven.push_back((name, epoch));
            }
            if !probes_are_slow {
                prove(&mut router, &mut unproven);
            }
        }
        prove(&mut router, &mut unproven);
        router.lost();
    }
    (batches(&consumers[0]), batches(&consumers[1]), messages)
}

fn prove(router: &mut Router<Consumer>, unproven: &mut VecDeque<(WatchName, u64)>) {
    for (name, epoch) in unproven.drain(..) {
        router.proven(name, epoch);
    }
}

fn batches(consumer: &Consumer) -> Vec<Saw> {
    consumer.saw().into_iter().filter(|saw| matches!(saw, Saw::Batch(..))).collect()
}

#[test]
fn cut_stream_delivers_same_items() {
    let all: Vec<Saw> = HISTORY.iter().map(|(revision, keys)| Saw::Batch(*revision, *keys)).collect();
    for probes_are_slow in [false, true] {
        let (a, b, messages) = run(&[], probes_are_slow);
        assert_eq!(a, all);
        assert_eq!(b, all[3..]);
        for first in 0..=messages {
            for second in 0..=messages {
                let (cut_a, cut_b, _) = run(&[first, second], probes_are_slow);
                assert_eq!((&cut_a, &cut_b), (&a, &b), "cut after {first} and {second} messages");
            }
        }
    }
}
