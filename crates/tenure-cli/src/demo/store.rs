//! The store of the demo: a new one in a temporary folder, or a namespace of the one on the command line.

use std::time::Duration;

use tempfile::TempDir;
use tenure::session::Session;
use tenure::store::Store;
use tenure_core::id::Namespace;
use tenure_core::layout::Layout;

use crate::cli::Global;
use crate::connect;
use crate::failure::{Code, Failure};
use crate::output::Output;

/// The time limit of the cleanup. A store that fails keeps the keys until their lease ends.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(10);

/// The store and the folder of a demo.
pub(super) struct DemoStore {
    pub(super) store: Store,
    pub(super) namespace: Namespace,
    /// The kind of the store, for the report.
    pub(super) backend: String,
    /// The flags with which workers open the same store.
    pub(super) flags: Vec<String>,
    /// The folder of the ledgers, and of the store if the demo created it.
    pub(super) folder: TempDir,
}

impl DemoStore {
    /// Opens the store. A configured store is not used, only one on the command line: a demo must not write to a production store.
    pub(super) async fn open(ttl: Duration, global: &Global, output: &Output) -> Result<DemoStore, Failure> {
        let folder = tempfile::Builder::new().prefix("tenure-demo-").tempdir().map_err(|error| {
            Failure::new(Code::Failed, format!("cannot create a temporary folder: {error}"))
        })?;
        let mut named = global.clone();
        if named.store.is_none() && named.endpoints.is_none() {
            named.store = Some(format!("file://{}", folder.path().join("store.db").display()));
            named.namespace = Some("demo".to_owned());
        } else {
            let parent = connect::decide(global)?.namespace.value;
            // The name of the temporary folder is unique, so the namespace is, too.
            let unique = folder.path().file_name().unwrap_or_default().to_string_lossy();
            named.namespace = Some(format!("{parent}/{unique}"));
        }
        let settings = connect::decide(&named)?;
        let namespace = settings.namespace.value.clone();
        let store = connect::open(&settings, output).await?;
        let opened = DemoStore {
            backend: store.info().kind.to_owned(),
            store,
            namespace,
            flags: flags(&named),
            folder,
        };
        opened.check(ttl)?;
        Ok(opened)
    }

    /// Checks that the store can be shared and grants leases of this TTL.
    fn check(&self, ttl: Duration) -> Result<(), Failure> {
        if self.store.info().kind == "memory" {
            return Err(Failure::usage("a memory store is for one process, and the demo has several")
                .hint("leave --store out, or use a file or etcd"));
        }
        self.store.info().limits.grant_ttl(ttl)?;
        match Session::options().ttl(ttl).open(self.store.clone()) {
            Ok(_) => Ok(()),
            Err(error) => {
                Err(Failure::usage(error.to_string()).hint("use a longer --ttl; 3s is the default"))
            }
        }
    }

    /// Deletes the keys of the demo and closes the store. The folder is removed on drop.
    pub(super) async fn close(&self) {
        let everything = Layout::new(&self.namespace).everything();
        let cleanup = async {
            if let Err(error) = self.store.delete(everything).await {
                tracing::warn!(namespace = %self.namespace, %error, "demo keys not deleted");
            }
            self.store.close().await;
        };
        let _ = tokio::time::timeout(CLEANUP_TIMEOUT, cleanup).await;
    }
}

/// The flags with which another process opens the same store.
fn flags(global: &Global) -> Vec<String> {
    let named = [
        ("--store", &global.store),
        ("--endpoints", &global.endpoints),
        ("--namespace", &global.namespace),
        ("--cacert", &global.cacert),
        ("--cert", &global.cert),
        ("--key", &global.key),
        ("--user", &global.user),
        ("--password-file", &global.password_file),
    ];
    let flag = |(flag, value): (&str, &Option<String>)| Some([flag.to_owned(), value.clone()?]);
    named.into_iter().filter_map(flag).flatten().collect()
}
