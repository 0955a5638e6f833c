//! One TTL election in virtual milliseconds. The TTL is 4 s: renewed every second, patience 1 s,
//! margin 0.5 s.

mod world;

use super::*;
use crate::keepalive::Timing;

const TTL: Duration = Duration::from_secs(4);

fn at(ms: u64) -> Moment {
    Moment::from_ms(ms)
}

fn config(fencing: FencingSupport) -> TtlConfig {
    TtlConfig { timing: Timing::quarterly(TTL, None).unwrap(), stop_within: Duration::from_secs(1), fencing }
}

/// One step of a scenario, with the millisecond at which it happens.
#[derive(Clone, Copy, Debug)]
enum TtlStep {
    /// The poll must return this request.
    Sends(u64, Option<StorageRequest>),
    /// The request sent at the first moment has its reply at the second.
    Replied(u64, StorageRequest, StorageReply, u64),
    Release(u64),
    Stopped(u64),
    /// It must have this status.
    Has(u64, TtlStatus),
    /// This must be its next wake.
    Wakes(Option<u64>),
}

use StorageReply::{No, NotApplied, Unknown, Yes};
use StorageRequest::{Delete, Insert, Swap, Token as ReadToken};
use TtlStep::{Has, Release, Replied, Sends, Stopped, Wakes};

fn check_with(fencing: FencingSupport, story: &[TtlStep]) {
    let mut election = TtlElection::new(config(fencing), at(0));
    for (index, step) in story.iter().enumerate() {
        match *step {
            Sends(ms, request) => {
                assert_eq!(election.poll_request(at(ms)), request, "step {index}: {step:?}");
            }
            Replied(sent, request, reply, ms) => {
                election.handle_reply(request, at(sent), reply, 1.0, at(ms));
            }
            Release(ms) => election.release(at(ms)),
            Stopped(ms) => election.handle_stopped(at(ms)),
            Has(ms, status) => {
                assert_eq!(election.status(at(ms)), status, "step {index}: {step:?}");
                let is_leading = status == TtlStatus::Leading;
                assert_eq!(election.is_valid(at(ms)), is_leading, "step {index}: {step:?}");
                assert_eq!(!election.remaining(at(ms)).is_zero(), is_leading, "step {index}: {step:?}");
            }
            Wakes(wake) => assert_eq!(election.next_wake(), wake.map(at), "step {index}: {step:?}"),
        }
    }
}

fn check(story: &[TtlStep]) {
    check_with(FencingSupport::None, story);
}

const LEADING: TtlStatus = TtlStatus::Leading;

fn over(end: TtlEnd) -> TtlStatus {
    TtlStatus::Over(end)
}

fn left(left: TtlReleaseOutcome) -> TtlStatus {
    TtlStatus::Over(TtlEnd::Released(left))
}

#[test]
fn term_lasts_from_reply_to_margin_before_ttl() {
    check(&[
        Sends(0, Some(Insert)),
        Has(10, TtlStatus::Acquiring),
        Replied(0, Insert, Yes, 300),
        Has(300, LEADING),
        Wakes(Some(1_000)),
        Has(3_499, LEADING),
        Has(3_500, over(TtlEnd::Lapsed)),
    ]);
}

#[test]
fn renewal_counts_from_its_send_time() {
    check(&[
        Sends(0, Some(Insert)),
        Replied(0, Insert, Yes, 10),
        Sends(999, None),
        Sends(1_000, Some(Swap)),
        Replied(1_000, Swap, Yes, 1_900),
        Wakes(Some(2_000)),
        Has(4_499, LEADING),
        Has(4_500, over(TtlEnd::Lapsed)),
    ]);
}

#[test]
fn hanging_storage_ends_term_on_time() {
    check(&[
        Sends(0, Some(Insert)),
        Replied(0, Insert, Yes, 10),
        Sends(1_000, Some(Swap)),
        Sends(1_999, None),
        Sends(2_000, Some(Swap)),
        Sends(3_000, Some(Swap)),
        Wakes(Some(3_500)),
        Sends(3_500, None),
        Has(3_500, over(TtlEnd::Lapsed)),
        Wakes(None),
    ]);
}

#[test]
fn late_reply_renews_from_its_send_time() {
    check(&[
        Sends(0, Some(Insert)),
        Replied(0, Insert, Yes, 10),
        Sends(1_000, Some(Swap)),
        Sends(2_000, Some(Swap)),
        Replied(1_000, Swap, Yes, 2_500),
        Has(4_499, LEADING),
        Has(4_500, over(TtlEnd::Lapsed)),
    ]);
}

