//! What this machine allows, and for what it does not, why, and how it could be allowed: part of
//! each report.

use std::path::{Path, PathBuf};

use super::network::{LinkImpairment, Network, way_in};
use crate::options::{EngineKind, Options};

/// Where distributions keep the library that lies about the time.
const LIBRARIES: [&str; 4] = [
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketime.so.1",
    "/usr/lib64/faketime/libfaketime.so.1",
    "/usr/lib/faketime/libfaketime.so.1",
];

/// What can be done here.
#[derive(Clone, Debug, Default)]
pub(super) struct Capabilities {
    network: bool,
    shapes: Vec<LinkImpairment>,
    clock: Option<PathBuf>,
    /// What cannot, one line each.
    pub(super) left_out: Vec<String>,
}

impl Capabilities {
    /// Finds out what is possible; with a network of its own, inside it.
    pub(super) fn find(options: &Options, network: Option<&Network>) -> Capabilities {
        let mut capabilities = Capabilities { network: network.is_some(), ..Capabilities::default() };
        capabilities.clock = LIBRARIES.iter().map(PathBuf::from).find(|path| path.is_file());
        if capabilities.clock.is_none() {
            capabilities.left_out.push(
                "clock-step: there is no libfaketime: `apt-get install libfaketime`; the simulation steps clocks".to_owned(),
            );
        }
        if options.kind == EngineKind::File {
            return capabilities;
        }
        capabilities.left_out.push(
            "clocks of members: etcd does not ask the C library for the time, and the clock of a shared machine must not be set"
                .to_owned(),
        );
        if options.auth {
            capabilities.left_out.push(
                "move-leader, no-space: the rig has no name at etcd's gateway; without --auth they are done"
                    .to_owned(),
            );
        }
        let Some(network) = network else {
            let why = match way_in() {
                Ok(_) => "not asked for".to_owned(),
                Err(why) => why,
            };
            capabilities.left_out.push(format!(
                "silence, silence-one, mute, deaf, unplug, loss, narrow, lag, reorder, duplicate: {why}; proxies cut, delay and lose instead, and wires among members"
            ));
            return capabilities;
        };
        let mut refused: Vec<(String, Vec<String>)> = Vec::new();
        for shape in LinkImpairment::ALL {
            let name = format!("{shape:?}").to_lowercase();
            match network.can(shape) {
                Ok(()) => capabilities.shapes.push(shape),
                Err(why) => {
                    let why = why.rsplit(" failed: ").next().unwrap_or_default().to_owned();
                    match refused.iter_mut().find(|(known, _)| *known == why) {
                        Some((_, names)) => names.push(name),
                        None => refused.push((why, vec![name])),
                    }
                }
            }
        }
        capabilities.left_out.extend(refused.into_iter().map(|(why, names)| {
            format!(
                "{}: {why} (tc of iproute2, a kernel with netem and tbf, or for loss nft of nftables)",
                names.join(", ")
            )
        }));
        capabilities
    }

    pub(super) fn has_network(&self) -> bool {
        self.network
    }

    pub(super) fn can_shape(&self, shape: LinkImpairment) -> bool {
        self.shapes.contains(&shape)
    }

    /// The library that lies about the time.
    pub(super) fn clock(&self) -> Option<&Path> {
        self.clock.as_deref()
    }
}
