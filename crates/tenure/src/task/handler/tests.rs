//! How results of handlers are reported, and how props are decoded.

use serde::Deserialize;

use super::*;
use crate::hold::Lost;
use crate::task::StopReason;

const STOPPED: Stopped = Stopped { reason: StopReason::Shutdown };

fn lost() -> Lost {
    Lost { subject: "task 'a'".into(), reason: LossReason::Lapsed }
}

fn failed<E: Into<TaskError>>(error: E) -> Reported {
    reported(Err(error.into()))
}

#[test]
fn stop_and_loss_are_no_failures_below_any_error() {
    assert_eq!(failed(STOPPED), Reported::Release);
    assert_eq!(failed(lost()), Reported::Release);
    for error in [anyhow::Error::from(STOPPED), anyhow::Error::from(lost())] {
        assert_eq!(failed(error), Reported::Release);
    }
    let deep = anyhow::Error::from(lost()).context("row 7").context("import");
    assert_eq!(failed(deep), Reported::Release);
    assert_eq!(failed(crate::hold::CommitError::Lost(lost())), Reported::Release);
    assert_eq!(failed(crate::task::CheckpointError::Lost(lost())), Reported::Release);
    assert_eq!(failed(std::io::Error::other(STOPPED)), Reported::Release);
}

#[test]
fn error_is_failure_with_its_causes() {
    assert_eq!(failed("no such file"), Reported::Fault("no such file".to_owned()));
    assert_eq!(failed(String::from("text")), Reported::Fault("text".to_owned()));
    let error = anyhow::anyhow!("no such file").context("a.csv").context("import");
    assert_eq!(failed(error), Reported::Fault("import: a.csv: no such file".to_owned()));
}

#[test]
fn handler_chooses_what_follows() {
    let reason = "invalid address".to_owned();
    let decision = Decision::Fail { reason: reason.clone() };
    assert_eq!(
        failed(TaskError::permanent(reason.clone())),
        Reported::FaultDecided { message: reason, decision }
    );
    let before = wall_time();
    let later = failed(TaskError::retry_after("busy", Duration::from_secs(60)));
    let Reported::FaultDecided { decision: Decision::Sleep { until }, .. } = later else {
        panic!("{later:?}")
    };
    assert!(until >= before.after(Duration::from_secs(60)) && until <= after(Duration::from_secs(60)));
}

#[derive(Deserialize, PartialEq, Debug)]
struct Import {
    file: String,
    rows: Vec<u32>,
}

fn decode<P: FromProps>(json: &'static str) -> Result<P, InvalidTaskProps> {
    P::from_props(Some(&Bytes::from(json)))
}

#[test]
fn undecodable_props_report_their_path() {
    let good = Import { file: "a".to_owned(), rows: vec![1] };
    assert_eq!(decode::<Import>(r#"{"file":"a","rows":[1]}"#), Ok(good));
    let path = |json| decode::<Import>(json).unwrap_err().path;
    assert_eq!(path(r#"{"file":"a","rows":[1,"b"]}"#), "rows[1]");
    assert_eq!(path(r#"{"file":7,"rows":[]}"#), "file");
    assert_eq!(path("7"), ".");
    assert_eq!(path(r#"{"file":"a","rows":[]} x"#), ".");
    let message = decode::<Import>(r#"{"file":"a","rows":[-1]}"#).unwrap_err().to_string();
    assert!(message.starts_with("invalid props at rows[0]: invalid value: integer `-1`"), "{message}");
}

#[test]
fn absent_props_are_null_and_raw_props_are_bytes() {
    assert_eq!(<()>::from_props(None), Ok(()));
    assert_eq!(Option::<u32>::from_props(None), Ok(None));
    assert!(u32::from_props(None).is_err());
    assert_eq!(RawProps::from_props(None), Ok(RawProps(Bytes::new())));
    assert_eq!(decode::<RawProps>("{{{"), Ok(RawProps(Bytes::from("{{{"))));
}