#[test]
fn three_failed_renewals_keep_the_term() {
    check(&[
        Sends(0, Some(Insert)),
        Replied(0, Insert, Yes, 10),
        Sends(1_000, Some(Swap)),
        Replied(1_000, Swap, NotApplied, 1_010),
        Sends(1_109, None),
        Sends(1_110, Some(Swap)),
        Replied(1_110, Swap, Unknown, 1_120),
        Sends(1_320, Some(Swap)),
        Replied(1_320, Swap, Unknown, 1_330),
        Sends(1_730, Some(Swap)),
        Replied(1_730, Swap, Yes, 1_740),
        Has(5_229, LEADING),
        Has(5_230, over(TtlEnd::Lapsed)),
    ]);
}

#[test]
fn replaced_value_ends_term_without_delete() {
    check(&[
        Sends(0, Some(Insert)),
        Replied(0, Insert, Yes, 10),
        Sends(1_000, Some(Swap)),
        Replied(1_000, Swap, No, 1_010),
        Has(1_010, over(TtlEnd::Replaced)),
        Sends(1_010, None),
        Wakes(None),
    ]);
}

#[test]
fn ambiguous_insert_is_settled_by_swap() {
    check(&[
        Sends(0, Some(Insert)),
        Replied(0, Insert, Unknown, 100),
        Sends(100, Some(Swap)),
        Replied(100, Swap, Yes, 150),
        Has(150, LEADING),
        Has(3_599, LEADING),
        Has(3_600, over(TtlEnd::Lapsed)),
    ]);
}

#[test]
fn insert_lost_before_arrival_is_not_acquired() {
    check(&[
        Sends(0, Some(Insert)),
        Replied(0, Insert, Unknown, 100),
        Sends(100, Some(Swap)),
        Replied(100, Swap, No, 150),
        Has(150, over(TtlEnd::NotAcquired)),
    ]);
}

#[test]
fn unsettled_insert_is_deleted_until_its_ttl() {
    check(&[
        Sends(0, Some(Insert)),
        Replied(0, Insert, Unknown, 100),
        Sends(100, Some(Swap)),
        Replied(100, Swap, Unknown, 150),
        Has(150, TtlStatus::Leaving(TtlEnd::NotAcquired)),
        Sends(150, Some(Delete)),
        Replied(150, Delete, Unknown, 160),
        Sends(259, None),
        Sends(260, Some(Delete)),
        Sends(1_260, Some(Delete)),
        Replied(260, Delete, No, 1_300),
        Has(1_300, TtlStatus::Leaving(TtlEnd::NotAcquired)),
        Replied(1_260, Delete, Yes, 1_400),
        Has(1_400, over(TtlEnd::NotAcquired)),
    ]);
}

/// The swap overtook the insert: its refusal does not describe what was stored later.
#[test]
fn refused_settling_swap_keeps_the_term() {
    check(&[
        Sends(0, Some(Insert)),
        Sends(1_000, Some(Swap)),
        Replied(0, Insert, Yes, 1_100),
        Replied(1_000, Swap, No, 1_200),
        Has(1_200, LEADING),
        Has(3_500, over(TtlEnd::Lapsed)),
    ]);
}

#[test]
fn late_insert_is_deleted_again() {
    check(&[
        Sends(0, Some(Insert)),
        Sends(1_000, Some(Swap)),
        Replied(1_000, Swap, No, 1_010),
        Sends(1_010, Some(Delete)),
        Replied(1_010, Delete, No, 1_020),
        Has(1_020, TtlStatus::Leaving(TtlEnd::NotAcquired)),
        Wakes(Some(5_000)),
        Replied(0, Insert, Yes, 1_500),
        Sends(1_500, Some(Delete)),
        Replied(1_500, Delete, Yes, 1_600),
        Has(1_600, over(TtlEnd::NotAcquired)),
    ]);
}

#[test]
fn delete_overtaken_by_insert_is_repeated() {
    check(&[
        Sends(0, Some(Insert)),
        Sends(1_000, Some(Swap)),
        Replied(1_000, Swap, No, 1_010),
        Sends(1_010, Some(Delete)),
        Replied(0, Insert, Yes, 1_100),
        Replied(1_010, Delete, No, 1_200),
        Sends(1_200, Some(Delete)),
        Replied(1_200, Delete, Yes, 1_300),
        Has(1_300, over(TtlEnd::NotAcquired)),
    ]);
}

#[test]
fn release_ends_validity_then_work_then_deletes() {
    check(&[
        Sends(0, Some(Insert)),
        Replied(0, Insert, Yes, 10),
        Release(500),
        Has(500, TtlStatus::Stopping),
        Sends(600, None),
        Wakes(Some(1_500)),
        Stopped(700),
        Sends(700, Some(Delete)),
        Has(700, TtlStatus::Leaving(TtlEnd::Released(TtlReleaseOutcome::Nothing))),
        Replied(700, Delete, Yes, 800),
        Has(800, left(TtlReleaseOutcome::Nothing)),
    ]);
}

