//! Prints `docs/key-layout.md`: every key of the layout.

use std::io::Write;

use tenure_core::id::Namespace;
use tenure_core::layout::{Key, Layout};

const HEAD: &str = "\
# The keys of the store

Written by `cargo xtask fix` from `core::layout`; change it there.

The keys are flat, the same on every engine, and can be read with etcd's own tools.
A namespace may have several segments.
A name of a node, task, lock or election is one segment: `/` in it is written `%2F` and `%` is written `%25`.
Every record is JSON with a field `\"v\"`; one without it is read as version 1, and unknown fields are kept.
A key that matches no line of this table is foreign: Tenure neither reads nor changes it.

| key | lifetime | value | meaning |
|---|---|---|---|
";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let layout = Layout::new(&Namespace::parse("<namespace>")?);
    let mut page = HEAD.to_owned();
    for key in Key::one_of_each() {
        let mut text = String::from_utf8(layout.encode(&key).to_vec())?;
        for (piece, stands_for) in Key::placeholders() {
            text = text.replace(&piece, stands_for);
        }
        page += &format!("| `{text}` | {} | {} | {} |\n", key.life(), key.value(), key.meaning());
    }
    Ok(std::io::stdout().write_all(page.as_bytes())?)
}
