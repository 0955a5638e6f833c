//! What people do in the world, and what they see: words for short stories.

use std::time::Duration;

use super::world::WorkerWorld;
use crate::audit::AuditEntry;
use crate::client::{
    DeleteTask, Origin, SendCommand, SendNodeCommand, SubmitTaskError, SubmitTasks, TaskSpec,
};
use crate::command::NodeCommand;
use crate::error::{Cause, StoreError};
use crate::exchange::{Exchange, ExchangeStep, StoreReply, StoreRequest};
use crate::id::{CommandId, NodeId, TaskId};
use crate::kv::Get;
use crate::layout::{COMMAND_EXPIRES_AFTER, Key};
use crate::record::{
    AuditRecord, CommandOutcome, CommandRecord, OwnerRecord, Record, ResultRecord, Timestamp,
};
use crate::task::{TaskMessage, TaskStatus};
use crate::txn::{Condition, Op, Txn};
use crate::worker::{HandlerEnd, WorkerEvent, WorkerInput};

pub(super) fn task(name: &str) -> TaskId {
    TaskId::parse(name).unwrap()
}

pub(super) fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

pub(super) fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

impl WorkerWorld {
    /// A world with these nodes, all joined and at rest.
    pub(super) fn calm(nodes: usize) -> WorkerWorld {
        let mut world = WorkerWorld::new(nodes, 7);
        world.settle();
        world
    }

    /// Runs a client's protocol. Some replies are lost in a storm, at most two: then it is settled in any case.
    fn run<E: Exchange>(&mut self, mut exchange: E) -> E::Output {
        let mut lost = 0;
        loop {
            let reply = match exchange.request() {
                StoreRequest::Get(get) => self.store.get(&get, self.now).map(StoreReply::Page),
                StoreRequest::Txn(txn) => self.store.apply(&txn, self.now).map(StoreReply::Txn),
            };
            self.announce_reads();
            let is_write = matches!(&reply, Ok(StoreReply::Txn(reply)) if reply.succeeded);
            let is_lost = is_write && lost < 2 && self.is_stormy && self.rng.one_in(4);
            let reply = if is_lost { Err(StoreError::Ambiguous(Cause::new("lost"))) } else { reply };
            lost += usize::from(is_lost);
            if let ExchangeStep::Done(output) = exchange.handle(reply) {
                return output;
            }
        }
    }

    fn origin(&self) -> Origin {
        Origin { name: NodeId::parse("sender").unwrap(), at: self.wall() }
    }

    pub(super) fn submit(&mut self, name: &str) {
        let id = task(name);
        let mut submit = SubmitTasks::default();
        submit.push(&self.layout, TaskSpec::new(id.clone()), "nonce".to_owned(), self.wall());
        while !submit.is_done() {
            let replies: Vec<_> = submit.txns().iter().map(|txn| self.store.apply(txn, self.now)).collect();
            submit.handle(replies);
        }
        self.announce_reads();
        match &submit.into_results()[..] {
            [Ok(_)] => {
                self.deleted.remove(&id);
                self.submitted.insert(id);
            }
            [Err(SubmitTaskError::Exists(_) | SubmitTaskError::Finished(_))] => {}
            other => panic!("{other:?}"),
        }
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
        let audit = AuditEntry::new(&self.layout, AuditRecord::default(), self.wall(), [0; 8]);
        let _ = self.run(DeleteTask::exchange(&self.layout, &id, self.origin(), audit));
        self.interfered.insert(id.clone(), self.now);
        self.deleted.insert(id);
    }

    pub(super) fn next_id(&mut self) -> CommandId {
        let n = self.commands.len() + 1;
        let id = CommandId::parse(&format!("00000000-0000-7000-8000-{n:012x}")).unwrap();
        self.commands.insert(id.clone(), (task("-"), crate::revision::Revision::ZERO));
        id
    }

