//! Hints for refused access: the flag for a TLS failure, the etcdctl command for a missing permission.

use std::sync::OnceLock;

use tenure::store::{AccessKind, MissingGrant, TlsFailure};

use super::{Code, Failure};

/// The namespace of this process, for hints with its prefix. Set before a store is opened.
static NAMESPACE: OnceLock<String> = OnceLock::new();

/// Sets the namespace for the hints of this process.
pub(crate) fn set_namespace(namespace: &str) {
    // The first value stays: `doctor` and the demo read the settings more than once.
    let _ = NAMESPACE.set(namespace.trim_matches('/').to_owned());
}

/// The hint with the command that grants the permission, for an administrator.
pub(super) fn grant_hint(missing: &MissingGrant) -> String {
    hint(missing, NAMESPACE.get().map_or("NAMESPACE", String::as_str))
}

fn hint(missing: &MissingGrant, namespace: &str) -> String {
    let user = missing.user.as_deref().unwrap_or("USER");
    if missing.access == AccessKind::Root {
        return format!("run it as a user with the role root, or `etcdctl user grant-role {user} root`");
    }
    let prefix = format!("/{namespace}/");
    let outside = missing.ranges.iter().find(|range| !range.key.starts_with(prefix.as_bytes()));
    let (scope, key) = match outside {
        None => ("--prefix=true ", prefix),
        Some(range) if range.end.is_empty() => ("", range.key.escape_ascii().to_string()),
        // etcd writes the range of all keys as one that begins with a zero byte.
        Some(range) if range.key[..] == [0] => ("--prefix=true ", "''".to_owned()),
        Some(range) => ("--prefix=true ", range.key.escape_ascii().to_string()),
    };
    format!(
        "grant the permission to a role of user {user}: `etcdctl role grant-permission ROLE readwrite {scope}{key}`"
    )
}

/// The failure of a TLS connection, with the flag that may help. User and password do not matter here.
pub(super) fn tls_failure(endpoint: &str, failure: &TlsFailure) -> Failure {
    let host = endpoint.split_once("://").map_or(endpoint, |(_, host)| host);
    let (code, why, hint) = match failure {
        TlsFailure::ServerIsPlain => (
            Code::Unavailable,
            "the server does not speak TLS".to_owned(),
            format!("use --store etcd://{host}, or enable TLS at the server"),
        ),
        TlsFailure::ServerIsTls => (
            Code::Unavailable,
            "the server speaks TLS, and the address is in the clear".to_owned(),
            format!("use --store etcds://{host} with --cacert FILE"),
        ),
        TlsFailure::UnknownAuthority(text) => (
            Code::Untrusted,
            format!("no trusted authority signed the server's certificate ({text})"),
            "give the certificate of the authority that signed it with --cacert FILE".to_owned(),
        ),
        TlsFailure::WrongName(text) => (
            Code::Untrusted,
            format!("the server's certificate is not for this name ({text})"),
            "use a name of the certificate in --endpoints, or issue a certificate for this one".to_owned(),
        ),
        TlsFailure::NotValidNow(text) => (
            Code::Untrusted,
            format!("the server's certificate is not valid now ({text})"),
            "renew the server's certificate, or set the clock of this machine; `date` shows it".to_owned(),
        ),
        TlsFailure::NoClientCertificate => (
            Code::Untrusted,
            "the server requires a client certificate, and none is configured".to_owned(),
            "give one with --cert FILE and --key FILE".to_owned(),
        ),
        TlsFailure::ClientCertificateRefused(text) => (
            Code::Untrusted,
            format!("the server refuses the client certificate ({text})"),
            "use a certificate with --cert and --key that an authority of the server signed".to_owned(),
        ),
        other => (
            Code::Untrusted,
            other.to_string(),
            "check --cacert, --cert and --key with `tenure config show`".to_owned(),
        ),
    };
    Failure::new(code, format!("no TLS connection to {host}: {why}")).hint(hint)
}

#[cfg(test)]
mod tests {
    use tenure::store::KeyRange;

    use super::*;

    #[test]
    fn missing_grant_hint_is_the_command() {
        let missing = |access, key: &'static str, end: &'static str| MissingGrant {
            user: Some("ann".to_owned()),
            access,
            ranges: vec![KeyRange { key: key.into(), end: end.into() }],
        };
        for (missing, command) in [
            (
                missing(AccessKind::Write, "/shop/eu/locks/a", ""),
                "`etcdctl role grant-permission ROLE readwrite --prefix=true /shop/eu/`",
            ),
            (
                missing(AccessKind::Read, "/other", ""),
                "`etcdctl role grant-permission ROLE readwrite /other`",
            ),
            (
                missing(AccessKind::Read, "/other/", "/other0"),
                "`etcdctl role grant-permission ROLE readwrite --prefix=true /other/`",
            ),
            (
                missing(AccessKind::Read, "\0", "\0"),
                "`etcdctl role grant-permission ROLE readwrite --prefix=true ''`",
            ),
            (missing(AccessKind::Root, "", ""), "`etcdctl user grant-role ann root`"),
        ] {
            let hint = hint(&missing, "shop/eu");
            assert!(hint.ends_with(command) && hint.contains("ann"), "{hint}");
        }
    }
}
