//! A cluster that is swapped or goes back in time behind its address.

use tenure_etcd::{Client, Config, Error, Replaced};
use tenure_fixture::Etcd;

use crate::{get, put};

#[tokio::test]
async fn a_member_of_another_cluster_ends_the_client_before_anything_is_written() {
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
        matches!(error, Error::Replaced(Replaced::OtherCluster { was, .. }) if was == known)
            || matches!(error, Error::Ambiguous(_)),
        "{error:?}"
    );
    let error = client.put(put("stray", "v")).await.unwrap_err();
    assert!(
        matches!(error, Error::Replaced(Replaced::OtherCluster { was, .. }) if was == known),
        "{error:?}"
    );
    assert_eq!(crate::connect(other).await.range(get("stray")).await.unwrap().count, 0);
}
