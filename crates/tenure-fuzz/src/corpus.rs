//! Inputs that are kept: `fuzz/<target>/` beside a crate's manifest, one input a file.

use std::io;
use std::path::{Path, PathBuf};

/// The kept inputs of one target.
#[derive(Clone, Debug)]
pub struct Corpus {
    folder: PathBuf,
}

impl Corpus {
    /// The inputs of a crate with its manifest in this folder.
    pub fn of(manifest_folder: &str, target: &str) -> Corpus {
        Corpus { folder: Path::new(manifest_folder).join("fuzz").join(target) }
    }

    /// All inputs, by the names of their files.
    ///
    /// # Errors
    ///
    /// If there is no such folder, or it cannot be read: a target without inputs tries next to nothing.
    pub fn read(&self) -> io::Result<Vec<(String, Vec<u8>)>> {
        let mut inputs = Vec::new();
        for entry in std::fs::read_dir(&self.folder)? {
            let entry = entry?;
            inputs.push((entry.file_name().to_string_lossy().into_owned(), std::fs::read(entry.path())?));
        }
        // The order of a folder is the file system's; that of a run follows from its seed alone.
        inputs.sort();
        Ok(inputs)
    }

    /// Keeps an input that broke something, under a name that follows from it.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn keep(&self, input: &[u8]) -> io::Result<PathBuf> {
        std::fs::create_dir_all(&self.folder)?;
        let path = self.folder.join(format!("found-{:016x}", digest(input)));
        std::fs::write(&path, input)?;
        Ok(path)
    }
}

/// FNV-1a: a name, not a proof.
fn digest(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn corpus_is_read_in_name_order() {
        let folder = std::env::temp_dir().join(format!("tenure-corpus-{}", std::process::id()));
        let corpus = Corpus::of(folder.to_str().unwrap(), "keys");
        assert!(corpus.read().is_err(), "a folder that is not there is no empty one");
        let path = corpus.keep(b"a\xff").unwrap();
        corpus.keep(b"b").unwrap();
        let inputs = corpus.read().unwrap();
        assert_eq!(inputs.len(), 2);
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(inputs.contains(&(name.to_owned(), b"a\xff".to_vec())));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
