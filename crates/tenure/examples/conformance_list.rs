//! Prints the list of conformance cases as `docs/conformance.md` holds it.

use std::io::Write;

fn main() -> std::io::Result<()> {
    std::io::stdout().write_all(tenure::conformance::markdown().as_bytes())
}
