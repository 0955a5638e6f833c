//! `cargo xtask release-check`: what must be true before the crates are published. It is slow, so it is no part of `check`.
//!
//! cargo packages the committed tree only, so this command fails on a tree with changes.

use std::process::Command;

use crate::shell::{XtaskError, cargo, output, root, run, succeeds, target};
use crate::tidy;

/// Files that every package needs: the licences and the README.
const NEEDED: [&str; 4] = ["Cargo.toml", "LICENSE-APACHE", "LICENSE-MIT", "README.md"];

/// Everything else that a package may have: sources and examples, and what cargo adds. Tests and fuzz corpora are larger than the sources.
const ALLOWED: [&str; 5] = ["src/", "examples/", "Cargo.lock", "Cargo.toml.orig", ".cargo_vcs_info.json"];

/// The largest release binary in bytes. It was 129 MB with debug information, which a download does not need.
const BINARY_BYTES_MAX: u64 = 20_000_000;

/// Runs every step and stops at the first that fails.
pub(crate) fn check() -> Result<(), XtaskError> {
    println!("\n── contents of the packages");
    for name in tidy::PUBLISHED {
        let listed = output(&mut cargo(&["package", "--list", "--locked", "--package", name]))?;
        contents(name, &listed)?;
    }
    println!("\n── dry run of publishing, in the order of dependencies");
    let mut publish = cargo(&["publish", "--dry-run", "--locked"]);
    run(publish.args(tidy::PUBLISHED.iter().flat_map(|name| ["--package", name])))?;
    println!("\n── size of the release binary");
    run(&mut cargo(&["build", "--release", "--locked", "--package", "tenure-cli"]))?;
    let binary = target().join("release/tenure");
    let length = std::fs::metadata(&binary)
        .map_err(|error| XtaskError(format!("{} cannot be read: {error}", binary.display())))?
        .len();
    size(length)?;
    println!("\n── oldest supported Rust");
    oldest_rust(&tidy::rust_version())
}

/// Checks the list of a package's files.
fn contents(name: &str, listed: &str) -> Result<(), XtaskError> {
    let files: Vec<&str> = listed.lines().collect();
    if let Some(missing) = NEEDED.iter().find(|needed| !files.contains(*needed)) {
        return Err(XtaskError(format!("the package {name} has no {missing}")));
    }
    let is_known =
        |file: &str| NEEDED.contains(&file) || ALLOWED.iter().any(|allowed| file.starts_with(allowed));
    if let Some(other) = files.iter().find(|file| !is_known(file)) {
        return Err(XtaskError(format!(
            "the package {name} contains {other}: see `include` in its manifest"
        )));
    }
    println!("   {name}: {} files", files.len());
    Ok(())
}

/// Checks the length of the release binary.
fn size(bytes: u64) -> Result<(), XtaskError> {
    if bytes > BINARY_BYTES_MAX {
        return Err(XtaskError(format!(
            "the binary has {bytes} bytes, at most {BINARY_BYTES_MAX} are allowed"
        )));
    }
    println!("   tenure: {bytes} bytes");
    Ok(())
}

/// Builds the published crates with the oldest supported Rust, if it is installed.
fn oldest_rust(version: &str) -> Result<(), XtaskError> {
    // Without this variable newer versions of rustup would install the toolchain.
    let rustup = || {
        let mut command = Command::new("rustup");
        command.env("RUSTUP_AUTO_INSTALL", "0").args(["run", version, "cargo"]);
        command
    };
    if !succeeds(rustup().arg("--version")) {
        println!(
            "   LEFT OUT: Rust {version} is not installed (`rustup toolchain install {version}`), so the crates were not built with it; \
             of `rust-version` only clippy's incompatible_msrv was applied, by `cargo xtask check`"
        );
        return Ok(());
    }
    let mut build = rustup();
    // A folder of its own: artefacts of two compilers would replace each other.
    build.args(["check", "--locked", "--all-features", "--target-dir"]).arg(target().join("oldest-rust"));
    run(build.current_dir(root()).args(tidy::PUBLISHED.iter().flat_map(|name| ["--package", name])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn package_needs_licences_and_readme() {
        let whole = "Cargo.lock\nCargo.toml\nCargo.toml.orig\nLICENSE-APACHE\nLICENSE-MIT\nREADME.md\nexamples/a.rs\nsrc/lib.rs\n";
        assert!(contents("a", whole).is_ok());
        for needed in NEEDED {
            let without: Vec<&str> = whole.lines().filter(|line| *line != needed).collect();
            let failure = contents("a", &without.join("\n")).unwrap_err();
            assert!(failure.to_string().contains(needed), "{failure}");
        }
    }

    #[test]
    fn package_with_tests_or_corpora_is_refused() {
        let whole = "Cargo.toml\nLICENSE-APACHE\nLICENSE-MIT\nREADME.md\nsrc/lib.rs\n";
        for other in ["tests/it/main.rs", "fuzz/url/a", "proptest-regressions/a.txt", "clippy.toml"] {
            let failure = contents("a", &format!("{whole}{other}\n")).unwrap_err();
            assert!(failure.to_string().contains(other), "{failure}");
        }
    }

    #[test]
    fn binary_larger_than_the_limit_is_refused() {
        assert!(size(BINARY_BYTES_MAX).is_ok());
        assert!(size(BINARY_BYTES_MAX + 1).is_err());
    }
}
