//! Real etcd for tests: members that can be killed, stopped, restarted, grown and cut off. And real Redis, as far as it is needed.
//!
//! Mocks share the assumptions of their author, so the tests use real servers. Everything here is
//! blocking and runs on plain threads: it works from any test, under any runtime.
//!
//! Misuse and a server that does not come up panic with a full sentence and the end of etcd's log:
//! a fixture has one caller, the test, and a missing etcd must fail it, never skip it.
//!
//! ```no_run
//! use tenure_fixture::{Etcd, Mode, Proxy};
//!
//! let etcd = Etcd::start();
//! let proxy = Proxy::to(etcd.member(0).client_addr());
//! // ... connect a client to `proxy.url()`, then lose the answers of committed writes:
//! proxy.set(Mode::BlackHoleAnswers);
//! ```
//!
//! **Invariant**: no server outlives the process that started it, however that process ends (see [`sentinel`]).

mod access;
mod binary;
mod builder;
mod etcd;
mod grant;
mod grpc_proxy;
mod http;
mod member;
mod metrics;
mod peers;
mod port;
mod proxy;
mod redis_server;
pub mod sentinel;

pub use access::{AccessControl, Permission};
pub use binary::{EtcdVersion, binary, version_of};
pub use builder::{Builder, Host, Timers, Tls};
pub use etcd::Etcd;
pub use grant::{granted_user, root_user};
pub use grpc_proxy::GrpcProxy;
pub use member::EtcdMember;
pub use proxy::{Mode, Proxy};
pub use redis_server::Redis;
