//! The file through which a task keeps its progress: laid down before it starts, read when it stops or when somebody asks.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use tenure::task::TaskContext;
use tenure_core::task::CHECKPOINT_BYTES_MAX;

/// The file of one run of one task. It is removed with this.
pub(super) struct CheckpointFile {
    path: PathBuf,
    /// What is stored, as far as is known.
    stored: Mutex<Bytes>,
}

impl CheckpointFile {
    /// Writes down what the last owner kept; an empty file if that is nothing.
    pub(super) fn create(folder: &Path, name: &str, stored: Option<&Bytes>) -> io::Result<CheckpointFile> {
        let path = folder.join(name);
        let stored = stored.cloned().unwrap_or_default();
        fs::write(&path, &stored)?;
        Ok(CheckpointFile { path, stored: Mutex::new(stored) })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// What the file says, if that is not what is stored. A file that the task has removed says nothing.
    pub(super) fn unsaved(&self) -> io::Result<Option<Bytes>> {
        let bytes = match self.read() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read?,
        };
        let is_news = *self.stored.lock().unwrap_or_else(PoisonError::into_inner) != bytes;
        Ok(is_news.then_some(bytes))
    }

    /// Stores what the file says, if that is news. The error is for people.
    pub(super) async fn save(&self, context: &TaskContext) -> Result<(), String> {
        let news = self.unsaved().map_err(|error| format!("its checkpoint file cannot be read: {error}"))?;
        let Some(bytes) = news else { return Ok(()) };
        context.save_checkpoint_bytes(bytes.clone()).await.map_err(|error| error.to_string())?;
        *self.stored.lock().unwrap_or_else(PoisonError::into_inner) = bytes;
        Ok(())
    }

    /// One byte more than may be stored is enough to be refused; whatever else a task puts in its place is not read.
    fn read(&self) -> io::Result<Bytes> {
        if !fs::symlink_metadata(&self.path)?.is_file() {
            return Err(io::Error::other("it is not a file"));
        }
        let limit = u64::try_from(CHECKPOINT_BYTES_MAX).unwrap_or(u64::MAX).saturating_add(1);
        let mut bytes = Vec::new();
        File::open(&self.path)?.take(limit).read_to_end(&mut bytes)?;
        Ok(bytes.into())
    }
}

impl Drop for CheckpointFile {
    fn drop(&mut self) {
        // The folder goes with the worker.
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_not_stored_yet_is_news() {
        let folder = tempfile::tempdir().unwrap();
        let progress = CheckpointFile::create(folder.path(), "1", Some(&Bytes::from_static(b"5"))).unwrap();
        assert_eq!(fs::read(progress.path()).unwrap(), b"5");
        assert_eq!(progress.unsaved().unwrap(), None);
        fs::write(progress.path(), "6").unwrap();
        assert_eq!(progress.unsaved().unwrap().as_deref(), Some(&b"6"[..]));
        fs::remove_file(progress.path()).unwrap();
        assert_eq!(progress.unsaved().unwrap(), None, "what was removed says nothing");
        fs::create_dir(progress.path()).unwrap();
        assert!(progress.unsaved().is_err());
    }

    #[test]
    fn a_file_of_any_size_is_read_only_as_far_as_it_matters() {
        let folder = tempfile::tempdir().unwrap();
        let progress = CheckpointFile::create(folder.path(), "1", None).unwrap();
        File::create(progress.path()).unwrap().set_len(1 << 40).unwrap();
        assert_eq!(progress.unsaved().unwrap().unwrap().len(), CHECKPOINT_BYTES_MAX + 1);
    }
}
