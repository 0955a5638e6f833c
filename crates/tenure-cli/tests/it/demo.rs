//! The demo is the first thing a stranger runs: it needs nothing, leaves nothing, and holds.

use serde_json::json;

use crate::machine::Machine;

#[tokio::test]
async fn every_promise_holds_and_nothing_is_left() {
    // Also where no store is configured and nobody looks at stderr.
    let machine = Machine::new().with("CI", "true");
    let temporary = machine.path("tmp");
    std::fs::create_dir(&temporary).unwrap();
    let machine = machine.with("TMPDIR", temporary.clone());
    let told = machine.json(&["demo"]).await;
    assert_eq!((&told["schema"], &told["ok"]), (&json!("tenure.demo/v1"), &json!(true)), "{told}");
    assert_eq!(told["steps"].as_array().unwrap().len(), 12);
    assert_eq!(std::fs::read_dir(temporary).unwrap().count(), 0, "the demo left something behind");
    assert!(!std::path::Path::new(&machine.path(".local")).exists());
}
