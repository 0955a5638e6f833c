//! `tenure-nemesis`: the rig, and with a role as its first argument one of the processes that the
//! rig starts.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command speaks to its user")]

use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use tenure_nemesis::options::{ClientOptions, EngineKind, LockUnderTest, NetworkKind, Options, value};
use tenure_nemesis::{client, probe, rig};

/// Passed to the same program after it moved into a network of its own.
const OWN_NETWORK: &str = "TENURE_NEMESIS_OWN_NETWORK";

const USAGE: &str = "\
usage: tenure-nemesis [--minutes M | --seconds S] [--store etcd|file] [--against tenure|plain|etcdctl|RULE]
                      [--seed N] [--clients N] [--auth] [--loopback] [--show] [--faults LIST]
                      [--folder DIR] [--record DIR]

  --against  the lock: Tenure's with all other work (the default), a plain lock that must be found broken,
             `etcdctl lock`, or Tenure's with one RULE of tenure-core's sabotage.rs broken
  --auth     etcd requires a password, and forgets tokens after two seconds
  --show     injects each fault of links and clocks once, prints what came through, and ends
  --loopback no network namespaces, although the machine allows them
  --faults   only these, by the names in the report, with commas between them
  --folder   where histories, logs and the report go; default target/nemesis/<run>
  --record   writes the figures as lines `key = value` to nemesis-<run>.txt in this folder too";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let done = match words.first().map(String::as_str) {
        Some("client") => ClientOptions::read(&words).and_then(|options| client::run(&options)),
        Some("inside") => inside(&words),
        Some("echo") => echo(&words),
        Some("probe") => address(&words).and_then(probe::send).map(|line| println!("{line}")),
        Some("wall") => {
            println!("{}", probe::wall());
            Ok(())
        }
        _ => match read(&words) {
            Ok((options, record)) => {
                move_into_own_network(&options, &words);
                if words.iter().any(|word| word == "--show") {
                    return show(&options);
                }
                return report(&options, record.as_deref());
            }
            Err(why) => {
                eprintln!("{why}\n{USAGE}");
                return ExitCode::from(2);
            }
        },
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("tenure-nemesis: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Becomes the same program in a network namespace of its own, where the machine allows it. Where
/// it does not, the report contains the reason.
fn move_into_own_network(options: &Options, words: &[String]) {
    let is_wanted = options.kind == EngineKind::Etcd && !words.iter().any(|word| word == "--loopback");
    if !is_wanted || options.network == NetworkKind::Own {
        return;
    }
    if let Ok(way) = rig::way_in() {
        let error = std::process::Command::new(way[0])
            .args(&way[1..])
            .arg(&options.program)
            .args(words)
            .env(OWN_NETWORK, "1")
            .exec();
        eprintln!("tenure-nemesis: no network of its own: {error}");
    }
}

fn show(options: &Options) -> ExitCode {
    if options.network == NetworkKind::Loopback {
        let why = rig::way_in().err().unwrap_or_else(|| "only etcd has one".to_owned());
        println!("LEFT OUT: all of it, without a network of its own: {why}");
        return ExitCode::SUCCESS;
    }
    match rig::check_faults(options) {
        Ok(lines) => {
            lines.iter().for_each(|line| println!("{line}"));
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("tenure-nemesis: {why}");
            ExitCode::FAILURE
        }
    }
}

fn echo(words: &[String]) -> Result<(), String> {
    let heard = words.get(2).ok_or("where to write what is heard?")?;
    probe::echo(address(words)?, Path::new(heard))
}

fn address(words: &[String]) -> Result<SocketAddr, String> {
    let word = words.get(1).ok_or("which address?")?;
    word.parse().map_err(|_| format!("{word:?} is no address"))
}

fn inside(words: &[String]) -> Result<(), String> {
    let history: PathBuf = value(words, "--history")?;
    client::inside(value(words, "--ledger")?, &history, value(words, "--seed")?)
}

fn read(words: &[String]) -> Result<(Options, Option<PathBuf>), String> {
    const KNOWN: [&str; 9] = [
        "--minutes",
        "--seconds",
        "--store",
        "--against",
        "--seed",
        "--clients",
        "--faults",
        "--folder",
        "--record",
    ];
    let mut rest = words.iter();
    while let Some(word) = rest.next() {
        if KNOWN.contains(&word.as_str()) {
            rest.next();
        } else if !["--auth", "--loopback", "--show"].contains(&word.as_str()) {
            return Err(format!("{word:?} is not known"));
        }
    }
    let has = |name: &str| words.iter().any(|word| word == name);
    let kind =
        match if has("--store") { value::<String>(words, "--store")? } else { "etcd".to_owned() }.as_str() {
            "etcd" => EngineKind::Etcd,
            "file" => EngineKind::File,
            other => return Err(format!("--store cannot be {other:?}")),
        };
    let against = if has("--against") { value(words, "--against")? } else { LockUnderTest::Tenure };
    if against == LockUnderTest::Etcdctl && kind == EngineKind::File {
        return Err("etcdctl speaks to etcd alone".to_owned());
    }
    let seconds: f64 = match (has("--minutes"), has("--seconds")) {
        (true, _) => value::<f64>(words, "--minutes")? * 60.0,
        (false, true) => value(words, "--seconds")?,
        (false, false) => 60.0,
    };
    let run = format!("{kind:?}-{}", against.name()).to_lowercase();
    let options = Options {
        faults_for: Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())?,
        kind,
        network: match std::env::var_os(OWN_NETWORK) {
            Some(_) if kind == EngineKind::Etcd => NetworkKind::Own,
            _ => NetworkKind::Loopback,
        },
        against,
        seed: if has("--seed") { value(words, "--seed")? } else { 1 },
        clients: if has("--clients") { value(words, "--clients")? } else { 3 },
        auth: has("--auth"),
        faults: if has("--faults") {
            let names: String = value(words, "--faults")?;
            Some(names.split(',').map(str::parse).collect::<Result<_, _>>()?)
        } else {
            None
        },
        folder: if has("--folder") {
            value(words, "--folder")?
        } else {
            Path::new("target/nemesis").join(run)
        },
        program: std::env::current_exe().map_err(|error| error.to_string())?,
    };
    let record = if has("--record") { Some(value(words, "--record")?) } else { None };
    Ok((options, record))
}

fn report(options: &Options, record: Option<&Path>) -> ExitCode {
    // Histories of an earlier run would be read as if they belonged to this one.
    if options.folder.exists()
        && let Err(error) = std::fs::remove_dir_all(&options.folder)
    {
        eprintln!("{} cannot be emptied: {error}", options.folder.display());
        return ExitCode::FAILURE;
    }
    let report = match rig::run(options) {
        Ok(report) => report,
        Err(why) => {
            eprintln!("tenure-nemesis: {why}");
            return ExitCode::FAILURE;
        }
    };
    print!("{report}");
    let recorded = record.map(|folder| folder.join(format!("nemesis-{}.txt", report.run()).to_lowercase()));
    for place in [Some(options.folder.join("report.txt")), recorded].into_iter().flatten() {
        if let Err(error) = std::fs::write(&place, report.record()) {
            eprintln!("{} cannot be written: {error}", place.display());
            return ExitCode::FAILURE;
        }
    }
    if report.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
