//! Keys and names: a foreign key is never taken for a key of the layout, and no name reaches
//! another name's keys.

use crate::id::{
    ClaimId, CommandId, ElectionName, InstanceId, LockName, NAME_BYTES_MAX, Namespace, NodeId, RegistryKey,
    ServiceName, TaskId,
};
use crate::kv::Selection;
use crate::layout::{Key, Layout, QueueKey, folder_name};
use crate::lease::LeaseId;

/// A namespace up to the first line break, which no key has, and then a key; `shop/eu` if there is
/// no line break.
pub(super) fn key(bytes: &[u8]) -> String {
    let at = bytes.iter().position(|byte| *byte == b'\n');
    let (namespace, key) = at.map_or((&b"shop/eu"[..], bytes), |at| (&bytes[..at], &bytes[at + 1..]));
    let Some(namespace) = std::str::from_utf8(namespace).ok().and_then(|text| Namespace::parse(text).ok())
    else {
        return "no namespace".to_owned();
    };
    let layout = Layout::new(&namespace);
    in_one_spelling(key, &format!("/{namespace}/"), &|bytes| layout.parse(bytes), &|key| {
        layout.encode(key).to_vec()
    })
}

/// A key that is read was written exactly so, and is below its root.
fn in_one_spelling(
    bytes: &[u8],
    root: &str,
    parse: &dyn Fn(&[u8]) -> Option<Key>,
    encode: &dyn Fn(&Key) -> Vec<u8>,
) -> String {
    let Some(key) = parse(bytes) else {
        let kind = bytes.split(|byte| *byte == b'/').nth(3).unwrap_or_default();
        return format!("foreign {}", kind.len().min(9));
    };
    assert!(bytes.starts_with(root.as_bytes()), "a key from outside of {root}");
    assert_eq!(encode(&key), bytes, "a key with two spellings: {key:?}");
    if let Key::Registration(registered) = &key
        && let Some((name, instance)) = registered.as_instance()
    {
        assert_eq!(RegistryKey::of_instance(&name, &instance).as_ref(), Ok(registered));
        return "an instance".to_owned();
    }
    let slashes = bytes.iter().filter(|byte| **byte == b'%').count().min(3);
    format!("{} {slashes}", format!("{key:?}").split('(').next().unwrap_or_default())
}

/// A name in each position of each key.
pub(super) fn name(bytes: &[u8]) -> String {
    let Ok(text) = std::str::from_utf8(bytes) else { return "no text".to_owned() };
    if let Some(place) = QueueKey::parse(text) {
        assert_eq!(place.to_string(), text);
    }
    if let Ok(id) = CommandId::parse(text) {
        assert_eq!(id.as_str(), text);
    }
    if let Ok(namespace) = Namespace::parse(text) {
        assert_eq!(Namespace::parse(namespace.as_str()).as_ref(), Ok(&namespace));
        let folder = folder_name(&namespace);
        assert!(!folder.contains('/') && !matches!(folder.as_str(), "" | "." | ".."), "{folder:?}");
    }
    match TaskId::parse(text) {
        Ok(task) => {
            assert_eq!(task.as_str(), text);
            assert!(text.len() <= NAME_BYTES_MAX && !text.contains(char::is_control));
            in_every_position(text);
            format!(
                "a name with {} and {}",
                text.matches('/').count().min(3),
                text.matches('%').count().min(3)
            )
        }
        Err(bad) => bad
            .to_string()
            .split(|c: char| c.is_ascii_digit() || c == '\'')
            .next()
            .unwrap_or_default()
            .to_owned(),
    }
}

