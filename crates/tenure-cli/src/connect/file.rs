//! Configuration files: `~/.config/tenure/config.toml`, then `/etc/tenure/config.toml`.
//!
//! An unknown key is an error: a misspelt `endpoint` must not lead to the wrong store. Messages never repeat a
//! line of the file, because it may contain a password.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::source::{Setting, Values};
use crate::failure::Failure;

/// The paths of configuration files, the stronger first.
pub(crate) fn paths(env: &BTreeMap<String, String>) -> Vec<PathBuf> {
    let absolute = |name: &str| env.get(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let user = absolute("XDG_CONFIG_HOME").or_else(|| Some(absolute("HOME")?.join(".config")));
    let user = user.map(|folder| folder.join("tenure").join("config.toml"));
    user.into_iter().chain([PathBuf::from("/etc/tenure/config.toml")]).collect()
}

/// Reads a file; `None` if there is none.
pub(crate) fn read(path: &Path) -> Result<Option<Values>, Failure> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) => {
            return Err(Failure::usage(format!("{} cannot be read: {error}", path.display()))
                .hint("an unreadable configuration is not skipped: repair or remove the file"));
        }
    };
    parse(&text).map(Some).map_err(|failure| failure.while_doing(&path.display().to_string()))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ConfigFile {
    store: Option<String>,
    endpoints: Option<EndpointList>,
    namespace: Option<String>,
    cacert: Option<String>,
    cert: Option<String>,
    key: Option<String>,
    user: Option<String>,
    password_file: Option<String>,
    node: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum EndpointList {
    Text(String),
    List(Vec<String>),
}

fn parse(text: &str) -> Result<Values, Failure> {
    let file: ConfigFile = toml::from_str(text).map_err(|error| {
        let line = error.span().map(|span| text[..span.start].matches('\n').count() + 1);
        // For a file that is nested too deeply the parser reports no line.
        let location = line.map_or_else(|| "somewhere in it: ".to_owned(), |line| format!("near line {line}: "));
        Failure::usage(format!("{location}{}", error.message().replace('\n', " "))).hint(
            "known keys: store, endpoints, namespace, cacert, cert, key, user, password_file, node; put a password into a separate file",
        )
    })?;
    let endpoints = file.endpoints.map(|endpoints| match endpoints {
        EndpointList::Text(text) => text,
        EndpointList::List(list) => list.join(","),
    });
    let entries = [
        (Setting::Store, file.store),
        (Setting::Endpoints, endpoints),
        (Setting::Namespace, file.namespace),
        (Setting::Cacert, file.cacert),
        (Setting::Cert, file.cert),
        (Setting::Key, file.key),
        (Setting::User, file.user),
        (Setting::PasswordFile, file.password_file),
        (Setting::Node, file.node),
    ];
    Ok(entries.into_iter().filter_map(|(setting, value)| Some((setting, value?))).collect())
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_text_or_list() {
        for text in ["endpoints = 'a:1,b:2'", "endpoints = ['a:1', 'b:2']"] {
            assert_eq!(parse(text).unwrap()[&Setting::Endpoints], "a:1,b:2");
        }
    }

    #[test]
    fn unknown_key_is_refused_without_its_value() {
        for text in ["endpoint = 'a:1'", "\n\npassword = 'canary'", "user = ['canary']", "store = canary"] {
            let failure = parse(text).unwrap_err();
            assert!(!format!("{failure:?}").contains("canary"), "{failure:?}");
        }
        assert!(parse("\n\nnode = 7").unwrap_err().message.contains("line 3"));
        let deep = parse(&format!("{}a = 1", "a.".repeat(100))).unwrap_err().message;
        assert!(deep.starts_with("somewhere in it: "), "{deep}");
    }

    #[test]
    fn user_file_comes_first() {
        let env = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
        };
        let found = |pairs: &[(&str, &str)]| paths(&env(pairs));
        assert_eq!(found(&[("HOME", "/h")])[0], Path::new("/h/.config/tenure/config.toml"));
        assert_eq!(
            found(&[("HOME", "/h"), ("XDG_CONFIG_HOME", "/c")])[0],
            Path::new("/c/tenure/config.toml")
        );
        assert_eq!(found(&[]), [Path::new("/etc/tenure/config.toml")]);
    }
}
