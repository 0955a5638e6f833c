//! Reads passwords: from a file that only its owner can read, from a variable, or from the terminal without echo.

use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

use super::source::Hidden;
use crate::failure::{Code, Failure};

/// No password is longer; a longer file was named by mistake.
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// Reads a password file, on a blocking thread because it may be a pipe without data yet.
pub(crate) async fn read_file(path: PathBuf) -> Result<Hidden, Failure> {
    let reading = tokio::task::spawn_blocking(move || read(&path));
    reading
        .await
        .map_err(|error| Failure::new(Code::Failed, format!("reading the password file failed: {error}")))?
}

/// Reads the file without one line break at its end.
fn read(path: &Path) -> Result<Hidden, Failure> {
    let name = path.display();
    const NEXT: &str = "name another file with --password-file or TENURE_PASSWORD_FILE";
    let unreadable = |error: io::Error| {
        Failure::usage(format!("the password file {name} cannot be read: {error}"))
            .hint(format!("check its permissions with `ls -l`, or {NEXT}"))
    };
    let file = File::open(path).map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    if metadata.is_dir() {
        return Err(Failure::usage(format!("the password file {name} is a folder")).hint(NEXT));
    }
    if metadata.mode() & 0o077 != 0 {
        return Err(Failure::usage(format!(
            "the password file {name} can be read by other users (mode {:04o})",
            metadata.mode() & 0o7777
        ))
        .hint(format!("run: chmod 600 {name}")));
    }
    let mut text = String::new();
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(unreadable)?;
    if u64::try_from(text.len()).is_ok_and(|len| len > FILE_BYTES_MAX) {
        return Err(
            Failure::usage(format!("the password file {name} is longer than any password")).hint(NEXT)
        );
    }
    let text = text.strip_suffix('\n').unwrap_or(&text);
    let text = text.strip_suffix('\r').unwrap_or(text);
    if text.is_empty() {
        return Err(Failure::usage(format!("the password file {name} is empty")).hint(NEXT));
    }
    Ok(Hidden(text.to_owned()))
}

/// Prompts for a password on the terminal.
///
/// # Cancellation
///
/// Dropping the future turns the echo of the terminal on again.
pub(crate) async fn prompt(user: &str) -> Result<Hidden, Failure> {
    let no_terminal = || {
        Failure::usage(format!(
            "no password is given for the user {user}, and there is no terminal to prompt on"
        ))
        .hint("use --password-file, TENURE_PASSWORD_FILE or ETCDCTL_PASSWORD")
    };
    if !io::stderr().is_terminal() {
        return Err(no_terminal());
    }
    let terminal = File::options().read(true).write(true).open("/dev/tty").map_err(|_| no_terminal())?;
    let reader = terminal.try_clone().map_err(|_| no_terminal())?;
    let mut echo_off = EchoOff::begin(terminal).map_err(|_| no_terminal())?;
    let shown = crate::output::escape(user.as_bytes());
    let _ = write!(echo_off.terminal, "Password for {shown}: ");
    let line = tokio::task::spawn_blocking(move || {
        let mut line = String::new();
        BufReader::new(reader).read_line(&mut line).map(|_| line)
    });
    let line = line.await.map_err(|_| no_terminal())?.map_err(|_| no_terminal())?;
    let password = line.trim_end_matches(['\n', '\r']);
    if password.is_empty() {
        return Err(Failure::new(Code::Usage, "no password was typed"));
    }
    Ok(Hidden(password.to_owned()))
}

/// Turns the echo of the terminal off until it is dropped.
struct EchoOff {
    terminal: File,
    before: Termios,
}

impl EchoOff {
    fn begin(terminal: File) -> io::Result<EchoOff> {
        let before = tcgetattr(&terminal)?;
        let mut silent = before.clone();
        silent.local_modes.remove(LocalModes::ECHO);
        tcsetattr(&terminal, OptionalActions::Flush, &silent)?;
        Ok(EchoOff { terminal, before })
    }
}

impl Drop for EchoOff {
    fn drop(&mut self) {
        // Fails only if the terminal is gone.
        let _ = tcsetattr(&self.terminal, OptionalActions::Flush, &self.before);
        let _ = writeln!(self.terminal);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn file(text: &str, mode: u32) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(mode)).unwrap();
        file
    }

    #[test]
    fn password_file_loses_one_line_break() {
        for (text, password) in [("pw", "pw"), ("pw\n", "pw"), ("pw\r\n", "pw"), (" p w \n\n", " p w \n")] {
            assert_eq!(read(file(text, 0o600).path()).unwrap().0, password);
        }
    }

    #[test]
    fn password_file_readable_by_others_is_refused() {
        for mode in [0o644, 0o640, 0o604, 0o620] {
            let failure = read(file("canary", mode).path()).unwrap_err();
            assert!(failure.hint.as_deref().unwrap_or_default().contains("chmod 600"), "{failure:?}");
            assert!(!format!("{failure:?}").contains("canary"));
        }
        assert!(read(file("pw", 0o400).path()).is_ok());
    }

    #[test]
    fn empty_missing_or_folder_password_is_refused() {
        assert!(read(file("", 0o600).path()).is_err());
        assert!(read(Path::new("/nowhere/at/all")).is_err());
        assert!(read(tempfile::tempdir().unwrap().path()).is_err());
    }
}
