//! Starting the command so that there is no moment in which it runs unguarded.
//!
//! Between starting a process and telling the sentinel about it we could be killed, and the process would stay. So what is started is
//! this program, as a reaper that starts a launcher, which does nothing but wait for a word on a socket; when the sentinel knows the tree,
//! the word is given and the launcher becomes the command. Without the word it ends.
//!
//! The socket is the launcher's standard input, because no other descriptor can be handed over without unsafe code;
//! the command's real standard input travels with the word.

use std::ffi::{OsStr, OsString};
use std::io::{self, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::AsyncReadExt;

use super::lookup::Program;
use super::process_tree::ProcessTree;
use crate::failure::{Code, Failure};
use crate::output::escape;

/// The word.
const GO: &[u8] = b"!";

/// This program, to be started once more. The kernel's own link survives an upgrade that exchanged the file.
pub(super) fn ourselves() -> io::Result<Command> {
    let link = Path::new("/proc/self/exe");
    let mut command = Command::new(if link.exists() { link.to_owned() } else { std::env::current_exe()? });
    command.arg0("tenure").arg("internal");
    Ok(command)
}

/// A process that will be the command, and its reaper.
pub(super) struct Launch {
    pub(super) tree: ProcessTree,
    socket: UnixStream,
}

impl Launch {
    /// Starts a reaper and a launcher that waits, in a group of its own.
    pub(super) async fn prepare(
        program: &Program,
        args: &[OsString],
        env: &[(&'static str, OsString)],
        stderr: Stdio,
        open_files: Option<u64>,
    ) -> io::Result<Launch> {
        let (socket, theirs) = UnixStream::pair()?;
        let mut reaper = ourselves()?;
        add_command(reaper.arg("reap"), &program.path, open_files);
        reaper.arg(&program.name).args(args);
        reaper.envs(env.iter().map(|(name, value)| (name, value))).stderr(stderr).process_group(0);
        let tree = ProcessTree::start(reaper, OwnedFd::from(theirs)).await?;
        Ok(Launch { tree, socket })
    }

    /// There will be no word: launcher and reaper end.
    pub(super) fn abort(self) {
        drop(self.socket);
        self.tree.abandon();
    }

    /// Gives the word and a standard input, and waits until the launcher has become the command or has failed to. One that has failed has ended, and
    /// is still to be reaped: until then its group is nobody else's.
    pub(super) async fn go(
        self,
        program: &Program,
        stdin: BorrowedFd<'_>,
    ) -> Result<ProcessTree, (Failure, ProcessTree)> {
        let Launch { tree, socket } = self;
        match send_go(socket, stdin).await {
            Ok(()) => Ok(tree),
            Err(error) => Err((cannot_run(program, &error), tree)),
        }
    }
}

/// The launcher, to be started by the reaper.
pub(super) fn command(path: &Path, open_files: Option<u64>, command: &[OsString]) -> io::Result<Command> {
    let mut launcher = ourselves()?;
    add_command(launcher.arg("launch"), path, open_files).args(command);
    Ok(launcher)
}

fn add_command<'a>(to: &'a mut Command, path: &Path, open_files: Option<u64>) -> &'a mut Command {
    to.arg(path);
    if let Some(limit) = open_files {
        to.arg("--open-files").arg(limit.to_string());
    }
    to.arg("--")
}

async fn send_go(socket: UnixStream, stdin: BorrowedFd<'_>) -> io::Result<()> {
    send_descriptor(&socket, &stdin)?;
    socket.set_nonblocking(true)?;
    let mut socket = tokio::net::UnixStream::from_std(socket)?;
    // The launcher's end closes when it becomes the command; words before that are the number of an error.
    let mut words = String::new();
    socket.read_to_string(&mut words).await?;
    match words.trim().parse() {
        Err(_) => Ok(()),
        Ok(number) => Err(io::Error::from_raw_os_error(number)),
    }
}

/// Sends the word with a descriptor, which [`receive`] takes at the other end.
pub(super) fn send_descriptor(socket: &UnixStream, descriptor: &impl AsFd) -> io::Result<()> {
    let descriptors = [descriptor.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    sendmsg(socket, &[IoSlice::new(GO)], &mut ancillary, SendFlags::empty())?;
    Ok(())
}

fn cannot_run(program: &Program, error: &io::Error) -> Failure {
    let shown = escape(program.path.as_os_str().as_encoded_bytes());
    let code = match error.kind() {
        io::ErrorKind::NotFound => Code::CommandNotFound,
        _ => Code::NotExecutable,
    };
    Failure::new(code, format!("{shown} cannot be run: {error}"))
        .hint("check it with `ls -l`, and that its interpreter exists")
}

/// As many files as we open at most, with a pipe for each of ten thousands of tasks. The limit may be far higher, and programs that close all they could have
/// open would take their time.
const OPEN_FILES_MAX: u64 = 65_536;

/// Lets us have as many files open as we may, for commands that each need one. Gives the limit that commands should have, which is the one
/// that we had; none if it stays.
pub(crate) fn raise_open_files() -> Option<u64> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let before = current?;
    let most = maximum.map_or(OPEN_FILES_MAX, |maximum| maximum.min(OPEN_FILES_MAX));
    if before >= most || setrlimit(Resource::Nofile, Rlimit { current: Some(most), maximum }).is_err() {
        return None;
    }
    Some(before)
}

/// The launcher's part: waits for the word and becomes the command.
pub(crate) fn run(path: &Path, command: &[OsString], open_files: Option<u64>) -> ExitCode {
    let Some((name, args)) = command.split_first() else { return ExitCode::from(2) };
    if open_files.is_some() {
        let maximum = getrlimit(Resource::Nofile).maximum;
        // Lowering is always allowed.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: open_files, maximum });
    }
    let Ok((mut socket, stdin)) = receive() else { return ExitCode::from(125) };
    let error = become_command(path, name, args, stdin);
    // If nobody hears it, nobody waits for the command either.
    let _ = writeln!(socket, "{}", error.raw_os_error().unwrap_or(0));
    ExitCode::from(126)
}

/// Waits for the word; an end without it is the end of whoever should have given it.
pub(super) fn receive() -> io::Result<(UnixStream, OwnedFd)> {
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    let mut word = [0; GO.len()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let got = loop {
        match recvmsg(&socket, &mut [IoSliceMut::new(&mut word)], &mut ancillary, RecvFlags::empty()) {
            Err(rustix::io::Errno::INTR) => {}
            got => break got?,
        }
    };
    let stdin = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut received) => received.next(),
        _ => None,
    });
    match stdin {
        Some(stdin) if got.bytes == GO.len() => {
            fcntl_setfd(&stdin, FdFlags::CLOEXEC)?;
            Ok((UnixStream::from(socket), stdin))
        }
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

fn become_command(path: &Path, name: &OsStr, args: &[OsString], stdin: OwnedFd) -> io::Error {
    Command::new(PathBuf::from(path)).arg0(name).args(args).stdin(Stdio::from(stdin)).exec()
}
