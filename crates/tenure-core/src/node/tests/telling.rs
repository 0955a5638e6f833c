//! What people do in the world, and what they see: words for short stories.

use std::time::Duration;

use super::world::World;
use crate::command::NodeCommand;
use crate::kv::Get;
use crate::layout::{Key, TASK_COMMAND_TTL};
use crate::lease::LeaseId;
use crate::name::{CommandId, TaskId};
use crate::node::{Event, Notice, Outcome};
use crate::record::{CommandOutcome, CommandRecord, OwnerRecord, Record, ResultRecord, WallTime};
use crate::task::{Message, State};
use crate::txn::{Condition, Op, Txn};

pub(super) fn task(name: &str) -> TaskId {
    TaskId::parse(name).unwrap()
}

pub(super) fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

pub(super) fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

impl World {
    /// A world with these nodes, all joined and at rest.
    pub(super) fn calm(nodes: usize) -> World {
        let mut world = World::new(nodes, 7);
        world.settle();
        world
    }

    pub(super) fn submit(&mut self, name: &str) {
        self.submit_as(name, "{}", None);
    }

    pub(super) fn submit_as(&mut self, name: &str, record: &str, props: Option<&str>) {
        let id = task(name);
        let key = self.layout.encode(&Key::Task(id.clone()));
        let mut txn = Txn::new().when(Condition::absent(key.clone())).then(Op::put(key, record.to_owned()));
        if let Some(props) = props {
            txn = txn.then(Op::put(self.layout.encode(&Key::TaskProps(id.clone())), props.to_owned()));
        }
        if self.apply(&txn).succeeded {
            self.deleted.remove(&id);
            self.submitted.insert(id);
        }
    }

    pub(super) fn delete(&mut self, name: &str) {
        let id = task(name);
        let keys = [Key::Task(id.clone()), Key::TaskProps(id.clone()), Key::TaskOwner(id.clone())];
        let txn = keys.iter().fold(Txn::new(), |txn, key| txn.then(Op::delete(self.layout.encode(key))));
        self.apply(&txn);
        self.meddled.insert(id.clone(), self.now);
        self.deleted.insert(id);
    }

    pub(super) fn next_id(&mut self) -> CommandId {
        let n = self.commands.len() + 1;
        let id = CommandId::parse(&format!("00000000-0000-7000-8000-{n:012x}")).unwrap();
        self.commands.insert(id.clone(), (task("-"), crate::revision::Revision::ZERO));
        id
    }

    /// Sends a command as senders do: whoever is replaced is told.
    pub(super) fn command(&mut self, name: &str, message: Message) -> CommandId {
        self.send(name, message.into_command())
    }

    pub(super) fn send(&mut self, name: &str, record: CommandRecord) -> CommandId {
        let id = self.next_id();
        let key = Key::TaskCommand(task(name));
        let before = self.get(&key).and_then(|pair| {
            let record = CommandRecord::decode(&pair.value).ok()?;
            Some((record.own_lease(pair.lease), record.id?))
        });
        let (over, replaced) = before.unzip();
        if let Some(replaced) = replaced {
            let me = crate::name::NodeId::parse("sender").unwrap();
            let result = ResultRecord::new(me, CommandOutcome::Replaced, self.wall());
            let key = self.layout.encode(&Key::CommandResult(replaced));
            self.apply(&Txn::new().then(Op::put(key, result.encode())));
        }
        let own = LeaseId::new(1_000_000 + i64::try_from(self.commands.len()).unwrap()).unwrap();
        self.store.grant(own, TASK_COMMAND_TTL, self.now).unwrap();
        let record = CommandRecord { id: Some(id.clone()), own_lease: Some(own.to_string()), ..record };
        self.apply(&Txn::new().then(Op::put_leased(self.layout.encode(&key), record.encode(), own)));
        let modified = self.store.revision();
        if let Some(over) = over.flatten() {
            self.end_lease(over);
        }
        self.commands.insert(id.clone(), (task(name), modified));
        id
    }

