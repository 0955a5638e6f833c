//! Starts the command so that it never runs without a guarding sentinel.
//!
//! If the supervisor were killed between the start of a process and its registration with the sentinel, the process would stay. So the supervisor first
//! starts this program as a reaper, and the reaper starts a launcher, which waits for a message on a socket. The supervisor sends the message once the
//! sentinel guards the tree; then the launcher becomes the command. If the socket closes without the message, the launcher ends.
//!
//! The socket is the launcher's standard input, because no other descriptor can be passed to a child without unsafe code.
//! The message carries the command's real standard input.

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

/// The message that lets the launcher become the command.
const GO: &[u8] = b"!";

/// This program, for a helper process. The kernel's link still works after an upgrade has replaced the file.
pub(super) fn ourselves() -> io::Result<Command> {
    let link = Path::new("/proc/self/exe");
    let mut command = Command::new(if link.exists() { link.to_owned() } else { std::env::current_exe()? });
    command.arg0("tenure").arg("internal");
    Ok(command)
}

/// A launcher that will become the command, and its reaper.
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
        let (socket, launcher_end) = UnixStream::pair()?;
        let mut reaper = ourselves()?;
        add_command(reaper.arg("reap"), &program.path, open_files);
        reaper.arg(&program.name).args(args);
        reaper.envs(env.iter().map(|(name, value)| (name, value))).stderr(stderr).process_group(0);
        let tree = ProcessTree::start(reaper, OwnedFd::from(launcher_end)).await?;
        Ok(Launch { tree, socket })
    }

    /// Ends launcher and reaper without running the command.
    pub(super) fn abort(self) {
        drop(self.socket);
        self.tree.abandon();
    }

    /// Lets the launcher become the command, with a standard input, and waits until it has or has failed. A failed launcher has ended and is not reaped yet,
    /// so its group's number still belongs to it.
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
    // The launcher's end of the socket closes on exec. Text before that is the number of an error.
    let mut text = String::new();
    socket.read_to_string(&mut text).await?;
    match text.trim().parse() {
        Err(_) => Ok(()),
        Ok(number) => Err(io::Error::from_raw_os_error(number)),
    }
}

/// Sends the message with a descriptor, which [`receive`] returns at the other end.
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

/// The largest limit that this process sets: enough for a pipe to each of tens of thousands of tasks. The hard limit may be far higher, and
/// programs that close every possible descriptor would then start slowly.
const OPEN_FILES_MAX: u64 = 65_536;

/// Raises this process's limit of open files, because each command needs a descriptor. Returns the former limit, which commands should have; `None`
/// if the limit is unchanged.
pub(crate) fn raise_open_files() -> Option<u64> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let before = current?;
    let most = maximum.map_or(OPEN_FILES_MAX, |maximum| maximum.min(OPEN_FILES_MAX));
    if before >= most || setrlimit(Resource::Nofile, Rlimit { current: Some(most), maximum }).is_err() {
        return None;
    }
    Some(before)
}

/// Runs the launcher: waits for the message and becomes the command.
pub(crate) fn run(path: &Path, command: &[OsString], open_files: Option<u64>) -> ExitCode {
    let Some((name, args)) = command.split_first() else { return ExitCode::from(2) };
    if open_files.is_some() {
        let maximum = getrlimit(Resource::Nofile).maximum;
        // Lowering is always allowed.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: open_files, maximum });
    }
    let Ok((mut socket, stdin)) = receive() else { return ExitCode::from(125) };
    let error = become_command(path, name, args, stdin);
    // If this write fails, the supervisor is gone and waits for no command.
    let _ = writeln!(socket, "{}", error.raw_os_error().unwrap_or(0));
    ExitCode::from(126)
}

/// Waits for the message. An end of the socket without it means that the sender has ended.
pub(super) fn receive() -> io::Result<(UnixStream, OwnedFd)> {
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    let mut message = [0; GO.len()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let got = loop {
        match recvmsg(&socket, &mut [IoSliceMut::new(&mut message)], &mut ancillary, RecvFlags::empty()) {
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
