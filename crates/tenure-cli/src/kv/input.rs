//! Reads values and transactions from stdin and files on a blocking thread, so that Ctrl-C still works.

use std::fs::File;
use std::io::{self, Read, stdin};
use std::path::PathBuf;

use crate::failure::{Code, Failure};

/// The source of an input.
pub(crate) enum InputSource {
    Stdin,
    File(PathBuf),
}

/// No engine accepts a larger request. A larger file was named by mistake and is not read into memory.
const BYTES_MAX: u64 = 64 * 1024 * 1024;

impl InputSource {
    /// Reads all bytes. The thread may wait while a person types.
    pub(crate) async fn read(self) -> Result<Vec<u8>, Failure> {
        let reading = tokio::task::spawn_blocking(move || match self {
            InputSource::Stdin => read_all("stdin", stdin()),
            InputSource::File(path) => {
                let name = path.display().to_string();
                read_all(&name, File::open(path).map_err(|error| unreadable(&name, &error))?)
            }
        });
        reading
            .await
            .map_err(|error| Failure::new(Code::Failed, format!("reading the input failed: {error}")))?
    }
}

fn read_all(name: &str, reader: impl Read) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    reader.take(BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|error| unreadable(name, &error))?;
    if u64::try_from(bytes.len()).is_ok_and(|len| len > BYTES_MAX) {
        return Err(Failure::new(Code::Invalid, format!("{name} has more than {BYTES_MAX} bytes"))
            .hint("store large data elsewhere, and its address here"));
    }
    Ok(bytes)
}

fn unreadable(name: &str, error: &io::Error) -> Failure {
    Failure::usage(format!("{name} cannot be read: {error}"))
}
