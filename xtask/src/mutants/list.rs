//! The list of mutants: the part of TOML that it needs, read with std alone.
//!
//! `[[mutant]]` begins an entry; `key = "text"` with the escapes of TOML's basic strings, or `key = '''text'''` over several lines, without
//! escapes; `#` begins a comment line.

use std::collections::BTreeMap;

/// One small wrong change.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Mutant {
    pub(crate) id: String,
    /// The file, below the workspace's folder.
    pub(crate) file: String,
    /// The text to replace, which must occur exactly once.
    pub(crate) find: String,
    /// The text that replaces it.
    pub(crate) replace: String,
    /// Which tests must fail, as a filter of nextest.
    pub(crate) tests: String,
    /// What the change means.
    pub(crate) about: String,
    /// Why no test can detect it.
    pub(crate) equivalent: Option<String>,
}

impl Mutant {
    /// The file's text with the change.
    pub(crate) fn apply(&self, text: &str) -> Result<String, String> {
        match text.matches(&self.find).count() {
            1 => Ok(text.replacen(&self.find, &self.replace, 1)),
            found => Err(format!("`find` occurs {found} times, it has to occur once")),
        }
    }
}

/// Reads the list.
pub(crate) fn parse(text: &str) -> Result<Vec<Mutant>, String> {
    let mut mutants: Vec<Mutant> = Vec::new();
    let mut fields: Option<BTreeMap<String, String>> = None;
    let mut lines = text.lines().enumerate();
    while let Some((index, line)) = lines.next() {
        let at = |why: &str| format!("line {}: {why}", index + 1);
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if line == "[[mutant]]" {
            mutants.extend(fields.replace(BTreeMap::new()).map(mutant).transpose()?);
            continue;
        }
        let (key, value) = line.split_once('=').ok_or_else(|| at("neither [[mutant]] nor key = value"))?;
        let (key, value) = (key.trim(), value.trim());
        let value = if let Some(rest) = value.strip_prefix("'''") {
            let mut whole = rest.to_owned();
            while !whole.contains("'''") {
                let (_, next) = lines.next().ok_or_else(|| at("the text has no end"))?;
                // TOML leaves out a line break directly after the quotes.
                if !whole.is_empty() || !rest.is_empty() {
                    whole.push('\n');
                }
                whole.push_str(next);
                if whole.is_empty() {
                    whole.push('\n');
                }
            }
            let (inside, after) = whole.split_once("'''").unwrap_or_default();
            if !after.trim().is_empty() {
                return Err(at("text after the closing quotes"));
            }
            inside.to_owned()
        } else {
            basic(value).map_err(|why| at(&why))?
        };
        let fields = fields.as_mut().ok_or_else(|| at("a key before the first [[mutant]]"))?;
        if fields.insert(key.to_owned(), value).is_some() {
            return Err(at(&format!("{key} is given twice")));
        }
    }
    mutants.extend(fields.map(mutant).transpose()?);
    for (index, one) in mutants.iter().enumerate() {
        if mutants.iter().take(index).any(|other| other.id == one.id) {
            return Err(format!("two mutants are called '{}'", one.id));
        }
    }
    Ok(mutants)
}

/// A text between double quotes with escapes, or between single quotes without.
fn basic(value: &str) -> Result<String, String> {
    if let Some(inside) = value.strip_prefix('\'').and_then(|rest| rest.strip_suffix('\'')) {
        return Ok(inside.to_owned());
    }
    let inside = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    let inside = inside.ok_or_else(|| format!("`{value}` is not a text between quotes"))?;
    let mut text = String::new();
    let mut chars = inside.chars();
    while let Some(char) = chars.next() {
        match char {
            '\\' => text.push(match chars.next() {
                Some('n') => '\n',
                Some('t') => '\t',
                Some('"') => '"',
                Some('\\') => '\\',
                other => return Err(format!("the escape {other:?} is not known")),
            }),
            '"' => return Err("a quote inside a text needs a backslash".to_owned()),
            char => text.push(char),
        }
    }
    Ok(text)
}

fn mutant(mut fields: BTreeMap<String, String>) -> Result<Mutant, String> {
    let id = fields.remove("id").ok_or("a mutant without an id")?;
    let mut take = |key: &str| fields.remove(key).ok_or(format!("mutant {id} has no {key}"));
    let mutant = Mutant {
        file: take("file")?,
        find: take("find")?,
        replace: take("replace")?,
        tests: take("tests")?,
        about: take("about")?,
        equivalent: take("equivalent").ok(),
        id: id.clone(),
    };
    match fields.keys().next() {
        Some(unknown) => Err(format!("mutant {id} has an unknown key {unknown}")),
        None if mutant.find.is_empty() => Err(format!("mutant {id} looks for nothing")),
        None => Ok(mutant),
    }
}
