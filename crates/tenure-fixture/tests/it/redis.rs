//! A real Redis that can be killed and stopped, and leaves nothing behind.

use tenure_fixture::Redis;

use crate::is_running;

#[test]
fn dropped_redis_leaves_nothing() {
    let redis = Redis::start();
    let (pid, folder) = (redis.pid(), redis.folder().to_owned());
    assert!(is_running(pid));
    assert_eq!(redis.command(&["CONFIG", "GET", "save"]).unwrap(), "*2\r\n$4\r\nsave\r\n$0\r\n\r\n");
    drop(redis);
    assert!(!is_running(pid));
    assert!(!folder.exists());
}

#[test]
fn killed_redis_restarts_empty() {
    let redis = Redis::start();
    redis.command(&["SET", "a", "1"]).unwrap();
    assert_eq!(redis.command(&["GET", "a"]).unwrap(), "$1\r\n1\r\n");
    let (pid, addr) = (redis.pid(), redis.addr());
    redis.kill();
    assert!(!is_running(pid));
    assert!(redis.command(&["PING"]).is_err());
    redis.restart();
    assert_eq!(redis.addr(), addr);
    assert_eq!(redis.command(&["GET", "a"]).unwrap(), "$-1\r\n");
}

#[test]
fn paused_redis_is_silent_until_resumed() {
    let redis = Redis::start();
    redis.pause();
    assert!(redis.command(&["PING"]).is_err());
    redis.resume();
    assert!(redis.command(&["PING"]).unwrap().starts_with("+PONG"));
}
