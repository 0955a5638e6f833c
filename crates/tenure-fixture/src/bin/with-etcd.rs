//! Runs a command with a real etcd beside it: `with-etcd [--members N] [--default-timers] [--durable] -- CMD ARGS…`
//!
//! The command finds it in `TENURE_ENDPOINTS`; `TENURE_ETCD_PIDS` and `TENURE_ETCD_FOLDER` contain
//! what may be killed and read. etcd is gone when the command ends, and its exit code is passed
//! through.
#![allow(clippy::print_stderr, reason = "a command speaks to its user")]

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode, ExitStatus};

use tenure_fixture::{Builder, Etcd, Timers};

const HELP: &str = "\
usage: with-etcd [--members N] [--default-timers] [--durable] -- CMD ARGS...

Starts a real etcd, runs CMD with TENURE_ENDPOINTS=127.0.0.1:PORT,... and stops etcd.

  --members N         how many members (1)
  --default-timers    etcd's own timers instead of fast ones: minimum lease TTL 2 s
  --durable           data on disk with real fsyncs instead of in memory
";

fn main() -> ExitCode {
    let request = match CommandLine::parse(std::env::args_os().skip(1)) {
        Ok(request) => request,
        Err(trouble) => {
            eprint!("with-etcd: {trouble}\n\n{HELP}");
            return ExitCode::from(2);
        }
    };
    let etcd = request.builder.start();
    let pids: Vec<String> = etcd.members().iter().map(|member| member.pid().to_string()).collect();
    let status = Command::new(&request.command[0])
        .args(&request.command[1..])
        .env("TENURE_ENDPOINTS", etcd.endpoints())
        .env("TENURE_ETCD_PIDS", pids.join(","))
        .env("TENURE_ETCD_FOLDER", etcd.folder())
        .env_remove("TENURE_STORE")
        .status();
    drop(etcd);
    match status {
        Ok(status) => code_of(status),
        Err(error) => {
            eprintln!("with-etcd: {} cannot be run: {error}", request.command[0].display());
            ExitCode::from(127)
        }
    }
}

/// The parsed command line.
struct CommandLine {
    builder: Builder,
    /// **Invariant**: not empty.
    command: Vec<OsString>,
}

impl CommandLine {
    fn parse(mut args: impl Iterator<Item = OsString>) -> Result<CommandLine, String> {
        let mut builder = Etcd::builder();
        loop {
            let arg = args.next().ok_or("there is no command after `--`")?;
            match arg.to_str() {
                Some("--") => break,
                Some("--members") => builder = builder.members(members(args.next())?),
                Some("--default-timers") => builder = builder.timers(Timers::Default),
                Some("--durable") => builder = builder.durable(),
                _ => return Err(format!("unknown argument {}", arg.display())),
            }
        }
        let command: Vec<OsString> = args.collect();
        if command.is_empty() {
            return Err("there is no command after `--`".to_owned());
        }
        Ok(CommandLine { builder, command })
    }
}

fn members(arg: Option<OsString>) -> Result<usize, String> {
    let arg = arg.ok_or("`--members` needs a number")?;
    let members = arg.to_str().and_then(|text| text.parse().ok()).filter(|members| (1..=7).contains(members));
    members.ok_or_else(|| format!("`--members` needs a number from 1 to 7, not {}", arg.display()))
}

/// The command's code, and 128 + n when signal n ended it, as in shells.
fn code_of(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}
