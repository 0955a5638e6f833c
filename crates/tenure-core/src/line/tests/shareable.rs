//! Modes that several hold at once: only a snapshot of the whole queue decides.

use super::*;

/// The watch can show a key before the reply to its enter arrives. The snapshot decides then too.
#[test]
fn snapshot_before_enter_reply_decides() {
    let mode = Mode::Permit { of: NonZeroU32::new(2).unwrap() };
    let token = |revision| Token(Revision(revision));
    let before = Place { lease: lease(2), nonce: 1 };
    for (earlier, holds) in [(vec![3], true), (vec![3, 4], false)] {
        let mut line = Line::new(7);
        let ticket = line.stand(lease(1), mode);
        let Some(Action::Enter { epoch, .. }) = line.poll_action() else { panic!("no enter") };
        let snapshot = earlier.into_iter().chain([9]).map(|revision| (token(revision), mode)).collect();
        line.handle_picture(snapshot, NOW);
        assert!(line.poll_notice().is_none(), "the reply is missing");
        line.handle_entered(
            ticket,
            epoch,
            Entered::Stands { token: token(9), before: Some(before) },
            0.5,
            NOW,
        );
        match line.poll_notice() {
            Some(Notice::Held { .. }) => assert!(holds),
            Some(Notice::Waits { .. }) => assert!(!holds),
            other => panic!("{other:?}"),
        }
    }
}

/// A predecessor alone decides nothing for a permit: a try would fail although permits are free.
#[test]
fn permit_waits_only_after_a_snapshot() {
    let mode = Mode::Permit { of: NonZeroU32::new(2).unwrap() };
    let mut line = Line::new(7);
    let ticket = line.stand(lease(1), mode);
    let Some(Action::Enter { epoch, .. }) = line.poll_action() else { panic!("no enter") };
    let before = Some(Place { lease: lease(2), nonce: 1 });
    line.handle_entered(ticket, epoch, Entered::Stands { token: Token(Revision(9)), before }, 0.5, NOW);
    assert!(line.poll_notice().is_none() && line.is_crowded());
    let snapshot = |revisions: &[i64]| revisions.iter().map(|&at| (Token(Revision(at)), mode)).collect();
    line.handle_picture(snapshot(&[3, 4]), NOW);
    assert!(line.poll_notice().is_none(), "the snapshot is older than the key");
    line.handle_picture(snapshot(&[3, 4, 9]), NOW);
    assert!(matches!(line.poll_notice(), Some(Notice::Waits { .. })));
    line.handle_picture(snapshot(&[4, 9]), NOW);
    assert!(matches!(line.poll_notice(), Some(Notice::Held { .. })));
}
