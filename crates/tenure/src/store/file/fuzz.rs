//! Fuzz targets: what is read from a store file that others wrote, or that a disk has spoilt.

mod log;
mod wal;

#[test]
fn file_logs_soak() {
    tenure_fuzz::fuzz(env!("CARGO_MANIFEST_DIR"), "file_log", log::log);
}

#[test]
fn file_wals_soak() {
    tenure_fuzz::fuzz(env!("CARGO_MANIFEST_DIR"), "file_wal", wal::wal);
}