    pub(super) fn order(&mut self, n: usize, command: NodeCommand) -> CommandId {
        let id = self.next_id();
        let node = self.processes[n].settings.node.clone();
        let key = self.layout.encode(&Key::NodeCommand(node, id.clone()));
        let record = CommandRecord { id: Some(id.clone()), ..command.into_command() };
        self.apply(&Txn::new().then(Op::put(key, record.encode())));
        id
    }

    /// Somebody ends the lease of a command that is gone.
    pub(super) fn end_lease(&mut self, lease: LeaseId) {
        if let Some(view) = self.store.lease(lease, self.now) {
            assert!(view.keys.is_empty(), "{lease} is ended with {:?} under it", view.keys);
            self.store.revoke(lease, self.now).unwrap();
        }
    }

    /// The leases of commands that have not ended.
    pub(super) fn command_leases(&mut self) -> Vec<LeaseId> {
        let mut leases = self.store.leases(self.now);
        leases.retain(|lease| {
            self.store.lease(*lease, self.now).is_some_and(|view| view.granted == TASK_COMMAND_TTL)
        });
        leases
    }

    pub(super) fn put_raw(&mut self, key: &Key, value: &str) {
        let key = self.layout.encode(key);
        self.apply(&Txn::new().then(Op::put(key, value.to_owned())));
    }

    /// On which node a task's handler runs.
    pub(super) fn runs_on(&self, name: &str) -> Option<usize> {
        let id = task(name);
        let on: Vec<usize> =
            (0..self.processes.len()).filter(|&n| self.processes[n].handlers.contains_key(&id)).collect();
        assert!(on.len() < 2, "{name} runs on {on:?}");
        on.first().copied()
    }

    pub(super) fn owner(&mut self, name: &str) -> Option<String> {
        let pair = self.get(&Key::TaskOwner(task(name)))?;
        Some(OwnerRecord::decode(&pair.value).unwrap().node.to_string())
    }

    /// A handler returns.
    pub(super) fn finish(&mut self, name: &str, outcome: Outcome) {
        let n = self.runs_on(name).expect("it runs");
        let token = self.processes[n].handlers[&task(name)].token;
        self.end_handler(n, task(name), token, outcome);
    }

    /// How a task stands; none if nothing is stored.
    pub(super) fn stands(&mut self, name: &str) -> Option<State> {
        self.state(name).map(|record| record.state)
    }

    pub(super) fn exists(&mut self, name: &str) -> bool {
        self.get(&Key::Task(task(name))).is_some()
    }

    pub(super) fn outcome(&mut self, id: &CommandId) -> Option<CommandOutcome> {
        self.result(id).map(|result| result.outcome)
    }

    pub(super) fn has_noticed(&self, n: usize, is_it: impl Fn(&Notice) -> bool) -> bool {
        self.processes[n].notices.iter().any(is_it)
    }

    pub(super) fn starts_of(&self, name: &str) -> usize {
        let id = task(name);
        self.processes.iter().flat_map(|process| &process.starts).filter(|(task, ..)| *task == id).count()
    }

    /// How many tasks each node owns, by the store.
    pub(super) fn shares(&mut self) -> Vec<usize> {
        let page = self.store.get(&Get::new(self.layout.tasks()), self.now).unwrap();
        let owners: Vec<String> = page
            .pairs
            .iter()
            .filter(|pair| matches!(self.layout.parse(&pair.key), Some(Key::TaskOwner(_))))
            .map(|pair| OwnerRecord::decode(&pair.value).unwrap().node.to_string())
            .collect();
        let nodes = self.processes.iter().map(|process| process.settings.node.to_string());
        nodes.map(|node| owners.iter().filter(|owner| **owner == node).count()).collect()
    }

    pub(super) fn shut_down(&mut self, n: usize, within: Duration) {
        let deadline = self.now + within;
        self.tell(n, Event::Shutdown { deadline });
    }

    pub(super) fn in_ms(&self, ms: u64) -> WallTime {
        WallTime(self.wall().0 + ms)
    }
}
