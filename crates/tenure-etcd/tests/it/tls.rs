//! Certificates: the right ones, the wrong ones, and none.

use std::path::Path;
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tenure_etcd::{Client, Config, Error, Secret, Tls, TlsFailure};
use tenure_fixture::Etcd;

use crate::{get, put};

/// An authority, and what it signs.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn pem(&self) -> String {
        self.0.pem()
    }

    /// Certificate and key for these names.
    fn sign(&self, names: &[&str]) -> (String, String) {
        self.sign_until(names, 4000)
    }

    /// The same, valid until a year begins.
    fn sign_until(&self, names: &[&str], year: i32) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        let certificate = params.signed_by(&key, &self.0).unwrap();
        (certificate.pem(), key.serialize_pem())
    }
}

fn start(folder: &Path, authority: &Authority, names: &[&str], client_ca: Option<&Authority>) -> Etcd {
    start_with(folder, authority.sign(names), client_ca)
}

fn start_with(folder: &Path, (certificate, key): (String, String), client_ca: Option<&Authority>) -> Etcd {
    let write = |name: &str, text: String| {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let tls = tenure_fixture::Tls {
        cert: write("cert.pem", certificate),
        key: write("key.pem", key),
        client_ca: client_ca.map(|authority| write("client-ca.pem", authority.pem())),
    };
    Etcd::builder().tls(tls).start()
}

async fn connect(etcd: &Etcd, tls: Tls) -> Result<Client, Error> {
    Client::connect(Config::new(etcd.client_urls()).with_tls(tls)).await
}

/// A failure of TLS is named as such, soon.
async fn failure(urls: Vec<String>, tls: Option<Tls>) -> TlsFailure {
    let start = Instant::now();
    let config = Config::new(urls);
    let config = match tls {
        Some(tls) => config.with_tls(tls),
        None => config,
    };
    let error = Client::connect(config).await.unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(5));
    let Error::Tls { endpoint, failure } = error else { panic!("{error:?}") };
    assert!(endpoint.contains("127.0.0.1:"), "{endpoint}");
    failure
}

#[tokio::test]
async fn wrong_authority_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let etcd = start(folder.path(), &authority, &["127.0.0.1", "localhost"], None);
    let client = connect(&etcd, Tls::new().with_ca_pem(authority.pem())).await.unwrap();
    client.put(put("k", "v")).await.unwrap();
    assert_eq!(client.range(get("k")).await.unwrap().count, 1);

    let other = Tls::new().with_ca_pem(Authority::new().pem());
    let found = failure(etcd.client_urls(), Some(other)).await;
    assert!(matches!(found, TlsFailure::UnknownAuthority(_)), "{found:?}");
}

#[tokio::test]
async fn server_name_may_differ_from_address() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let etcd = start(folder.path(), &authority, &["etcd.internal"], None);
    let trusted = || Tls::new().with_ca_pem(authority.pem());
    let found = failure(etcd.client_urls(), Some(trusted())).await;
    let TlsFailure::WrongName(text) = &found else { panic!("{found:?}") };
    assert!(text.contains("etcd.internal") && text.contains("127.0.0.1"), "both names are shown: {text}");
    let client = connect(&etcd, trusted().with_server_name("etcd.internal")).await.unwrap();
    client.put(put("k", "v")).await.unwrap();
}

#[tokio::test]
async fn expired_certificate_is_named_with_its_age() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let expired = authority.sign_until(&["127.0.0.1"], 2020);
    let etcd = start_with(folder.path(), expired, None);
    let found = failure(etcd.client_urls(), Some(Tls::new().with_ca_pem(authority.pem()))).await;
    let TlsFailure::NotValidNow(text) = &found else { panic!("{found:?}") };
    assert!(text.contains("expired") && text.contains("days ago"), "{text}");
}

#[tokio::test]
async fn missing_client_certificate_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let etcd = start(folder.path(), &authority, &["127.0.0.1"], Some(&authority));
    let trusted = || Tls::new().with_ca_pem(authority.pem());
    let (certificate, key) = authority.sign(&["ann"]);
    let client = connect(&etcd, trusted().with_identity(certificate, Secret::new(key))).await.unwrap();
    client.put(put("k", "v")).await.unwrap();

    assert_eq!(failure(etcd.client_urls(), Some(trusted())).await, TlsFailure::NoClientCertificate);
    let (certificate, key) = Authority::new().sign(&["ann"]);
    let stranger = trusted().with_identity(certificate, Secret::new(key));
    let found = failure(etcd.client_urls(), Some(stranger)).await;
    assert!(matches!(found, TlsFailure::ClientCertificateRefused(_)), "{found:?}");
}

/// "Broken pipe" and "connection reset" led to the firewall; the scheme of the address was wrong.
#[tokio::test]
async fn plain_and_secure_name_the_other_scheme() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let secure = start(folder.path(), &authority, &["127.0.0.1"], None);
    let url = secure.client_urls()[0].replace("https://", "http://");
    assert_eq!(failure(vec![url], None).await, TlsFailure::ServerIsTls);

    let plain = Etcd::start();
    let url = plain.client_urls()[0].replace("http://", "https://");
    let tls = Tls::new().with_ca_pem(authority.pem());
    assert_eq!(failure(vec![url], Some(tls)).await, TlsFailure::ServerIsPlain);
}

/// With a user the first request is the sign-in.
#[tokio::test]
async fn plain_sign_in_names_the_other_scheme() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let secure = start(folder.path(), &authority, &["127.0.0.1"], Some(&authority));
    let url = secure.client_urls()[0].replace("https://", "http://");
    let config = Config::new([url]).with_user("ann", Secret::new("pw"));
    let error = Client::connect(config).await.unwrap_err();
    assert!(matches!(error, Error::Tls { failure: TlsFailure::ServerIsTls, .. }), "{error:?}");
}
