//! Each fault of links and clocks once, between probes instead of clients: a fault that changes nothing would prove nothing.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use tenure_fixture::sentinel::Sentinel;

use super::capabilities::Capabilities;
use super::network::{LinkImpairment, Network};
use super::wall_clock::{STEP_S, WallClock};
use crate::options::{EngineKind, Options};
use crate::probe::{self, ProbeCounts};

/// Any port: in a network of its own all are free.
const PORT: u16 = 7_777;

/// Injects each fault once, in the network that this process lives in, and returns what came
/// through during it and after it.
///
/// # Errors
///
/// What could not be done at all.
pub fn check_faults(options: &Options) -> Result<Vec<String>, String> {
    std::fs::create_dir_all(&options.folder).map_err(|error| error.to_string())?;
    let folder = std::path::absolute(&options.folder).map_err(|error| error.to_string())?;
    let network = Network::build(1, &folder)?;
    let capabilities =
        Capabilities::find(&Options { kind: EngineKind::Etcd, ..options.clone() }, Some(&network));
    let show = FaultCheck { network: &network, program: &options.program, folder };
    let mut lines: Vec<String> = Vec::new();
    let mut add = |name: &str, (during, after): (ProbeCounts, ProbeCounts)| {
        lines.push(format!("{name}: {during}; afterwards: {after}"));
    };
    type Doing = fn(&Network) -> Result<(), String>;
    let clients: [(&str, Doing); 5] = [
        ("silence", |network| network.mute(0, 0..3).and_then(|()| network.deafen(0))),
        ("silence-one", |network| network.mute(0, 0..1)),
        ("mute", |network| network.mute(0, 0..3)),
        ("deaf", |network| network.deafen(0)),
        ("unplug", |network| network.unplug(0)),
    ];
    for (name, doing) in clients {
        add(name, show.client(doing)?);
    }
    for shape in LinkImpairment::ALL.into_iter().filter(|shape| capabilities.can_shape(*shape)) {
        add(&format!("{shape:?}").to_lowercase(), show.client(|network| network.shape_client(0, shape))?);
    }
    add("wire m1 to m2", show.members((0, 1), (0, 1))?);
    add("wire m2 to m1, seen from m1", show.members((0, 1), (1, 0))?);
    if let Some(library) = capabilities.clock() {
        lines.push(show.clock(library)?);
    }
    lines.extend(capabilities.left_out.iter().map(|why| format!("LEFT OUT: {why}")));
    Ok(lines)
}

struct FaultCheck<'a> {
    network: &'a Network,
    program: &'a Path,
    folder: PathBuf,
}

impl FaultCheck<'_> {
    /// A client sends to the address of the first member.
    fn client(
        &self,
        doing: impl Fn(&Network) -> Result<(), String>,
    ) -> Result<(ProbeCounts, ProbeCounts), String> {
        let echo = self.echo(&[], Network::door(0));
        let seen = self.during(&self.network.client(0).enter, &echo, || doing(self.network));
        self.network.mend_all();
        let during = seen?;
        Ok((during, self.during(&self.network.client(0).enter, &echo, || Ok(()))?))
    }

    /// One member sends to another while a direction is cut.
    fn members(
        &self,
        (asks, is_asked): (usize, usize),
        (from, to): (usize, usize),
    ) -> Result<(ProbeCounts, ProbeCounts), String> {
        let at = self.network.member(is_asked);
        let echo = self.echo(&at.enter, at.ip);
        let enter = self.network.member(asks).enter;
        let seen = self.during(&enter, &echo, || self.network.cut_wire(from, to));
        self.network.mend_all();
        let during = seen?;
        Ok((during, self.during(&enter, &echo, || Ok(()))?))
    }

    fn clock(&self, library: &Path) -> Result<String, String> {
        let clock = WallClock::new(library, self.folder.join("shown.clock"))?;
        let mut besides = Vec::new();
        for set in [STEP_S, -STEP_S, 0] {
            clock.set(set)?;
            let words = clock.env_args();
            let output = std::process::Command::new(&words[0])
                .args(&words[1..])
                .arg(self.program)
                .arg("wall")
                .output()
                .map_err(|error| error.to_string())?;
            let theirs: i64 = String::from_utf8_lossy(&output.stdout).trim().parse().unwrap_or_default();
            let ours = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
            besides.push(format!(
                "{:+}",
                (theirs - i64::try_from(ours).unwrap_or_default() + 5).div_euclid(10) * 10
            ));
        }
        Ok(format!("clock-step: {} s", besides.join(", ")))
    }

    fn echo(&self, enter: &[std::ffi::OsString], at: Ipv4Addr) -> EchoProcess {
        let heard = self.folder.join("heard");
        // One from before would be counted as heard now.
        let _ = std::fs::remove_file(&heard);
        let addr = SocketAddr::from((at, PORT));
        let mut command = enter.to_vec();
        command.extend([self.program.into(), "echo".into(), addr.to_string().into(), heard.clone().into()]);
        let process = Sentinel::spawn(&self.folder.join("echo"), &self.folder.join("echo.log"), &command);
        EchoProcess { addr, heard, _process: process }
    }

    fn during(
        &self,
        enter: &[std::ffi::OsString],
        echo: &EchoProcess,
        doing: impl FnOnce() -> Result<(), String>,
    ) -> Result<ProbeCounts, String> {
        probe::await_echo(&echo.heard)?;
        doing()?;
        probe::run(enter, self.program, echo.addr, &echo.heard)
    }
}

struct EchoProcess {
    addr: SocketAddr,
    heard: PathBuf,
    _process: Sentinel,
}
