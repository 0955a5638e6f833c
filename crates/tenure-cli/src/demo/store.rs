//! Where the demo plays: a store of its own in a temporary folder, or a corner of the one that was named.

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

/// How long tidying up may take.
const TIDY_WITHIN: Duration = Duration::from_secs(10);

/// Everything around the story.
pub(super) struct DemoStore {
    pub(super) store: Store,
    pub(super) namespace: Namespace,
    /// What kind of store it is, for people.
    pub(super) backend: String,
    /// What workers are told so that they come here.
    pub(super) flags: Vec<String>,
    /// Where ledgers are, and the store if it is our own.
    pub(super) folder: TempDir,
}

impl DemoStore {
    /// A store that was configured is not used, only one that was named for this very command: a demo must never surprise anybody.
    pub(super) async fn open(ttl: Duration, global: &Global, output: &Output) -> Result<DemoStore, Failure> {
        let folder = tempfile::Builder::new().prefix("tenure-demo-").tempdir().map_err(|error| {
            Failure::new(Code::Failed, format!("no temporary folder can be made: {error}"))
        })?;
        let mut named = global.clone();
        if named.store.is_none() && named.endpoints.is_none() {
            named.store = Some(format!("file://{}", folder.path().join("store.db").display()));
            named.namespace = Some("demo".to_owned());
        } else {
            let parent = connect::decide(global)?.namespace.value;
            // The folder's name is nobody else's.
            let corner = folder.path().file_name().unwrap_or_default().to_string_lossy();
            named.namespace = Some(format!("{parent}/{corner}"));
        }
        let settings = connect::decide(&named)?;
        let namespace = settings.namespace.value.clone();
        let store = connect::open(&settings, output).await?;
        let scene = DemoStore {
            backend: store.info().kind.to_owned(),
            store,
            namespace,
            flags: flags(&named),
            folder,
        };
        scene.check(ttl)?;
        Ok(scene)
    }

    /// Whether such leases can be had and held.
    fn check(&self, ttl: Duration) -> Result<(), Failure> {
        if self.store.info().kind == "memory" {
            return Err(Failure::usage("a store in memory is for one process, and the demo has several")
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

    /// Removes everything that was put into the store, and closes it. The folder goes with this.
    pub(super) async fn close(&self) {
        let everything = Layout::new(&self.namespace).everything();
        let tidying = async {
            if let Err(error) = self.store.delete(everything).await {
                tracing::warn!(namespace = %self.namespace, %error, "the demo could not be tidied up");
            }
            self.store.close().await;
        };
        let _ = tokio::time::timeout(TIDY_WITHIN, tidying).await;
    }
}

/// The flags that name the same store to another process.
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