fn in_every_position(text: &str) {
    let layout = Layout::new(&Namespace::parse("shop").expect("a namespace"));
    let command = CommandId::parse("0190a000-0000-7000-8000-0123456789ab").expect("a UUID");
    let place = QueueKey { lease: LeaseId::from_random([1; 8]), nonce: 1 };
    let node = |text: &str| NodeId::parse(text).expect("one rule for all names");
    let task = |text: &str| TaskId::parse(text).expect("one rule for all names");
    let election = |text: &str| ElectionName::parse(text).expect("one rule for all names");
    let lock = |text: &str| LockName::parse(text).expect("one rule for all names");
    let registration = RegistryKey::parse(text).expect("one rule for all names");
    let keys = [
        (Key::Node(node(text)), 2),
        (Key::NodeCommand(node(text), command), 4),
        (Key::Task(task(text)), 2),
        (Key::TaskProps(task(text)), 3),
        (Key::TaskOwner(task(text)), 3),
        (Key::TaskAttempt(task(text), ClaimId::parse(text).expect("one rule for all names")), 4),
        (Key::TaskState(task(text)), 2),
        (Key::EndedTask(crate::record::Timestamp(7), task(text)), 3),
        (Key::TaskCommand(task(text)), 2),
        (Key::Frozen(node(text)), 2),
        (Key::Candidate(election(text), place), 3),
        (Key::Waiter(lock(text), place), 3),
        (Key::EnterGuard(place), 2),
        (Key::Resignation(election(text), place.lease), 3),
        (Key::Ttl(election(text)), 2),
        (Key::Run(lock(text)), 2),
        (Key::Registration(registration), 2 + text.matches('/').count()),
    ];
    for (key, segments) in keys {
        let bytes = layout.encode(&key);
        let inside = bytes.strip_prefix(b"/shop/").expect("a key of the namespace");
        assert_eq!(inside.split(|byte| *byte == b'/').count(), segments, "{key:?} in {bytes:?}");
        assert!(layout.everything().contains(&bytes));
        assert_eq!(layout.parse(&bytes), Some(key));
    }
    for near in [format!("{text}0"), format!("{text}/"), format!("{text}/a")] {
        let Ok(other) = TaskId::parse(&near) else { continue };
        let apart = |selection: Selection, key: Key| {
            assert!(!selection.contains(&layout.encode(&key)), "{near:?} is among those of {text:?}");
        };
        apart(layout.task_parts(&task(text)), Key::TaskOwner(other.clone()));
        apart(layout.task_parts(&task(text)), Key::Task(other));
        apart(layout.node_commands(&node(text)), Key::Node(node(&near)));
        apart(layout.candidates(&election(text)), Key::Candidate(election(&near), place));
        apart(layout.waiters(&lock(text)), Key::Waiter(lock(&near), place));
    }
    let (service, instance) = (ServiceName::parse(text), InstanceId::parse(text));
    let (service, instance) = (service.expect("one rule"), instance.expect("one rule"));
    if let Ok(registered) = RegistryKey::of_instance(&service, &instance) {
        assert!(layout.service(&service).contains(&layout.encode(&Key::Registration(registered.clone()))));
        assert_eq!(registered.as_instance(), Some((service, instance)));
    }
}

#[cfg(test)]
mod tests {
    use tenure_fuzz::{Bounds, FuzzRun};

    use super::*;

    /// `%2f` for `%2F` would give one task two keys.
    #[test]
    fn parser_accepting_second_encoding_is_found() {
        let layout = Layout::new(&Namespace::parse("shop").unwrap());
        let lenient = |bytes: &[u8]| {
            let text = String::from_utf8_lossy(bytes).replace("%2f", "%2F");
            layout.parse(text.as_bytes())
        };
        let target =
            |bytes: &[u8]| in_one_spelling(bytes, "/shop/", &lenient, &|key| layout.encode(key).to_vec());
        let inputs = vec![("kept".to_owned(), b"/shop/tasks/a%2Fb".to_vec())];
        let bounds = Bounds::Executions(2_000);
        let finding = FuzzRun { target: &target, inputs, seed: 1, bounds }.go().unwrap_err();
        assert!(finding.why.contains("two spellings"), "{finding}");
    }
}
