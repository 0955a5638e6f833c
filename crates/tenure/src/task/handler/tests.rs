//! How results of handlers are reported, and how props are decoded.

use serde::Deserialize;

use super::*;
use crate::hold::Lost;
use crate::task::StopReason;

const STOPPED: Stopped = Stopped { reason: StopReason::Shutdown };

fn lost() -> Lost {
    Lost { subject: "task 'a'".into(), reason: LossReason::Lapsed }
}

type AnyError = Box<dyn StdError + Send + Sync>;

/// Hides the type of an error, as an error of the crate anyhow does when it is boxed.
struct Hidden(AnyError);

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl StdError for Hidden {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source()
    }
}

/// An error below a text.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Context(&'static str, #[source] AnyError);

fn failed<E: Into<TaskError>>(error: E) -> HandlerEnd {
    reported(Err(error.into()))
}

#[test]
fn stop_and_loss_are_never_failures() {
    assert_eq!(failed(STOPPED), HandlerEnd::Release);
    assert_eq!(failed(lost()), HandlerEnd::Release);
    assert_eq!(failed(Hidden(STOPPED.into())), HandlerEnd::Release);
    assert_eq!(failed(Hidden(lost().into())), HandlerEnd::Release);
    let deep = Context("import", Context("row 7", lost().into()).into());
    assert_eq!(failed(deep), HandlerEnd::Release);
    assert_eq!(failed(crate::hold::CommitError::Lost(lost())), HandlerEnd::Release);
    assert_eq!(failed(crate::task::CheckpointError::Lost(lost())), HandlerEnd::Release);
    assert_eq!(failed(std::io::Error::other(STOPPED)), HandlerEnd::Release);
}

#[test]
fn error_is_failure_with_its_causes() {
    assert_eq!(failed("no such file"), HandlerEnd::Fault("no such file".to_owned()));
    assert_eq!(failed(String::from("text")), HandlerEnd::Fault("text".to_owned()));
    let error = Context("import", Context("a.csv", "no such file".into()).into());
    assert_eq!(failed(error), HandlerEnd::Fault("import: a.csv: no such file".to_owned()));
}

#[test]
fn handler_chooses_what_follows() {
    let reason = "invalid address".to_owned();
    let decision = RetryDecision::Fail { reason: reason.clone() };
    assert_eq!(
        failed(TaskError::permanent(reason.clone())),
        HandlerEnd::FaultDecided { message: reason, decision }
    );
    let before = wall_time();
    let later = failed(TaskError::retry_after("busy", Duration::from_secs(60)));
    let HandlerEnd::FaultDecided { decision: RetryDecision::Sleep { until }, .. } = later else {
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
fn absent_props_are_null() {
    assert_eq!(<()>::from_props(None), Ok(()));
    assert_eq!(Option::<u32>::from_props(None), Ok(None));
    assert!(u32::from_props(None).is_err());
    assert_eq!(RawProps::from_props(None), Ok(RawProps(Bytes::new())));
    assert_eq!(decode::<RawProps>("{{{"), Ok(RawProps(Bytes::from("{{{"))));
}
