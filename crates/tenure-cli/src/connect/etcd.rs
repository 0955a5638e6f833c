//! The configuration of the etcd client: addresses, certificates, user and password.

use std::path::Path;

use tenure::store::{StoreUrl, Transport};
use tenure_etcd::{Config, DefectLog, Secret, Tls};

use super::password;
use super::retry::CONNECT_TIMEOUT;
use super::source::{ConnectSettings, Password, Sourced};
use crate::failure::Failure;

/// The configuration for the client. Prompts for a password if a user is configured without one.
pub(crate) async fn config(
    endpoints: &[String],
    security: Transport,
    settings: &ConnectSettings,
) -> Result<Config, Failure> {
    let scheme = match security {
        Transport::Plain => "http",
        Transport::Tls => "https",
    };
    let urls = endpoints.iter().map(|endpoint| format!("{scheme}://{endpoint}"));
    let mut config = Config::new(urls).with_deadline(CONNECT_TIMEOUT);
    // `connect::defects` reports them once a day.
    config.defect_log = DefectLog::Off;
    if security == Transport::Tls {
        config = config.with_tls(tls(settings)?);
    }
    if let Some(user) = &settings.user {
        config = config.with_user(user.value.clone(), secret(&user.value, settings).await?);
    }
    Ok(config)
}

fn tls(settings: &ConnectSettings) -> Result<Tls, Failure> {
    let mut tls = Tls::new();
    if let Some(cacert) = &settings.cacert {
        tls = tls.with_ca_pem(read(cacert)?);
    }
    if let (Some(cert), Some(key)) = (&settings.cert, &settings.key) {
        let pem = String::from_utf8(read(key)?)
            .map_err(|_| Failure::usage(format!("{} is not PEM text", key.value.display())))?;
        tls = tls.with_identity(read(cert)?, Secret::new(pem));
    }
    Ok(tls)
}

fn read(file: &Sourced<std::path::PathBuf>) -> Result<Vec<u8>, Failure> {
    let path: &Path = &file.value;
    std::fs::read(path).map_err(|error| {
        Failure::usage(format!("{} (from {}) cannot be read: {error}", path.display(), file.origin))
            .hint(format!("check its permissions with `ls -l`, or name another file with {}", file.origin))
    })
}

async fn secret(user: &str, settings: &ConnectSettings) -> Result<Secret, Failure> {
    let hidden = match &settings.password {
        None => password::prompt(user).await?,
        Some(Sourced { value: Password::Text(text), .. }) => text.clone(),
        Some(Sourced { value: Password::File(path), .. }) => password::read_file(path.clone()).await?,
    };
    Ok(Secret::new(hidden.0))
}

/// Whether every member is on this host.
pub(crate) fn is_loopback(url: &StoreUrl) -> bool {
    let StoreUrl::Etcd { endpoints, .. } = url else { return true };
    endpoints.iter().all(|endpoint| {
        let host = endpoint.rsplit_once(':').map_or(endpoint.as_str(), |(host, _)| host);
        let host = host.trim_matches(['[', ']']);
        host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_addresses_are_local() {
        for (url, is_local) in [
            ("etcd://127.0.0.1:1", true),
            ("etcd://localhost", true),
            ("etcd://[::1]:1,127.9.9.9:2", true),
            ("etcd://127.0.0.1:1,10.0.0.1:1", false),
            ("etcds://etcd.example:1", false),
            ("etcd://127.0.0.1.example:1", false),
        ] {
            assert_eq!(is_loopback(&url.parse().unwrap()), is_local, "{url}");
        }
    }
}
