//! The checkpoint file of a task's process: written before it starts, read on a checkpoint request and after the process has ended.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use tenure::task::TaskContext;
use tenure_core::task::CHECKPOINT_BYTES_MAX;

/// The checkpoint file of one run of one task. Removed on drop.
pub(super) struct CheckpointFile {
    path: PathBuf,
    /// The stored checkpoint, as of the last read or save.
    stored: Mutex<Bytes>,
}

impl CheckpointFile {
    /// Writes the stored checkpoint into a new file; an empty file if there is none.
    pub(super) fn create(folder: &Path, name: &str, stored: Option<&Bytes>) -> io::Result<CheckpointFile> {
        let path = folder.join(name);
        let stored = stored.cloned().unwrap_or_default();
        fs::write(&path, &stored)?;
        Ok(CheckpointFile { path, stored: Mutex::new(stored) })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the content of the file if it differs from the stored checkpoint. `None` for a file that the task has removed.
    pub(super) fn unsaved(&self) -> io::Result<Option<Bytes>> {
        let bytes = match self.read() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read?,
        };
        let is_unsaved = *self.stored.lock().unwrap_or_else(PoisonError::into_inner) != bytes;
        Ok(is_unsaved.then_some(bytes))
    }

    /// Saves the content of the file if it differs from the stored checkpoint. The error is a message for the operator.
    pub(super) async fn save(&self, context: &TaskContext) -> Result<(), String> {
        let unsaved =
            self.unsaved().map_err(|error| format!("the checkpoint file cannot be read: {error}"))?;
        let Some(bytes) = unsaved else { return Ok(()) };
        context.save_checkpoint_bytes(bytes.clone()).await.map_err(|error| error.to_string())?;
        *self.stored.lock().unwrap_or_else(PoisonError::into_inner) = bytes;
        Ok(())
    }

    /// Reads one byte more than a checkpoint may have: that is enough to refuse the save, and a huge file is not read. Only a regular file is read.
    fn read(&self) -> io::Result<Bytes> {
        if !fs::symlink_metadata(&self.path)?.is_file() {
            return Err(io::Error::other("it is not a regular file"));
        }
        let limit = u64::try_from(CHECKPOINT_BYTES_MAX).unwrap_or(u64::MAX).saturating_add(1);
        let mut bytes = Vec::new();
        File::open(&self.path)?.take(limit).read_to_end(&mut bytes)?;
        Ok(bytes.into())
    }
}

impl Drop for CheckpointFile {
    fn drop(&mut self) {
        // A file that stays is removed with the folder.
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_changed_content_is_unsaved() {
        let folder = tempfile::tempdir().unwrap();
        let progress = CheckpointFile::create(folder.path(), "1", Some(&Bytes::from_static(b"5"))).unwrap();
        assert_eq!(fs::read(progress.path()).unwrap(), b"5");
        assert_eq!(progress.unsaved().unwrap(), None);
        fs::write(progress.path(), "6").unwrap();
        assert_eq!(progress.unsaved().unwrap().as_deref(), Some(&b"6"[..]));
        fs::remove_file(progress.path()).unwrap();
        assert_eq!(progress.unsaved().unwrap(), None, "a removed file has no content");
        fs::create_dir(progress.path()).unwrap();
        assert!(progress.unsaved().is_err());
    }

    #[test]
    fn huge_file_is_read_up_to_the_limit() {
        let folder = tempfile::tempdir().unwrap();
        let progress = CheckpointFile::create(folder.path(), "1", None).unwrap();
        File::create(progress.path()).unwrap().set_len(1 << 40).unwrap();
        assert_eq!(progress.unsaved().unwrap().unwrap().len(), CHECKPOINT_BYTES_MAX + 1);
    }
}
