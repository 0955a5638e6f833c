//! Inputs that nobody would think of, for everything that reads bytes which others wrote.
//!
//! A target is a plain function from bytes to a word for what it saw; it asserts what must hold for every input. Targets stand in a file
//! `fuzz.rs` beside what they read, because most of that is private, and their inputs in the crate's folder `fuzz/<target>/`, one a
//! file: what the product itself writes, and whatever once broke something.
//!
//! Why not libFuzzer: it wants a nightly compiler or a C++ one, `unsafe` entry points, and public decoders, and most of ours are private
//! to a binary. What is lost is its knowledge of branches. What takes its place: changes that know JSON, numbers and names ([`Mutator`]),
//! and the word that a target answers with: an input that makes it say something new is kept and changed further ([`FuzzRun`]). So a
//! plain clone on the stable toolchain runs all of it, in every check.
//!
//! Everything follows from a seed. A failure says the seed, and the input itself, made as small as it can be.

mod bounds;
mod corpus;
mod dictionary;
mod drive;
mod mutate;
mod report;
mod shrink;
mod trial;

pub use bounds::Bounds;
pub use corpus::Corpus;
pub use dictionary::HOSTILE_NAMES;
pub use drive::{Finding, FuzzRun, FuzzTarget, fuzz};
pub use mutate::Mutator;
pub use report::FuzzReport;
