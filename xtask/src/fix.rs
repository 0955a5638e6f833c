//! `cargo xtask fix`: what a machine can put right, it does; the rest `check` will tell.

use crate::generated;
use crate::shell::{Failure, cargo, run};

/// Applies clippy's suggestions, formats, and writes the generated documents.
pub(crate) fn fix() -> Result<(), Failure> {
    let scope = [
        "clippy",
        "--fix",
        "--allow-dirty",
        "--allow-staged",
        "--workspace",
        "--all-targets",
        "--all-features",
    ];
    run(&mut cargo(&scope))?;
    // After clippy, whose suggestions are not formatted.
    run(&mut cargo(&["fmt", "--all"]))?;
    generated::write()
}
