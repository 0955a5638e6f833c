//! Finds the command before a lock is acquired for it: a lock must not be held for a typing mistake.

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

use crate::failure::{Code, Failure};
use crate::output::escape;

/// The search path without `PATH`, that of the C library.
const PATH_DEFAULT: &str = "/bin:/usr/bin";

/// A command that exists and may be executed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Program {
    /// Its path.
    pub(crate) path: PathBuf,
    /// Its name as given, which it gets as argument 0.
    pub(crate) name: OsString,
}

impl Program {
    /// Looks a command up as a shell does. Fails with 127 if there is none, with 126 if it may not be executed.
    pub(crate) fn find(name: &OsStr) -> Result<Program, Failure> {
        Program::find_in(name, env::var_os("PATH").as_deref())
    }

    fn find_in(name: &OsStr, path: Option<&OsStr>) -> Result<Program, Failure> {
        let mut refused = None;
        for candidate in candidates(name, path.unwrap_or(OsStr::new(PATH_DEFAULT))) {
            match judge(&candidate) {
                LookupResult::Executable => return Ok(Program { path: candidate, name: name.to_owned() }),
                LookupResult::Refused(why) => refused = refused.or(Some((candidate, why))),
                LookupResult::Absent => {}
            }
        }
        let shown = escape(name.as_encoded_bytes());
        match refused {
            Some((path, why)) => Err(Failure::new(
                Code::NotExecutable,
                format!("{} {why}, so {shown} cannot be run", escape(path.as_os_str().as_encoded_bytes())),
            )
            .hint("check its mode with `ls -l`, or run it through its interpreter")),
            None => Err(not_found(name, &shown)),
        }
    }
}

/// The failure for an unknown command. A name with spaces is usually a whole shell line.
fn not_found(name: &OsStr, shown: &str) -> Failure {
    let failure =
        |why: &str| Failure::new(Code::CommandNotFound, format!("there is no command {shown}: {why}"));
    if name.as_encoded_bytes().contains(&b' ') {
        return failure("the whole text was looked up as the name of one program")
            .hint(format!("run it through a shell, as in `-- sh -c '{shown}'`"));
    }
    if name.as_encoded_bytes().contains(&b'/') {
        return failure("no such file").hint("check the path and the current folder; nothing was started");
    }
    failure("no folder of PATH has it")
        .hint("check its spelling and PATH, or give its path, as in ./job.sh; nothing was started")
}

enum LookupResult {
    Executable,
    Refused(&'static str),
    Absent,
}

/// The paths to try. A name with a slash is a path; any other is searched in each folder of `PATH`, where an empty one means the current folder.
fn candidates(name: &OsStr, path: &OsStr) -> Vec<PathBuf> {
    if name.is_empty() {
        return Vec::new();
    }
    if name.as_encoded_bytes().contains(&b'/') {
        return vec![PathBuf::from(name)];
    }
    env::split_paths(path)
        .map(
            |folder| {
                if folder.as_os_str().is_empty() { Path::new(".").join(name) } else { folder.join(name) }
            },
        )
        .collect()
}

fn judge(path: &Path) -> LookupResult {
    match std::fs::metadata(path) {
        Ok(found) if found.is_dir() => LookupResult::Refused("is a folder"),
        Ok(_) if access(path, Access::EXEC_OK).is_ok() => LookupResult::Executable,
        Ok(_) => LookupResult::Refused("may not be executed"),
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            LookupResult::Refused("may not be read")
        }
        Err(_) => LookupResult::Absent,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn code(found: Result<Program, Failure>) -> Result<PathBuf, Code> {
        found.map(|program| program.path).map_err(|failure| failure.code)
    }

    #[test]
    fn lookup_follows_path_as_shell() {
        let folder = tempfile::tempdir().unwrap();
        let (first, second) = (folder.path().join("1"), folder.path().join("2"));
        let create = |folder: &Path, name: &str, mode| {
            std::fs::create_dir_all(folder).unwrap();
            std::fs::write(folder.join(name), "").unwrap();
            std::fs::set_permissions(folder.join(name), PermissionsExt::from_mode(mode)).unwrap();
        };
        create(&first, "both", 0o644);
        create(&second, "both", 0o755);
        create(&first, "plain", 0o644);
        std::fs::create_dir_all(second.join("folder")).unwrap();
        let path = env::join_paths([Path::new("/nowhere"), &first, &second]).unwrap();
        let find = |name: &str| code(Program::find_in(OsStr::new(name), Some(&path)));
        assert_eq!(find("both"), Ok(second.join("both")), "a file without execute permission is skipped");
        assert_eq!(find("plain"), Err(Code::NotExecutable));
        assert_eq!(find("folder"), Err(Code::NotExecutable));
        for absent in ["", "absent", "./absent", "/nowhere/absent"] {
            assert_eq!(find(absent), Err(Code::CommandNotFound), "{absent:?}");
        }
        let whole = second.join("both");
        assert_eq!(find(whole.to_str().unwrap()), Ok(whole.clone()));
        assert_eq!(code(Program::find_in(OsStr::new("sh"), None)), Ok(PathBuf::from("/bin/sh")));
    }
}