    /// Sends a command as clients do. One that they refuse, because the task has ended or does not exist, is put as another program does.
    pub(super) fn command(&mut self, name: &str, message: TaskMessage) -> CommandId {
        let sent = self.try_command(name, message.clone());
        sent.unwrap_or_else(|| self.send(name, message.into_command()))
    }

    /// Sends a command as clients do; none if it is refused.
    pub(super) fn try_command(&mut self, name: &str, message: TaskMessage) -> Option<CommandId> {
        let id = self.next_id();
        let origin = (id.clone(), self.origin());
        let send = SendCommand::exchange(&self.layout, &task(name), message, origin, None);
        if !send.is_ok_and(|send| self.run(send).is_ok()) {
            self.commands.remove(&id);
            return None;
        }
        let modified = self.get(&Key::TaskCommand(task(name))).expect("it was sent").modified;
        self.commands.insert(id.clone(), (task(name), modified));
        Some(id)
    }

    /// Puts a command as another program does.
    pub(super) fn send(&mut self, name: &str, record: CommandRecord) -> CommandId {
        let id = self.next_id();
        let key = Key::TaskCommand(task(name));
        let before = self.get(&key).and_then(|pair| CommandRecord::decode(&pair.value).ok()?.id);
        if let Some(replaced) = before {
            let result = ResultRecord::new(self.origin().name, CommandOutcome::Replaced, self.wall());
            self.put_raw(&Key::CommandResult(replaced), std::str::from_utf8(&result.encode()).unwrap());
        }
        let expires_at = record.expires_at.or(Some(self.wall().after(COMMAND_EXPIRES_AFTER)));
        let record = CommandRecord { id: Some(id.clone()), expires_at, ..record };
        self.apply(&Txn::new().then(Op::put(self.layout.encode(&key), record.encode())));
        self.commands.insert(id.clone(), (task(name), self.store.revision()));
        id
    }

    /// Sends a command to a node as clients do. One to a node that is not there is put as by an older program.
    pub(super) fn order(&mut self, n: usize, command: NodeCommand) -> CommandId {
        let id = self.next_id();
        let node = self.processes[n].config.node.clone();
        let origin = self.origin();
        let send = SendNodeCommand::new(&self.layout, &node, command.clone(), (id.clone(), &origin));
        if self.run(send).is_ok() {
            return id;
        }
        let key = self.layout.encode(&Key::NodeCommand(node, id.clone()));
        let expires_at = Some(self.wall().after(COMMAND_EXPIRES_AFTER));
        let record = CommandRecord { id: Some(id.clone()), expires_at, ..command.into_command() };
        self.apply(&Txn::new().then(Op::put(key, record.encode())));
        id
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
    pub(super) fn finish(&mut self, name: &str, outcome: HandlerEnd) {
        let n = self.runs_on(name).expect("it runs");
        let token = self.processes[n].handlers[&task(name)].token;
        self.end_handler(n, task(name), token, outcome);
    }

    /// The status of a task. `None` if nothing is stored.
    pub(super) fn status_of(&mut self, name: &str) -> Option<TaskStatus> {
        self.state(name).map(|record| record.state)
    }

    pub(super) fn exists(&mut self, name: &str) -> bool {
        self.get(&Key::Task(task(name))).is_some()
    }

    pub(super) fn outcome(&mut self, id: &CommandId) -> Option<CommandOutcome> {
        self.result(id).map(|result| result.outcome)
    }

    pub(super) fn has_noticed(&self, n: usize, is_it: impl Fn(&WorkerEvent) -> bool) -> bool {
        self.processes[n].events.iter().any(is_it)
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
        let nodes = self.processes.iter().map(|process| process.config.node.to_string());
        nodes.map(|node| owners.iter().filter(|owner| **owner == node).count()).collect()
    }

    pub(super) fn shut_down(&mut self, n: usize, within: Duration) {
        let deadline = self.now + within;
        self.deliver(n, WorkerInput::Shutdown { deadline });
    }

    pub(super) fn in_ms(&self, ms: u64) -> Timestamp {
        Timestamp(self.wall().0 + ms)
    }
}
