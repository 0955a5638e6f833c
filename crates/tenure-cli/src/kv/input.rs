//! Reading values and transactions from stdin and files, without standing in the way of Ctrl-C.

use std::fs::File;
use std::io::{self, Read, stdin};
use std::path::PathBuf;

use crate::failure::{Code, Failure};

/// Where it is read from.
pub(crate) enum InputSource {
    Stdin,
    File(PathBuf),
}

/// No engine takes more in one request than this; what is longer was named by mistake, and is not read into memory.
const BYTES_MAX: u64 = 64 * 1024 * 1024;

impl InputSource {
    /// Reads all of it, on a thread that may wait for as long as a person types.
    pub(crate) async fn read(self) -> Result<Vec<u8>, Failure> {
        let reading = tokio::task::spawn_blocking(move || match self {
            InputSource::Stdin => read_all("stdin", stdin()),
            InputSource::File(path) => {
                let name = path.display().to_string();
                read_all(&name, File::open(path).map_err(|error| unreadable(&name, &error))?)
            }
        });
        reading.await.map_err(|error| Failure::new(Code::Failed, format!("reading broke off: {error}")))?
    }
}

fn read_all(name: &str, reader: impl Read) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    reader.take(BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|error| unreadable(name, &error))?;
    if u64::try_from(bytes.len()).is_ok_and(|len| len > BYTES_MAX) {
        return Err(Failure::new(Code::Invalid, format!("{name} holds more than {BYTES_MAX} bytes"))
            .hint("keep large things elsewhere and store their address"));
    }
    Ok(bytes)
}

fn unreadable(name: &str, error: &io::Error) -> Failure {
    Failure::usage(format!("{name} cannot be read: {error}"))
}
