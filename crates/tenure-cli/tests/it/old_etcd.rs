//! The warning about an old etcd: one line, once a day, and never with `-q` or `--json`.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use crate::sandbox::Sandbox;

/// Replies to the first request of every connection with the status of etcd 3.5.1, and implements no other call. Its threads end with the
/// test's process.
fn old_etcd() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || drop(serve(stream)));
        }
    });
    address
}

/// An HTTP/2 frame: its length in three bytes, kind, flags, four bytes of stream id, then its payload.
fn frame(kind: u8, flags: u8, stream: [u8; 4], body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream, body].concat()
}

/// A header as HPACK writes it without a table: a zero, then name and value, each after its length.
fn header(name: &str, value: &str) -> Vec<u8> {
    let length = |text: &str| u8::try_from(text.len()).unwrap();
    [&[0, length(name)], name.as_bytes(), &[length(value)], value.as_bytes()].concat()
}

fn serve(mut stream: TcpStream) -> std::io::Result<()> {
    const PREFACE: usize = 24;
    const DATA: u8 = 0;
    const HEADERS: u8 = 1;
    const SETTINGS: u8 = 4;
    const PING: u8 = 6;
    /// The flags END_STREAM and END_HEADERS. ACK of a ping or of settings has the value of the first one.
    const END_STREAM: u8 = 1;
    const END_HEADERS: u8 = 4;
    /// `:status 200`, as HPACK's own table has it.
    const OK: u8 = 0x80 | 8;
    /// A cluster and a member in the header, and the version: fields 1 and 2 of the status, after the length of the message.
    const STATUS: &[u8] = b"\0\0\0\0\x0d\x0a\x04\x08\x07\x10\x01\x12\x053.5.1";
    stream.read_exact(&mut [0; PREFACE])?;
    stream.write_all(&frame(SETTINGS, 0, [0; 4], &[]))?;
    let mut is_first = true;
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head)?;
        let [a, b, c, kind, flags, id @ ..] = head;
        let mut body = vec![0; usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c)];
        stream.read_exact(&mut body)?;
        let is_request = kind == DATA && flags & END_STREAM != 0;
        let reply = match kind {
            DATA if is_request && std::mem::take(&mut is_first) => [
                frame(
                    HEADERS,
                    END_HEADERS,
                    id,
                    &[&[OK][..], &header("content-type", "application/grpc")].concat(),
                ),
                frame(DATA, 0, id, STATUS),
                frame(HEADERS, END_HEADERS | END_STREAM, id, &header("grpc-status", "0")),
            ]
            .concat(),
            DATA if is_request => {
                let headers =
                    [&[OK][..], &header("content-type", "application/grpc"), &header("grpc-status", "12")];
                frame(HEADERS, END_HEADERS | END_STREAM, id, &headers.concat())
            }
            SETTINGS if flags & END_STREAM == 0 => frame(SETTINGS, END_STREAM, [0; 4], &[]),
            PING if flags & END_STREAM == 0 => frame(PING, END_STREAM, id, &body),
            _ => continue,
        };
        stream.write_all(&reply)?;
    }
}

#[tokio::test]
async fn old_etcd_warning_appears_once_per_day() {
    let address = old_etcd();
    let sandbox = Sandbox::without_user().with("TENURE_ENDPOINTS", &address).with("PATH", "/usr/bin:/bin");
    let warnings = async |sandbox: &Sandbox, args: &[&str]| -> Vec<String> {
        let ran = sandbox.run(args).await;
        assert!(ran.code != Some(0), "the server knows no call: {ran:?}");
        ran.stderr.lines().filter(|line| line.contains("defects")).map(str::to_owned).collect()
    };
    assert_eq!(warnings(&sandbox, &["kv", "get", "/a", "--json"]).await, [""; 0], "never with --json");
    assert_eq!(warnings(&sandbox, &["lock", "a", "-q", "--", "true"]).await, [""; 0], "never with -q");
    let lines = warnings(&sandbox, &["kv", "get", "/a"]).await;
    assert_eq!(lines.len(), 1, "{lines:?}");
    let line = &lines[0];
    assert!(line.len() < 200 && line.contains("3.5.1") && line.contains(&address), "{line}");
    assert!(line.contains("tenure doctor"), "{line}");
    assert_eq!(warnings(&sandbox, &["kv", "get", "/a"]).await, [""; 0], "once a day");
    let other = Sandbox::without_user().with("TENURE_ENDPOINTS", &address);
    assert_eq!(warnings(&other, &["kv", "get", "/a"]).await.len(), 1, "another user");
    // A home that cannot be written is no failure; the next run warns again.
    let homeless =
        Sandbox::without_user().with("TENURE_ENDPOINTS", &address).with("XDG_CACHE_HOME", "/proc/none");
    assert_eq!(warnings(&homeless, &["kv", "get", "/a"]).await.len(), 1);
    assert_eq!(warnings(&homeless, &["kv", "get", "/a"]).await.len(), 1);
}
