//! Servers that are not etcd: reported differently from etcd and from a mistake of the caller.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use crate::sandbox::Sandbox;

/// An HTTP/2 server that replies 404 to every request. Its thread ends with the test's process.
fn http2_server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // A closed connection ends the thread with an error, which is expected.
            std::thread::spawn(move || drop(serve_not_found(stream)));
        }
    });
    address
}

/// Replies 404 to every request. A frame has its length in three bytes, kind, flags, four bytes of stream id, then its payload.
fn serve_not_found(mut stream: TcpStream) -> std::io::Result<()> {
    const PREFACE: usize = 24;
    const HEADERS: u8 = 1;
    const SETTINGS: u8 = 4;
    const PING: u8 = 6;
    const ACKNOWLEDGED: u8 = 1;
    /// END_STREAM and END_HEADERS.
    const END: u8 = 1 | 4;
    /// `:status 404`, as HPACK's own table has it.
    const NOT_FOUND: u8 = 0x80 | 13;
    stream.read_exact(&mut [0; PREFACE])?;
    stream.write_all(&[0, 0, 0, SETTINGS, 0, 0, 0, 0, 0])?;
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head)?;
        let [a, b, c, kind, flags, id @ ..] = head;
        let mut body = vec![0; usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c)];
        stream.read_exact(&mut body)?;
        let reply = match kind {
            HEADERS => [&[0, 0, 1, HEADERS, END], &id[..], &[NOT_FOUND]].concat(),
            SETTINGS if flags & ACKNOWLEDGED == 0 => vec![0, 0, 0, SETTINGS, ACKNOWLEDGED, 0, 0, 0, 0],
            PING if flags & ACKNOWLEDGED == 0 => [&[a, b, c, PING, ACKNOWLEDGED], &id[..], &body].concat(),
            _ => continue,
        };
        stream.write_all(&reply)?;
    }
}

/// The exit code was once 2, as for a malformed request.
#[tokio::test]
async fn foreign_server_exits_5_with_etcd_hint() {
    let sandbox = Sandbox::new().with("TENURE_ENDPOINTS", http2_server()).with("PATH", "/usr/bin:/bin");
    let marker = sandbox.path("marker");
    for (args, code) in [
        (&["locks", "ls"][..], 5),
        (&["election", "watch", "a"], 5),
        (&["kv", "get", "/a"], 5),
        (&["kv", "put", "/a", "1"], 5),
        (&["lock", "a", "--", "touch", &marker], 125),
    ] {
        let ran = sandbox.run(args).await;
        assert_eq!(ran.code, Some(code), "{args:?} {ran:?}");
        assert!(ran.stderr.contains("is that an etcd"), "{args:?} {ran:?}");
    }
    assert!(!std::path::Path::new(&marker).exists());
}
