//! `tenure version`.

use serde::Serialize;

use crate::failure::Failure;
use crate::output::Output;

/// Prints the version, and with `--json` the engines and the platform.
pub(crate) fn run(output: &Output) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct VersionReport {
        schema: &'static str,
        version: &'static str,
        engines: [&'static str; 3],
        os: &'static str,
        arch: &'static str,
    }
    let version = env!("CARGO_PKG_VERSION");
    if output.is_json {
        return output.object(&VersionReport {
            schema: "tenure.version/v1",
            version,
            engines: ["memory", "file", "etcd"],
            os: std::env::consts::OS,
            arch: std::env::consts::ARCH,
        });
    }
    output.text(&format!("tenure {version}\n"))
}
