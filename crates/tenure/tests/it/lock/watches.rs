//! What waiting costs this process.

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::runtime::Handle;

use super::*;

/// One relay task per watch cost each wake-up a task switch, and a process that waits for a thousand locks three thousand tasks.
#[tokio::test(start_paused = true)]
async fn watches_need_no_other_task() {
    let store = Store::memory();
    let ((_a, holder), (_b, waiting)) = (process(&store), process(&store));
    let names: Vec<String> = (0..10).map(|n| n.to_string()).collect();
    let mut guards = Vec::new();
    for name in &names {
        guards.push(holder.lock(name).await.unwrap());
    }
    waiting.lock("other").await.unwrap().release().await.unwrap();
    let before = Handle::current().metrics().num_alive_tasks();
    let mut waits: FuturesUnordered<_> = names.iter().map(|name| waiting.lock(name).into_future()).collect();
    // After a second all own keys are watched too.
    let first = tokio::time::timeout(Duration::from_secs(1), waits.next()).await;
    assert!(first.is_err(), "all are held");
    assert_eq!(keys(&store).await, 20);
    assert_eq!(Handle::current().metrics().num_alive_tasks(), before);
    drop(guards);
    for _ in &names {
        let guard = soon(waits.next()).await.unwrap().unwrap();
        guard.release().await.unwrap();
    }
}
