//! Which store, and where each setting came from: one pure decision over flags, variables and files.
//!
//! Flags beat `TENURE_*`, which beat `ETCDCTL_*`, which beat the user's file, which beats the machine's; with nothing configured it is
//! the embedded store. `store` and `endpoints` are two ways to say one thing, so the first layer that says either has said it.
//!
//! **Invariant**: a store that was configured is never exchanged for another one.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use serde::Serialize;
use tenure::Identity;
use tenure::store::{StoreUrl, Transport};
use tenure_core::id::Namespace;
use tenure_core::layout;

use super::address;
use super::retry::ConnectRetry;
use crate::failure::{Code, Failure};
use crate::output::escape;

/// Everything that can be configured.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Setting {
    Store,
    Endpoints,
    Namespace,
    Cacert,
    Cert,
    Key,
    User,
    Password,
    PasswordFile,
    Node,
}

impl Setting {
    pub(crate) const ALL: [Setting; 10] = [
        Setting::Store,
        Setting::Endpoints,
        Setting::Namespace,
        Setting::Cacert,
        Setting::Cert,
        Setting::Key,
        Setting::User,
        Setting::Password,
        Setting::PasswordFile,
        Setting::Node,
    ];

    /// Its name in files and listings.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Setting::Store => "store",
            Setting::Endpoints => "endpoints",
            Setting::Namespace => "namespace",
            Setting::Cacert => "cacert",
            Setting::Cert => "cert",
            Setting::Key => "key",
            Setting::User => "user",
            Setting::Password => "password",
            Setting::PasswordFile => "password_file",
            Setting::Node => "node",
        }
    }

    /// Its variable with this prefix.
    fn variable(self, prefix: &str) -> String {
        format!("{prefix}_{}", self.name().to_uppercase())
    }

    /// All variables that are read.
    pub(super) fn variables() -> Vec<String> {
        let tenure = Setting::ALL.into_iter().filter(|setting| setting.may_come_from_tenure_variables());
        let etcdctl = Setting::ALL.into_iter().filter(|setting| setting.may_come_from_etcdctl_variables());
        let names = tenure.map(|setting| setting.variable("TENURE"));
        names.chain(etcdctl.map(|setting| setting.variable("ETCDCTL"))).collect()
    }

    /// A password on a command line or in a shared file would be read by others.
    fn may_come_from_tenure_variables(self) -> bool {
        self != Setting::Password
    }

    /// What etcdctl knows.
    fn may_come_from_etcdctl_variables(self) -> bool {
        matches!(
            self,
            Setting::Endpoints
                | Setting::Cacert
                | Setting::Cert
                | Setting::Key
                | Setting::User
                | Setting::Password
        )
    }
}

/// Where a value came from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Origin {
    Flag(String),
    Variable(String),
    File(PathBuf),
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Flag(name) | Origin::Variable(name) => f.write_str(name),
            Origin::File(path) => write!(f, "{}", path.display()),
            Origin::Default => f.write_str("default"),
        }
    }
}

impl Serialize for Origin {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A value and where it came from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Sourced<T> {
    pub(crate) value: T,
    pub(crate) origin: Origin,
}

/// A text that is never shown.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Hidden(pub(crate) String);

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(set)")
    }
}

/// Where the password is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Password {
    Text(Hidden),
    File(PathBuf),
}

/// The values of one flag set or file.
pub(crate) type Values = BTreeMap<Setting, String>;

/// All that the decision depends on. Variables may hold passwords, so it cannot be printed.
#[derive(Clone, Default)]
pub(crate) struct Sources {
    pub(crate) flags: Values,
    /// `--local`: the embedded store, said out loud.
    pub(crate) is_local: bool,
    pub(crate) env: BTreeMap<String, String>,
    /// The user's, then the machine's.
    pub(crate) files: Vec<(PathBuf, Values)>,
}

/// What was decided.
#[derive(Clone, Debug)]
pub(crate) struct ConnectSettings {
    /// The store, or why there is none to use.
    pub(crate) store: Result<Sourced<StoreUrl>, Failure>,
    pub(crate) namespace: Sourced<Namespace>,
    pub(crate) cacert: Option<Sourced<PathBuf>>,
    pub(crate) cert: Option<Sourced<PathBuf>>,
    pub(crate) key: Option<Sourced<PathBuf>>,
    pub(crate) user: Option<Sourced<String>>,
    pub(crate) password: Option<Sourced<Password>>,
    pub(crate) node: Option<Sourced<String>>,
    /// What the user should hear about the decision.
    pub(crate) notes: Vec<String>,
    /// How long opening may take.
    pub(crate) retry: ConnectRetry,
}

