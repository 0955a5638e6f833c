//! Chooses the store and every other setting, with the source of each: a pure function of flags, variables and files.
//!
//! Flags override `TENURE_*`, which override `ETCDCTL_*`, which override the user's file, which overrides `/etc`. Without a configuration
//! the embedded store is used. `store` and `endpoints` both name a store, so the first layer with either of them decides.
//!
//! **Invariant**: a configured store is never replaced by another one.

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

/// A setting.
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

    /// Its environment variable with this prefix.
    fn variable(self, prefix: &str) -> String {
        format!("{prefix}_{}", self.name().to_uppercase())
    }

    /// All environment variables that are read.
    pub(super) fn variables() -> Vec<String> {
        let tenure = Setting::ALL.into_iter().filter(|setting| setting.may_come_from_tenure_variables());
        let etcdctl = Setting::ALL.into_iter().filter(|setting| setting.may_come_from_etcdctl_variables());
        let names = tenure.map(|setting| setting.variable("TENURE"));
        names.chain(etcdctl.map(|setting| setting.variable("ETCDCTL"))).collect()
    }

    /// Every setting except the password. It has no flag and no key in a file either, because other users could read it there.
    fn may_come_from_tenure_variables(self) -> bool {
        self != Setting::Password
    }

    /// The settings for which etcdctl has a variable.
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

/// The source of a value.
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

/// A value with its source.
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

/// The password, or the file with it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Password {
    Text(Hidden),
    File(PathBuf),
}

/// The values of one flag set or file.
pub(crate) type Values = BTreeMap<Setting, String>;

/// All inputs of the choice. Without `Debug`, because variables may contain passwords.
#[derive(Clone, Default)]
pub(crate) struct Sources {
    pub(crate) flags: Values,
    /// Whether `--local` requests the embedded store.
    pub(crate) is_local: bool,
    pub(crate) env: BTreeMap<String, String>,
    /// The user's file, then that in `/etc`.
    pub(crate) files: Vec<(PathBuf, Values)>,
}

/// The chosen store and settings.
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
    /// Notes for the user about the choice.
    pub(crate) notes: Vec<String>,
    /// How long opening may take.
    pub(crate) retry: ConnectRetry,
}

/// Variables that indicate an unattended host: no person reads stderr, and a store of this host alone is rarely intended.
const UNATTENDED: [&str; 3] = ["INVOCATION_ID", "KUBERNETES_SERVICE_HOST", "CI"];

/// The default namespace.
const NAMESPACE: &str = "tenure";

/// The length of the command in listings.
const COMMAND_CHARS_MAX: usize = 200;

impl ConnectSettings {
    /// The identity of this process, with the configured node name and the command that it runs.
    pub(crate) fn identity(&self, command: &[OsString]) -> Identity {
        let own = tenure::identity::current();
        let args: Vec<String> = command.iter().map(|arg| escape(arg.as_encoded_bytes())).collect();
        let mut program = args.join(" ");
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

/// Chooses the store and the settings.
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
            "a client certificate needs its key, but only one of them is set (by {})",
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

/// The settings of one source.
struct Layer {
    values: BTreeMap<Setting, (String, Origin)>,
}

impl Layer {
    fn get(&self, setting: Setting) -> Option<Sourced<String>> {
        let (value, origin) = self.values.get(&setting)?;
        Some(Sourced { value: value.clone(), origin: origin.clone() })
    }
}

/// All layers, the strongest first. An empty value counts as not given: scripts pass one for an unset variable.
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

/// Chooses the store of the first layer that names one.
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
            return Err(Failure::usage(format!("--local and {} both name a store", other.origin))
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
                "certificates are configured, but {} has an address without TLS, so they are not used; use etcds:// or https:// for TLS",
                found.origin
            ));
        }
        return Ok(Sourced { value: url, origin: found.origin });
    }
    if let Some(name) = UNATTENDED.iter().find(|&&name| sources.env.get(name).is_some_and(|v| !v.is_empty()))
    {
        return Err(Failure::new(
            Code::Usage,
            format!("no store is configured, and {name} is set: an unattended host uses the embedded store only on request"),
        )
        .hint("set TENURE_ENDPOINTS or --store, or add --local for the store of this host and user"));
    }
    let url = embedded(&sources.env, namespace)?;
    notes.push(format!("no store is configured: using the embedded store of this host and user, {url}"));
    Ok(Sourced { value: url, origin: Origin::Default })
}

/// The store of this host and user. The XDG specification requires that relative paths in its variables are ignored.
fn embedded(env: &BTreeMap<String, String>, namespace: &Namespace) -> Result<StoreUrl, Failure> {
    let absolute = |name: &str| env.get(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")));
    let state = state.ok_or_else(|| {
        Failure::usage("the embedded store has no path: neither XDG_STATE_HOME nor HOME is set")
            .hint("name it, as in --store file:///var/lib/app/tenure.db")
    })?;
    Ok(StoreUrl::File(state.join("tenure").join(layout::folder_name(namespace)).join("store.db")))
}

/// The user and the password.
struct Credentials {
    user: Option<Sourced<String>>,
    password: Option<Sourced<Password>>,
}

/// Chooses user and password. The password in `user:password` is used for that user only, never for one from another layer.
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
        return Err(Failure::usage(format!(
            "{} contains a password, and other users can read it there",
            user.origin
        ))
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