#[test]
fn running_work_keeps_key_until_expiry() {
    check(&[
        Sends(0, Some(Insert)),
        Replied(0, Insert, Yes, 10),
        Release(500),
        Sends(1_500, None),
        Has(1_500, left(TtlReleaseOutcome::StillRunning)),
        Stopped(1_600),
        Sends(1_600, None),
    ]);
}

/// The work may take a second to stop, but not longer than the validity that is left.
#[test]
fn wait_for_work_ends_with_validity() {
    check(&[
        Sends(0, Some(Insert)),
        Replied(0, Insert, Yes, 10),
        Release(3_400),
        Wakes(Some(3_500)),
        Stopped(3_500),
        Has(3_500, left(TtlReleaseOutcome::StillRunning)),
    ]);
}

#[test]
fn release_of_lost_key_reports_the_loss() {
    check(&[
        Sends(0, Some(Insert)),
        Replied(0, Insert, Yes, 10),
        Release(500),
        Stopped(500),
        Sends(500, Some(Delete)),
        Replied(500, Delete, No, 510),
        Has(510, left(TtlReleaseOutcome::Gone)),
    ]);
}

#[test]
fn ambiguous_delete_is_no_loss() {
    check(&[
        Sends(0, Some(Insert)),
        Replied(0, Insert, Yes, 10),
        Release(500),
        Stopped(500),
        Sends(500, Some(Delete)),
        Replied(500, Delete, Unknown, 510),
        Sends(610, Some(Delete)),
        Replied(610, Delete, No, 620),
        Has(620, left(TtlReleaseOutcome::Nothing)),
    ]);
}

#[test]
fn delete_without_reply_ends_with_the_ttl() {
    check(&[
        Sends(0, Some(Insert)),
        Replied(0, Insert, Yes, 10),
        Sends(1_000, Some(Swap)),
        Release(1_500),
        Stopped(1_500),
        Sends(1_500, Some(Delete)),
        Sends(2_500, Some(Delete)),
        Sends(3_500, Some(Delete)),
        Sends(4_500, Some(Delete)),
        Wakes(Some(5_000)),
        Sends(5_000, None),
        Has(5_000, left(TtlReleaseOutcome::Unconfirmed)),
    ]);
}

#[test]
fn released_campaign_deletes_what_it_inserts() {
    check(&[
        Sends(0, Some(Insert)),
        Release(50),
        Has(50, TtlStatus::Acquiring),
        Replied(0, Insert, Yes, 100),
        Sends(100, Some(Delete)),
        Replied(100, Delete, Yes, 110),
        Has(110, left(TtlReleaseOutcome::Nothing)),
    ]);
    check(&[Sends(0, Some(Insert)), Release(50), Replied(0, Insert, No, 100), Has(100, over(TtlEnd::Held))]);
    check(&[
        Sends(0, Some(Insert)),
        Release(50),
        Replied(0, Insert, Unknown, 100),
        Sends(100, Some(Delete)),
        Replied(100, Delete, No, 110),
        Has(110, left(TtlReleaseOutcome::Gone)),
    ]);
}

#[test]
fn late_insert_reply_is_deleted() {
    check(&[
        Sends(0, Some(Insert)),
        Sends(1_000, Some(Swap)),
        Replied(1_000, Swap, Unknown, 1_010),
        Sends(1_010, Some(Delete)),
        Replied(0, Insert, Yes, 3_600),
        Has(3_600, TtlStatus::Leaving(TtlEnd::NotAcquired)),
    ]);
}

#[test]
fn term_begins_when_the_token_is_known() {
    check_with(
        FencingSupport::Token,
        &[
            Sends(0, Some(Insert)),
            Replied(0, Insert, Yes, 10),
            Has(10, TtlStatus::Acquiring),
            Sends(10, Some(ReadToken)),
            Replied(10, ReadToken, Unknown, 20),
            Wakes(Some(120)),
            Sends(120, Some(ReadToken)),
            Sends(1_000, Some(Swap)),
            Sends(1_120, Some(ReadToken)),
            Replied(120, ReadToken, Yes, 1_200),
            Has(1_200, LEADING),
        ],
    );
    check_with(
        FencingSupport::Token,
        &[
            Sends(0, Some(Insert)),
            Replied(0, Insert, Yes, 10),
            Sends(10, Some(ReadToken)),
            Replied(10, ReadToken, No, 20),
            Has(20, over(TtlEnd::Replaced)),
        ],
    );
}

#[test]
fn campaign_without_token_deletes_at_deadline() {
    check_with(
        FencingSupport::Token,
        &[
            Sends(0, Some(Insert)),
            Replied(0, Insert, Yes, 10),
            Sends(10, Some(ReadToken)),
            Sends(3_500, Some(Delete)),
            Has(3_500, TtlStatus::Leaving(TtlEnd::Lapsed)),
        ],
    );
}