/// Variables that indicate an unattended machine: no person reads stderr, and a store of this machine alone is rarely intended.
const UNATTENDED: [&str; 3] = ["INVOCATION_ID", "KUBERNETES_SERVICE_HOST", "CI"];

/// The default namespace.
const NAMESPACE: &str = "tenure";

/// How much of a command others see in listings.
const COMMAND_CHARS_MAX: usize = 200;

impl ConnectSettings {
    /// The identity of this process, with the configured node name and the command that it runs.
    pub(crate) fn identity(&self, command: &[OsString]) -> Identity {
        let own = tenure::identity::current();
        let words: Vec<String> = command.iter().map(|word| escape(word.as_encoded_bytes())).collect();
        let mut program = words.join(" ");
        if let Some((end, _)) = program.char_indices().nth(COMMAND_CHARS_MAX) {
            program.truncate(end);
            program.push('…');
        }
        let node = self.node.as_ref().map_or(own.node, |node| node.value.clone());
        Identity { node, program, ..own }
    }

    /// The identity of this process in audit records: the program is `tenure`.
    pub(crate) fn actor(&self) -> Identity {
        Identity { program: "tenure".to_owned(), ..self.identity(&[]) }
    }

    /// The user and the node, as the sender of commands.
    pub(crate) fn sender(&self) -> String {
        let Identity { user, node, .. } = self.identity(&[]);
        format!("{user}@{node}")
    }
}

/// Decides.
pub(crate) fn decide(sources: &Sources) -> Result<ConnectSettings, Failure> {
    let layers = layers(sources);
    let pick = |setting| layers.iter().find_map(|layer| layer.get(setting));
    let path = |setting| pick(setting).map(|found| found.map(PathBuf::from));
    let Credentials { user, password } = credentials(&layers)?;
    let mut notes = Vec::new();
    let has_tls_files =
        [Setting::Cacert, Setting::Cert, Setting::Key].into_iter().any(|setting| pick(setting).is_some());
    if let (Some(one), None) | (None, Some(one)) = (pick(Setting::Cert), pick(Setting::Key)) {
        return Err(Failure::usage(format!(
            "a client certificate and its key belong together, but only one is set (by {})",
            one.origin
        ))
        .hint("give both --cert and --key, or neither"));
    }
    let namespace =
        pick(Setting::Namespace).unwrap_or(Sourced { value: NAMESPACE.into(), origin: Origin::Default });
    let parsed = Namespace::parse(&namespace.value).map_err(|error| {
        Failure::usage(format!(
            "invalid namespace {:?} (from {}): {error}",
            namespace.value, namespace.origin
        ))
        .hint("use one like shop or shop/eu")
    })?;
    let namespace = namespace.map(|_| parsed);
    let store = choose_store(sources, &layers, &namespace.value, has_tls_files, &mut notes);
    Ok(ConnectSettings {
        store,
        namespace,
        cacert: path(Setting::Cacert),
        cert: path(Setting::Cert),
        key: path(Setting::Key),
        user,
        password,
        node: pick(Setting::Node),
        notes,
        retry: ConnectRetry::default(),
    })
}

impl<T> Sourced<T> {
    fn map<U>(self, change: impl FnOnce(T) -> U) -> Sourced<U> {
        Sourced { value: change(self.value), origin: self.origin }
    }
}

/// Settings of one rank.
struct Layer {
    values: BTreeMap<Setting, (String, Origin)>,
}

impl Layer {
    fn get(&self, setting: Setting) -> Option<Sourced<String>> {
        let (value, origin) = self.values.get(&setting)?;
        Some(Sourced { value: value.clone(), origin: origin.clone() })
    }
}

/// From the strongest to the weakest. Empty values count as not given, as an unset variable in a script gives one.
fn layers(sources: &Sources) -> Vec<Layer> {
    let layer = |find: &dyn Fn(Setting) -> Option<(String, Origin)>| Layer {
        values: Setting::ALL
            .into_iter()
            .filter_map(|setting| Some((setting, find(setting).filter(|(value, _)| !value.is_empty())?)))
            .collect(),
    };
    let variables = |prefix: &'static str, is_known: fn(Setting) -> bool| {
        move |setting: Setting| {
            let name = setting.variable(prefix);
            let value = sources.env.get(&name).filter(|_| is_known(setting))?;
            Some((value.clone(), Origin::Variable(name)))
        }
    };
    let mut layers = vec![
        layer(&|setting| {
            let name = format!("--{}", setting.name().replace('_', "-"));
            Some((sources.flags.get(&setting)?.clone(), Origin::Flag(name)))
        }),
        layer(&variables("TENURE", Setting::may_come_from_tenure_variables)),
        layer(&variables("ETCDCTL", Setting::may_come_from_etcdctl_variables)),
    ];
    for (path, values) in &sources.files {
        layers.push(layer(&|setting| Some((values.get(&setting)?.clone(), Origin::File(path.clone())))));
    }
    layers
}

