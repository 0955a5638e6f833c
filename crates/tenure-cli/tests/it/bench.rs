//! The benchmark runs and speaks its format; its figures are no test's business.

use serde_json::Value;

use crate::machine::Machine;

#[tokio::test]
async fn every_line_is_a_row_or_a_verdict() {
    let machine = Machine::new().with("CI", "true");
    let ran = machine.run(&["bench", "store", "--n", "20", "--seconds-max", "1"]).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stderr.contains("etcd was left out"), "{ran:?}");
    let mut verdicts = 0;
    for line in ran.stdout.lines() {
        let object: Value = serde_json::from_str(line).unwrap();
        assert!(object["workload"].is_string() && object["engine"].is_string(), "{line}");
        if object.get("goal").is_some() {
            assert!(object["met"].is_boolean() && object["reference"].is_string(), "{line}");
            verdicts += 1;
            continue;
        }
        for field in ["n", "unit", "p50", "p99", "total_s", "ops_s"] {
            assert!(object.get(field).is_some(), "{field} is missing in {line}");
        }
    }
    assert!(verdicts >= 10, "{}", ran.stdout);
}

#[tokio::test]
async fn an_etcd_that_is_asked_for_by_name_must_be_configured() {
    let ran = Machine::new().run(&["bench", "store", "--engines", "etcd"]).await;
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.stderr.contains("TENURE_ENDPOINTS"), "{ran:?}");
}
