//! `cargo xtask fix`: repairs what can be repaired automatically; `check` reports the rest.

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
    // After clippy, because its suggestions are not formatted.
    run(&mut cargo(&["fmt", "--all"]))?;
    generated::write()?;
    tidy::lower()
}
