//! `cargo xtask fix`: what a machine can put right, it does; the rest `check` will tell.

use crate::shell::{XtaskError, cargo, run};
use crate::{generated, tidy};

/// Applies clippy's suggestions, formats, writes the generated documents, and lowers the numbers of the ratchets.
pub(crate) fn fix() -> Result<(), XtaskError> {
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
    generated::write()?;
    tidy::lower()
}
