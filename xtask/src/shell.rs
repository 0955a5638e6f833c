//! Running other programs: the folder of the workspace, cargo, and errors of a failed program.

use std::fmt;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Why a command of xtask failed, as a message for its user.
#[derive(Debug)]
pub(crate) struct XtaskError(pub(crate) String);

impl fmt::Display for XtaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The workspace's folder, from a variable that cargo sets at run time, so a moved checkout needs no rebuild.
pub(crate) fn root() -> PathBuf {
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let manifest = manifest.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")));
    manifest.parent().expect("xtask is a folder of the workspace").to_owned()
}

/// Where cargo builds.
pub(crate) fn target() -> PathBuf {
    // A relative folder is relative to where cargo ran, which is the workspace's folder.
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |dir| root().join(dir))
}

/// The cargo that runs xtask, in the workspace's folder.
///
/// The variables with which `cargo run` describes the package xtask are removed: the build script of `ring` depends on them,
/// and everything above it would be built again at each change between `cargo xtask` and `cargo`.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(root());
    let inherited = std::env::vars_os().map(|(name, _)| name).filter(|name| {
        let name = name.to_string_lossy();
        name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
    });
    inherited.for_each(|name| {
        command.env_remove(name);
    });
    command
}

/// Builds programs of the workspace exactly as the build of the tests does, so that a check compiles nothing for them alone.
///
/// `programs` must contain an example: only then cargo enables the features that dev-dependencies require, as for tests.
pub(crate) fn build_as_for_tests(programs: &[&str]) -> Result<(), XtaskError> {
    run(cargo(&["build", "--workspace", "--all-features", "--locked"]).args(programs))
}

/// Gives a build a folder of its own for finished programs, below the target folder.
///
/// Intermediate files stay in the common folder, so dependencies are shared. Cargo before 1.91 ignores that and builds them again.
pub(crate) fn apart(command: &mut Command, folder: &str) {
    command.env("CARGO_TARGET_DIR", target().join(folder));
    if std::env::var_os("CARGO_BUILD_BUILD_DIR").is_none() {
        command.env("CARGO_BUILD_BUILD_DIR", target());
    }
}

/// Runs a program; its output goes to the user.
pub(crate) fn run(command: &mut Command) -> Result<(), XtaskError> {
    let shown = show(command);
    println!("   $ {shown}");
    let status = command.status().map_err(|error| XtaskError(format!("`{shown}` cannot be run: {error}")))?;
    if status.success() { Ok(()) } else { Err(XtaskError(format!("`{shown}` failed: {status}"))) }
}

/// Runs a program and returns its stdout; its stderr goes to the user.
pub(crate) fn output(command: &mut Command) -> Result<String, XtaskError> {
    let shown = show(command);
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| XtaskError(format!("`{shown}` cannot be run: {error}")))?;
    if !output.status.success() {
        return Err(XtaskError(format!("`{shown}` failed: {}", output.status)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Whether a program exists and succeeds. Its output is discarded.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

/// Runs a program, shows its output immediately, and returns it as well.
///
/// The flag is whether the program succeeded.
pub(crate) fn tee(command: &mut Command) -> Result<(bool, String), XtaskError> {
    let shown = show(command);
    println!("   $ {shown}");
    let cannot = |error| XtaskError(format!("`{shown}` cannot be run: {error}"));
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(cannot)?;
    let stdout = child.stdout.take().expect("stdout was requested as a pipe");
    let stderr = child.stderr.take().expect("stderr was requested as a pipe");
    let other = std::thread::spawn(move || relay(stderr, &mut std::io::stderr()));
    let mut text = relay(stdout, &mut std::io::stdout());
    text.push_str(&other.join().expect("relaying does not panic"));
    let status = child.wait().map_err(cannot)?;
    Ok((status.success(), text))
}

fn relay(from: impl Read, to: &mut impl Write) -> String {
    let mut text = String::new();
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    // A pipe that breaks has ended; a terminal that went away must not end the tests.
    while from.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
        let _ = to.write_all(&line);
        let _ = to.flush();
        text.push_str(&String::from_utf8_lossy(&line));
        line.clear();
    }
    text
}

fn show(command: &Command) -> String {
    let program = command.get_program().to_string_lossy();
    let program = program.rsplit('/').next().unwrap_or_default().to_owned();
    let args = command.get_args().map(|arg| {
        let arg = arg.to_string_lossy().into_owned();
        if arg.contains(' ') { format!("'{arg}'") } else { arg }
    });
    std::iter::once(program).chain(args).collect::<Vec<_>>().join(" ")
}
