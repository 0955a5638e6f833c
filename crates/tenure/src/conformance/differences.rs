//! What differs on purpose between engines, within what the contract allows.

/// A deliberate difference of one engine, and the reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Difference {
    /// The case that leaves room for it.
    pub case: &'static str,
    /// The engine: the `kind` of its [`StoreInfo`](crate::store::StoreInfo).
    pub engine: &'static str,
    /// What it does, and why.
    pub why: &'static str,
}

/// All that is known to differ.
pub fn differences() -> &'static [Difference] {
    &DIFFERENCES
}

const DIFFERENCES: [Difference; 12] = [
    Difference {
        case: "L01",
        engine: "etcd",
        why: "TTLs are whole seconds, and raised to one and a half election timeouts: 2 s with default timings. `StoreInfo` has the step, `Grant` the TTL.",
    },
    Difference {
        case: "L01",
        engine: "memory",
        why: "TTLs are counted in milliseconds, with a floor of 1 s unless a test lowers it.",
    },
    Difference {
        case: "L01",
        engine: "file",
        why: "TTLs are counted in milliseconds, with a floor of 1 s unless a test lowers it.",
    },
    Difference {
        case: "L11",
        engine: "etcd",
        why: "Leases end up to half a second late, and at most a thousand in a second: thousands at once take seconds longer. A change of leader gives every lease its whole TTL again.",
    },
    Difference {
        case: "T20",
        engine: "etcd",
        why: "The transactions of a batch share requests, and those of one request share one revision.",
    },
    Difference {
        case: "T20",
        engine: "memory",
        why: "Each transaction of a batch has a revision of its own.",
    },
    Difference {
        case: "T20",
        engine: "file",
        why: "Each transaction of a batch has a revision of its own, although they are committed together.",
    },
    Difference {
        case: "W09",
        engine: "etcd",
        why: "Only etcd sends progress between changes; the embedded engines have nothing to report that a change does not.",
    },
    Difference {
        case: "C01",
        engine: "memory",
        why: "History is compacted automatically beyond 10,000 revisions and ten minutes.",
    },
    Difference {
        case: "C01",
        engine: "file",
        why: "History is compacted automatically beyond 10,000 revisions and ten minutes.",
    },
    Difference {
        case: "C04",
        engine: "etcd",
        why: "Servers before 3.4.36 and 3.5.18 accept a watch at the compact revision and lose a delete in it; the engine asks for that revision and reports `Compacted`, as newer servers do.",
    },
    Difference {
        case: "C06",
        engine: "etcd",
        why: "A watcher that was behind when history was compacted may miss the previous value of what it still gets; the embedded engines keep it with the change.",
    },
];
