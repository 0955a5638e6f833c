//! A connection against a peer that the test controls.

use std::time::Duration;

use bytes::Bytes;
use h2::server::{Connection, SendResponse};
use http::uri::PathAndQuery;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::Status;
use tonic::client::Grpc;
use tonic_prost::ProstCodec;

use super::{CLOSE_GRACE, Http2Channel, Owner};
use crate::classify::{Class, RequestSize, classify};
use crate::message::kv::{PutRequest, PutResponse};

/// Both ends of a connection, and the owner of the client's end.
struct TestConnection {
    channel: Http2Channel,
    peer: Connection<DuplexStream, Bytes>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl TestConnection {
    async fn new() -> Self {
        Self::with(&h2::server::Builder::new()).await
    }

    async fn with(peer: &h2::server::Builder) -> Self {
        let (ours, theirs) = tokio::io::duplex(16 * 1024);
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        tasks.close();
        let origin = http::Uri::from_static("http://peer:1");
        let owner = Owner { tasks: &tasks, stop: &stop };
        let (channel, peer) =
            tokio::join!(Http2Channel::open(Box::new(ours), origin, owner), peer.handshake(theirs));
        Self { channel: channel.unwrap(), peer: peer.unwrap(), tasks, stop }
    }
}

/// One call, with a value of so many bytes.
async fn call(channel: Http2Channel, bytes: usize) -> Result<PutResponse, Status> {
    let origin = channel.origin().clone();
    let message = PutRequest { value: vec![7; bytes].into(), ..PutRequest::default() };
    let codec = ProstCodec::<PutRequest, PutResponse>::default();
    let path = PathAndQuery::from_static("/test/Put");
    let reply = Grpc::with_origin(channel, origin).unary(tonic::Request::new(message), path, codec).await;
    reply.map(tonic::Response::into_inner)
}

fn reply(mut respond: SendResponse<Bytes>) {
    let mut stream = respond.send_response(http::Response::new(()), false).unwrap();
    // A message without fields: not compressed, no bytes.
    stream.send_data(Bytes::from_static(&[0; 5]), false).unwrap();
    let mut trailers = http::HeaderMap::new();
    trailers.insert("grpc-status", "0".parse().unwrap());
    stream.send_trailers(trailers).unwrap();
}

/// Answers every request when it has come in whole; gives how many bytes the first had.
async fn serve(mut peer: Connection<DuplexStream, Bytes>) -> usize {
    let mut first = None;
    while let Some(request) = peer.accept().await {
        let Ok((request, respond)) = request else { break };
        let mut body = request.into_body();
        let reading = async {
            let mut bytes = 0;
            while let Some(chunk) = body.data().await {
                let chunk = chunk.unwrap();
                bytes += chunk.len();
                body.flow_control().release_capacity(chunk.len()).unwrap();
            }
            bytes
        };
        // The connection moves only while it is asked for the next request.
        let bytes = tokio::select! {
            biased;
            bytes = reading => bytes,
            _ = std::future::poll_fn(|context| peer.poll_closed(context)) => break,
        };
        first.get_or_insert(bytes);
        reply(respond);
    }
    first.unwrap_or(0)
}

#[tokio::test]
async fn request_larger_than_window_arrives_whole() {
    let TestConnection { channel, peer, tasks, stop: _stop } = TestConnection::new().await;
    let serving = tokio::spawn(serve(peer));
    call(channel.clone(), 1_000_000).await.unwrap();
    call(channel, 1).await.unwrap();
    tasks.wait().await;
    assert!(serving.await.unwrap() > 1_000_000);
}

#[tokio::test]
async fn stream_limit_delays_no_request_forever() {
    let TestConnection { channel, peer, stop: _stop, .. } =
        TestConnection::with(h2::server::Builder::new().max_concurrent_streams(2)).await;
    let serving = tokio::spawn(serve(peer));
    call(channel.clone(), 1).await.unwrap();
    let calls: Vec<_> = (0..50).map(|_| tokio::spawn(call(channel.clone(), 1))).collect();
    drop(channel);
    for call in calls {
        call.await.unwrap().unwrap();
    }
    serving.await.unwrap();
}

#[tokio::test]
async fn only_untaken_request_is_unsent() {
    let TestConnection { channel, mut peer, tasks, stop: _stop } = TestConnection::new().await;
    let lost = tokio::spawn(call(channel.clone(), 1));
    let taken = peer.accept().await.unwrap().unwrap();
    drop((taken, peer));
    let status = lost.await.unwrap().unwrap_err();
    assert!(matches!(classify(&status, RequestSize::default()), Class::Lost(_)), "{status:?}");
    // The break was noticed, so the next one is not even tried.
    tasks.wait().await;
    let status = call(channel, 1).await.unwrap_err();
    assert!(matches!(classify(&status, RequestSize::default()), Class::Unsent(_)), "{status:?}");
}

#[tokio::test]
async fn unwritten_request_counts_as_lost() {
    let TestConnection { channel, peer, stop: _stop, .. } = TestConnection::new().await;
    // More than the pipe and the window take, to a peer that reads nothing.
    let stuck = tokio::spawn(call(channel.clone(), 1_000_000));
    let behind = tokio::spawn(call(channel, 1));
    tokio::task::yield_now().await;
    drop(peer);
    for call in [stuck, behind] {
        let status = call.await.unwrap().unwrap_err();
        assert!(matches!(classify(&status, RequestSize::default()), Class::Lost(_)), "{status:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn unanswered_ping_closes_connection() {
    let TestConnection { channel, peer, tasks, stop: _stop } = TestConnection::new().await;
    let begin = Instant::now();
    let status = call(channel, 1).await.unwrap_err();
    assert!(matches!(classify(&status, RequestSize::default()), Class::Lost(_)), "{status:?}");
    let took = begin.elapsed();
    assert!((Duration::from_secs(8)..Duration::from_secs(9)).contains(&took), "{took:?}");
    tasks.wait().await;
    drop(peer);
}

#[tokio::test(start_paused = true)]
async fn answered_ping_keeps_slow_request() {
    let TestConnection { channel, mut peer, stop: _stop, .. } = TestConnection::new().await;
    let calling = tokio::spawn(call(channel, 1));
    let (_, respond) = peer.accept().await.unwrap().unwrap();
    let _ = timeout(Duration::from_secs(3_600), peer.accept()).await;
    reply(respond);
    let serving = tokio::spawn(async move { while peer.accept().await.is_some() {} });
    calling.await.unwrap().unwrap();
    serving.await.unwrap();
}

/// What it sends may be what the reply to a ping has to wait behind.
#[tokio::test(start_paused = true)]
async fn receiving_connection_is_not_pinged() {
    let (ours, mut theirs) = tokio::io::duplex(16 * 1024);
    let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
    let origin = http::Uri::from_static("http://peer:1");
    let channel =
        Http2Channel::open(Box::new(ours), origin, Owner { tasks: &tasks, stop: &stop }).await.unwrap();
    let calling = tokio::spawn(call(channel, 1));
    let (mut from, mut to) = tokio::io::split(&mut theirs);
    // Empty settings, then every few seconds one more byte of window: a sign of life and no reply to anything.
    to.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap();
    let speaking = async {
        for _ in 0..60 {
            tokio::time::sleep(Duration::from_secs(5)).await;
            to.write_all(&[0, 0, 4, 8, 0, 0, 0, 0, 0, 0, 0, 0, 1]).await.unwrap();
        }
    };
    let listening = async {
        let mut preface = [0; 24];
        from.read_exact(&mut preface).await.unwrap();
        loop {
            let mut head = [0; 9];
            from.read_exact(&mut head).await.unwrap();
            assert_ne!(head[3], 6, "a ping");
            let mut body = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
            from.read_exact(&mut body).await.unwrap();
        }
    };
    tokio::select! {
        () = speaking => {}
        () = listening => {}
    }
    calling.abort();
}

/// With pings on an idle connection real etcd closed it after 24 s.
#[tokio::test(start_paused = true)]
async fn idle_connection_is_not_pinged() {
    let TestConnection { channel, peer, tasks, stop: _stop } = TestConnection::new().await;
    // It reads nothing, so that a ping would be its end.
    tokio::time::sleep(Duration::from_secs(3_600)).await;
    assert_eq!(tasks.len(), 1);
    let serving = tokio::spawn(serve(peer));
    call(channel, 1).await.unwrap();
    serving.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn last_channel_drop_ends_connection_task() {
    let TestConnection { channel, peer, tasks, stop: _stop } = TestConnection::new().await;
    let other = channel.clone();
    drop(channel);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(tasks.len(), 1, "another channel may still call");
    drop(other);
    // Even though the peer does not take the goodbye.
    timeout(CLOSE_GRACE * 2, tasks.wait()).await.unwrap();
    drop(peer);
}

#[tokio::test(start_paused = true)]
async fn unread_connection_task_still_ends() {
    let TestConnection { channel, peer, tasks, stop: _stop } = TestConnection::new().await;
    let calls: Vec<_> = (0..100).map(|_| tokio::spawn(call(channel.clone(), 10_000))).collect();
    tokio::task::yield_now().await;
    for call in calls {
        call.abort();
    }
    drop(channel);
    timeout(CLOSE_GRACE * 2, tasks.wait()).await.unwrap();
    drop(peer);
}

#[tokio::test(start_paused = true)]
async fn client_close_grants_in_flight_call_time() {
    let TestConnection { channel, mut peer, tasks, stop } = TestConnection::new().await;
    let (quick, slow) = (tokio::spawn(call(channel.clone(), 1)), tokio::spawn(call(channel, 1)));
    let (_, respond) = peer.accept().await.unwrap().unwrap();
    stop.cancel();
    tokio::time::sleep(CLOSE_GRACE / 2).await;
    reply(respond);
    let serving = tokio::spawn(async move { while peer.accept().await.is_some() {} });
    quick.await.unwrap().unwrap();
    timeout(CLOSE_GRACE, tasks.wait()).await.unwrap();
    slow.await.unwrap().unwrap_err();
    serving.await.unwrap();
}

#[tokio::test]
async fn stream_sends_before_first_reply() {
    let TestConnection { channel, mut peer, stop: _stop, .. } = TestConnection::new().await;
    let (requests, receiver) = mpsc::channel::<PutRequest>(4);
    let origin = channel.origin().clone();
    let streaming = tokio::spawn(async move {
        let stream = futures_util::stream::unfold(receiver, |mut receiver| async {
            receiver.recv().await.map(|request| (request, receiver))
        });
        let codec = ProstCodec::<PutRequest, PutResponse>::default();
        let path = PathAndQuery::from_static("/test/Stream");
        let request = tonic::Request::new(stream);
        let mut answers =
            Grpc::with_origin(channel, origin).streaming(request, path, codec).await?.into_inner();
        answers.message().await
    });
    let (request, respond) = peer.accept().await.unwrap().unwrap();
    let mut body = request.into_body();
    let moving = tokio::spawn(async move { while peer.accept().await.is_some() {} });
    // Before the head of the reply has come, and again and again.
    for _ in 0..3 {
        requests.send(PutRequest::default()).await.unwrap();
        assert_eq!(body.data().await.unwrap().unwrap().len(), 5);
    }
    // No more requests: the peer sees the end of them.
    drop(requests);
    while let Some(chunk) = body.data().await {
        assert_eq!(chunk.unwrap().len(), 0);
    }
    reply(respond);
    assert_eq!(streaming.await.unwrap().unwrap(), Some(PutResponse::default()));
    moving.await.unwrap();
}