/// The first layer that names a store has named it.
fn choose_store(
    sources: &Sources,
    layers: &[Layer],
    namespace: &Namespace,
    has_tls_files: bool,
    notes: &mut Vec<String>,
) -> Result<Sourced<StoreUrl>, Failure> {
    if sources.is_local {
        if let Some(other) =
            [Setting::Store, Setting::Endpoints].iter().find_map(|&setting| layers[0].get(setting))
        {
            return Err(Failure::usage(format!("--local and {} name two stores", other.origin))
                .hint("leave one of them out"));
        }
        return Ok(Sourced {
            value: embedded(&sources.env, namespace)?,
            origin: Origin::Flag("--local".into()),
        });
    }
    for layer in layers {
        let found = match (layer.get(Setting::Store), layer.get(Setting::Endpoints)) {
            (None, None) => continue,
            (Some(store), None) => store,
            (None, Some(endpoints)) => endpoints,
            (Some(store), Some(endpoints)) => {
                return Err(Failure::usage(format!(
                    "{} and {} both name a store",
                    store.origin, endpoints.origin
                ))
                .hint("leave one of them out"));
            }
        };
        let is_url = layer.get(Setting::Store).is_some();
        let url = if is_url {
            address::parse_url(&found.value)
        } else {
            address::parse_endpoints(&found.value, has_tls_files)
        };
        let url = url.map_err(|failure| failure.while_doing(&found.origin.to_string()))?;
        if has_tls_files && matches!(url, StoreUrl::Etcd { security: Transport::Plain, .. }) {
            notes.push(format!(
                "certificates are configured, but {} asks for a connection in the clear; use etcds:// or https:// for TLS",
                found.origin
            ));
        }
        return Ok(Sourced { value: url, origin: found.origin });
    }
    if let Some(name) = UNATTENDED.iter().find(|&&name| sources.env.get(name).is_some_and(|v| !v.is_empty()))
    {
        return Err(Failure::new(
            Code::Usage,
            format!("no store is configured, and {name} is set: on an unattended machine the embedded store must be asked for"),
        )
        .hint("set TENURE_ENDPOINTS or --store, or add --local for the store of this machine and user alone"));
    }
    let url = embedded(&sources.env, namespace)?;
    notes.push(format!("no store is configured: using the embedded one of this machine and user, {url}"));
    Ok(Sourced { value: url, origin: Origin::Default })
}

/// The store of this machine and user. Relative paths in XDG variables are to be ignored, says their specification.
fn embedded(env: &BTreeMap<String, String>, namespace: &Namespace) -> Result<StoreUrl, Failure> {
    let absolute = |name: &str| env.get(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")));
    let state = state.ok_or_else(|| {
        Failure::usage("neither XDG_STATE_HOME nor HOME says where the embedded store is")
            .hint("name it, as in --store file:///var/lib/app/tenure.db")
    })?;
    Ok(StoreUrl::File(state.join("tenure").join(layout::folder_name(namespace)).join("store.db")))
}

/// Who signs in, and how.
struct Credentials {
    user: Option<Sourced<String>>,
    password: Option<Sourced<Password>>,
}

/// User and password. A password inside a `user:password` goes with that user only, never with one from another place.
fn credentials(layers: &[Layer]) -> Result<Credentials, Failure> {
    let password = layers.iter().find_map(|layer| {
        let file =
            layer.get(Setting::PasswordFile).map(|found| found.map(|path| Password::File(path.into())));
        file.or_else(|| {
            layer.get(Setting::Password).map(|found| found.map(|text| Password::Text(Hidden(text))))
        })
    });
    let Some(user) = layers.iter().find_map(|layer| layer.get(Setting::User)) else {
        return Ok(Credentials { user: None, password });
    };
    let Some((name, inline)) = user.value.split_once(':') else {
        return Ok(Credentials { user: Some(user), password });
    };
    if !matches!(user.origin, Origin::Variable(_)) {
        return Err(Failure::usage(format!("{} holds a password, where others can read it", user.origin))
            .hint("give the name alone, and the password with --password-file"));
    }
    let inline = Sourced { value: Password::Text(Hidden(inline.to_owned())), origin: user.origin.clone() };
    let name = Sourced { value: name.to_owned(), origin: user.origin.clone() };
    Ok(Credentials { user: Some(name), password: password.or(Some(inline)) })
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests;
