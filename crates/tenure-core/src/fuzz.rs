//! Fuzz targets: all code that reads bytes of other programs, and what must hold for any bytes.
//!
//! The crate `tenure-fuzz` drives them; docs/testing.md shows how to run them.

mod chunks;
mod commands;
mod keys;
mod records;
mod times;

/// One test for each target, named after it, with its inputs in `fuzz/<target>/`.
macro_rules! targets {
    ($($test:ident: $name:literal => $target:expr;)+) => {$(
        #[test]
        fn $test() {
            tenure_fuzz::fuzz(env!("CARGO_MANIFEST_DIR"), $name, $target);
        }
    )+};
}

targets! {
    node_records_soak: "node_record" => records::node;
    instance_records_soak: "instance_record" => records::instance;
    holder_records_soak: "holder_record" => records::holder;
    candidate_records_soak: "candidate_record" => records::candidate;
    run_records_soak: "run_record" => records::run;
    task_records_soak: "task_record" => records::task;
    owner_records_soak: "owner_record" => records::owner;
    state_records_soak: "state_record" => records::state;
    result_records_soak: "result_record" => records::result;
    commands_soak: "command" => commands::command;
    keys_soak: "key" => keys::key;
    names_soak: "name" => keys::name;
    chunks_soak: "chunk" => chunks::chunk;
    times_soak: "time" => times::time;
}
