//! A cluster that is swapped or goes back in time behind its address.

use std::path::Path;

use tenure_etcd::{Client, ClusterReplaced, Config, Error};
use tenure_fixture::Etcd;

use crate::{get, put};

#[tokio::test]
async fn member_of_other_cluster_ends_client() {
    let first = Etcd::start();
    let second = Etcd::start();
    let mut config = Config::new([first.client_urls(), second.client_urls()].concat());
    config.per_try = std::time::Duration::from_millis(500);
    let client = Client::connect(config).await.unwrap();
    client.put(put("k", "v")).await.unwrap();
    // Whichever was chosen dies; the other must not be mistaken for it.
    let known = client.cluster_id().unwrap();
    let direct = crate::connect(&first).await;
    let (dying, other) =
        if direct.cluster_id() == Some(known) { (&first, &second) } else { (&second, &first) };
    dying.kill_all();
    let error = client.put(put("stray", "v")).await.unwrap_err();
    assert!(
        matches!(error, Error::Replaced(ClusterReplaced::OtherCluster { was, .. }) if was == known)
            || matches!(error, Error::Ambiguous(_)),
        "{error:?}"
    );
    let error = client.put(put("stray", "v")).await.unwrap_err();
    assert!(
        matches!(error, Error::Replaced(ClusterReplaced::OtherCluster { was, .. }) if was == known),
        "{error:?}"
    );
    assert_eq!(crate::connect(other).await.range(get("stray")).await.unwrap().count, 0);
}

/// A backup restored under the same names keeps its cluster id; only the revision gives it away.
#[tokio::test(flavor = "multi_thread")]
async fn restored_backup_ends_client() {
    let etcd = Etcd::start();
    let client = crate::connect(&etcd).await;
    client.put(put("k", "before the backup")).await.unwrap();
    let member = etcd.member(0);
    let backup = tempfile::tempdir().unwrap();
    member.kill();
    copy(member.folder(), backup.path());
    member.restart();
    for n in 0..10 {
        client.put(put("k", &n.to_string())).await.unwrap();
    }
    let seen = client.range(get("k")).await.unwrap().revision;
    member.kill();
    std::fs::remove_dir_all(member.folder()).unwrap();
    copy(backup.path(), member.folder());
    member.restart();

    let error = client.range(get("k")).await.unwrap_err();
    assert!(
        matches!(error, Error::Replaced(ClusterReplaced::WentBack { was, now }) if was == seen && now < seen),
        "{error:?}"
    );
    // New history overtakes the old one, and we still know.
    let direct = crate::connect(&etcd).await;
    while direct.put(put("other", "x")).await.unwrap() <= seen {}
    let error = client.put(put("k", "late")).await.unwrap_err();
    assert!(matches!(error, Error::Replaced(_)), "{error:?}");
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else if entry.file_type().unwrap().is_file() {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}
