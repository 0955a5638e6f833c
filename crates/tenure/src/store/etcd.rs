//! The etcd engine: the contract on real etcd.
