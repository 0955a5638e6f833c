//! Reads a file of tasks, one JSON object per line.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;
use tenure::task::{NewTask, new_task_ids};
use tenure_core::id::TaskId;

use super::NAMED_MAX;
use crate::failure::Failure;
use crate::kv::InputSource;

/// How much of an invalid line a message repeats.
const START_CHARS: usize = 20;

/// A line. An unknown field is an error, because it would be ignored.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TaskLine {
    id: Option<Value>,
    kind: Option<Value>,
    props: Option<Value>,
    #[serde(default)]
    labels: BTreeMap<String, Value>,
}

/// Reads all tasks of a file, or reports the invalid lines.
pub(super) async fn read(path: &Path) -> Result<Vec<(TaskId, NewTask)>, Failure> {
    let input = if path == Path::new("-") { InputSource::Stdin } else { InputSource::File(path.to_owned()) };
    let bytes = input.read().await?;
    if bytes.trim_ascii_start().starts_with(b"[") {
        let file = path.display();
        return Err(Failure::usage(format!(
            "{file} is a JSON array, and one object per line is expected; nothing was submitted"
        ))
        .hint(format!("write its elements as lines: `jq -c '.[]' {file} | tenure submit --file -`")));
    }
    tasks(&bytes).map_err(|error| {
        let failure = Failure::usage(format!("{}: {error}; nothing was submitted", path.display()));
        failure.hint(
            r#"each line is an object such as {"id":"mail-1","kind":"mail","props":{"to":"a@example.org"}}"#,
        )
    })
}

fn tasks(bytes: &[u8]) -> Result<Vec<(TaskId, NewTask)>, String> {
    let mut ids = new_task_ids();
    let mut seen: BTreeMap<TaskId, usize> = BTreeMap::new();
    let (mut tasks, mut bad) = (Vec::new(), Vec::new());
    let lines = bytes.split(|byte| *byte == b'\n').enumerate();
    for (index, line) in lines.filter(|(_, line)| !line.trim_ascii().is_empty()) {
        let number = index + 1;
        let task = task(line, &mut ids);
        let task = task.and_then(|(id, task)| match seen.insert(id.clone(), number) {
            None => Ok((id, task)),
            Some(first) => Err(format!("the id '{id}' is on line {first} already")),
        });
        match task {
            Ok(task) => tasks.push(task),
            Err(why) => bad.push(format!("line {number}: {why}")),
        }
    }
    if bad.is_empty() && tasks.is_empty() {
        return Err("the file has no task".to_owned());
    }
    if bad.is_empty() {
        return Ok(tasks);
    }
    let more = bad.len().saturating_sub(NAMED_MAX);
    bad.truncate(NAMED_MAX);
    if more > 0 {
        bad.push(format!("and {more} more lines"));
    }
    Err(bad.join("; "))
}

fn task(line: &[u8], ids: &mut impl Iterator<Item = TaskId>) -> Result<(TaskId, NewTask), String> {
    let line = line.trim_ascii();
    if !line.starts_with(b"{") {
        let start: String = String::from_utf8_lossy(line).chars().take(START_CHARS).collect();
        return Err(format!("{start:?} is not a JSON object"));
    }
    let line: TaskLine = serde_json::from_slice(line).map_err(|error| {
        // The parser reads each line as a document of its own, so its line number is always 1.
        error.to_string().replace(" at line 1 column ", ", at column ")
    })?;
    let id = match line.id {
        Some(id) => TaskId::parse(&text("the id", id)?).map_err(|error| format!("invalid id: {error}"))?,
        None => ids.next().expect("the iterator of ids is endless"),
    };
    let kind = line.kind.map_or(Ok(String::new()), |kind| text("the kind", kind))?;
    let mut task = NewTask::new(kind).id(&id);
    for (name, value) in line.labels {
        let value = text(&format!("the label {name:?}"), value)?;
        task = task.label(name, value);
    }
    if let Some(props) = line.props {
        task = task.props(&props);
    }
    task.check().map_err(|bad| bad.to_string())?;
    Ok((id, task))
}

/// The text of a value, which must be a string.
fn text(what: &str, value: Value) -> Result<String, String> {
    let kind = match value {
        Value::String(text) => return Ok(text),
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    };
    Err(format!("{what} is {kind}, and must be text in quotes"))
}

#[cfg(test)]
mod fuzz;
