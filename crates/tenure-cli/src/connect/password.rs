//! Passwords: from a file that only its owner can read, from a variable, or typed without echo.

use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

use super::source::Hidden;
use crate::failure::{Code, Failure};

/// No password is longer; a file that is was named by mistake.
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// Reads a password file, which may be a pipe that somebody has yet to write to.
pub(crate) async fn read_file(path: PathBuf) -> Result<Hidden, Failure> {
    let reading = tokio::task::spawn_blocking(move || read(&path));
    reading.await.map_err(|error| Failure::new(Code::Failed, format!("reading broke off: {error}")))?
}

/// One line break at the end does not belong to the password.
fn read(path: &Path) -> Result<Hidden, Failure> {
    let name = path.display();
    const NEXT: &str = "name another one with --password-file or TENURE_PASSWORD_FILE";
    let trouble = |error: io::Error| {
        Failure::usage(format!("the password file {name} cannot be read: {error}"))
            .hint(format!("see whether you may read it, or {NEXT}"))
    };
    let file = File::open(path).map_err(trouble)?;
    let metadata = file.metadata().map_err(trouble)?;
    if metadata.is_dir() {
        return Err(Failure::usage(format!("the password file {name} is a folder")).hint(NEXT));
    }
    if metadata.mode() & 0o077 != 0 {
        return Err(Failure::usage(format!(
            "the password file {name} can be read by others (mode {:04o})",
            metadata.mode() & 0o7777
        ))
        .hint(format!("run: chmod 600 {name}")));
    }
    let mut text = String::new();
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(trouble)?;
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

/// Asks whoever sits at the terminal.
///
/// # Cancellation
///
/// Dropping the future gives the terminal its echo back.
pub(crate) async fn prompt(user: &str) -> Result<Hidden, Failure> {
    let nobody = || {
        Failure::usage(format!(
            "no password is given for the user {user}, and there is no terminal to ask at"
        ))
        .hint("use --password-file, TENURE_PASSWORD_FILE or ETCDCTL_PASSWORD")
    };
    if !io::stderr().is_terminal() {
        return Err(nobody());
    }
    let terminal = File::options().read(true).write(true).open("/dev/tty").map_err(|_| nobody())?;
    let reader = terminal.try_clone().map_err(|_| nobody())?;
    let mut silence = Silence::begin(terminal).map_err(|_| nobody())?;
    let shown = crate::output::escape(user.as_bytes());
    let _ = write!(silence.terminal, "Password for {shown}: ");
    let line = tokio::task::spawn_blocking(move || {
        let mut line = String::new();
        BufReader::new(reader).read_line(&mut line).map(|_| line)
    });
    let line = line.await.map_err(|_| nobody())?.map_err(|_| nobody())?;
    let password = line.trim_end_matches(['\n', '\r']);
    if password.is_empty() {
        return Err(Failure::new(Code::Usage, "no password was typed"));
    }
    Ok(Hidden(password.to_owned()))
}

/// While it lives the terminal does not echo.
struct Silence {
    terminal: File,
    before: Termios,
}

impl Silence {
    fn begin(terminal: File) -> io::Result<Silence> {
        let before = tcgetattr(&terminal)?;
        let mut silent = before.clone();
        silent.local_modes.remove(LocalModes::ECHO);
        tcsetattr(&terminal, OptionalActions::Flush, &silent)?;
        Ok(Silence { terminal, before })
    }
}

impl Drop for Silence {
    fn drop(&mut self) {
        // A terminal that is gone needs no echo.
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
    fn a_password_file_loses_one_line_break_and_nothing_else() {
        for (text, password) in [("pw", "pw"), ("pw\n", "pw"), ("pw\r\n", "pw"), (" p w \n\n", " p w \n")] {
            assert_eq!(read(file(text, 0o600).path()).unwrap().0, password);
        }
    }

    #[test]
    fn a_password_file_that_others_can_read_is_refused() {
        for mode in [0o644, 0o640, 0o604, 0o620] {
            let failure = read(file("canary", mode).path()).unwrap_err();
            assert!(failure.hint.as_deref().unwrap_or_default().contains("chmod 600"), "{failure:?}");
            assert!(!format!("{failure:?}").contains("canary"));
        }
        assert!(read(file("pw", 0o400).path()).is_ok());
    }

    #[test]
    fn a_password_file_that_is_empty_missing_or_a_folder_is_refused() {
        assert!(read(file("", 0o600).path()).is_err());
        assert!(read(Path::new("/nowhere/at/all")).is_err());
        assert!(read(tempfile::tempdir().unwrap().path()).is_err());
    }
}
