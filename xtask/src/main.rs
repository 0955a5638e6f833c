//! The project's own commands: `cargo xtask check` and its siblings.
//!
//! Written with std alone and without a dependency on another crate of the workspace, so that it builds in a second and works while
//! everything else is broken.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command prints to its user")]

mod bench;
mod check;
mod etcd;
mod fix;
mod generated;
mod modules;
mod mutants;
mod nemesis;
mod redis;
mod release;
mod runner;
mod sabotage;
mod shell;
mod sim;
mod soak;
mod tidy;

use std::process::ExitCode;

use check::Redis;

const HELP: &str = "\
usage: cargo xtask COMMAND

  check          everything a change must pass; never writes to the tree
                 --without redis leaves out the tests that need a redis-server
  tidy           the first step of check: the rules of the tree, in a second, and what the ratchets still count
  tidy PATH      every breach of a ratchet in the files below PATH, and the density of comments
  tidy --lower   write the numbers of xtask/tidy_baseline.txt as they are now
  fix            format, apply clippy's suggestions, regenerate documents
  broken-rules   one step of check: each rule is broken on purpose, and a checker must report it
  etcd-matrix    what depends on etcd's version, on etcd 3.4, 3.5, 3.6 and 3.7
  least-privilege  the tests of the CLI on etcd with authentication and one user with one grant
  sim --seeds N  runs N simulated days full of faults, and lists the seeds that violate an invariant
  sim SEED       prints the history of one seed, the same to the byte every time
  nemesis [--minutes M] [--store etcd|file] [--against plain|etcdctl|RULE] [--record]
                 real processes on a real store while faults hit them; on both stores unless one is named.
                 --record keeps the figures for the table in docs/guarantees.md
  mutants [--only ID]... [--minutes N]
                 applies each small wrong change of xtask/mutants.toml to a copy of the tree; its tests must fail there
  release-check  what must be true before publishing: packages, dry run, size of the binary, oldest Rust;
                 needs a committed tree and crates.io
  soak [ARGS]    the long versions of the tests with `soak` in their name
  bench [WHICH] [ARGS]  `tenure-bench store`, `session`, `lock`, `election` or `tasks` beside a real etcd, built for release
";

fn main() -> ExitCode {
    if let Some(code) = sabotage::compile() {
        return code;
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let outcome = match args.as_slice() {
        ["check"] => check::check(Redis::Needed),
        ["check", "--without", "redis"] => check::check(Redis::LeftOut),
        ["tidy"] => tidy::check(),
        ["tidy", "--lower"] => tidy::lower(),
        ["tidy", path] => tidy::list(path),
        ["fix"] => fix::fix(),
        ["broken-rules"] => sabotage::check().and_then(|run| run.result()),
        ["etcd-matrix"] => etcd::matrix(),
        ["least-privilege"] => etcd::least_privilege(),
        ["sim", rest @ ..] => sim::sim(rest),
        ["nemesis", rest @ ..] => nemesis::nemesis(rest),
        ["mutants", rest @ ..] => mutants::mutants(rest),
        ["soak", rest @ ..] => soak::soak(rest),
        ["release-check"] => release::check(),
        ["bench", rest @ ..] => bench::bench(rest),
        ["help" | "--help" | "-h"] => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        _ => {
            eprint!("{HELP}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("\nxtask: {failure}");
            ExitCode::FAILURE
        }
    }
}
