//! Generated inputs for everything that reads bytes from outside.
//!
//! A target is a plain function from bytes to a short output; it asserts what must hold for every
//! input. Targets are in a file `fuzz.rs` beside what they read, because most of that is private.
//! Their inputs are in the crate's folder `fuzz/<target>/`, one a file: what the product itself
//! writes, and whatever once broke something.
//!
//! Why not libFuzzer: it requires a nightly compiler or a C++ one, `unsafe` entry points, and
//! public decoders, and most decoders here are private to a binary. What is lost is its knowledge
//! of branches. What replaces it: changes that know JSON, numbers and names ([`Mutator`]), and the
//! target's output: an input with a new output is kept and changed further ([`FuzzRun`]). So a
//! plain clone on the stable toolchain runs all of it, in every check.
//!
//! Everything follows from a seed. A failure reports the seed, and the input itself, made as small
//! as it can be.

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
