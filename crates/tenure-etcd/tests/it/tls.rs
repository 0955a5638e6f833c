//! Certificates: the right ones, the wrong ones, and none.

use std::path::Path;
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tenure_etcd::{Client, Config, Error, Secret, Tls};
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
        let key = KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let certificate = CertificateParams::new(names).unwrap().signed_by(&key, &self.0).unwrap();
        (certificate.pem(), key.serialize_pem())
    }
}

fn start(folder: &Path, authority: &Authority, names: &[&str], client_ca: Option<&Authority>) -> Etcd {
    let (certificate, key) = authority.sign(names);
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

/// Certificate trouble is named as such, soon.
async fn is_untrusted(etcd: &Etcd, tls: Tls, word: &str) {
    let start = Instant::now();
    let error = connect(etcd, tls).await.unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(5));
    let Error::Untrusted(cause) = &error else { panic!("{error:?}") };
    assert!(cause.to_string().to_lowercase().contains(word), "{cause}");
}

#[tokio::test]
async fn the_right_authority_is_trusted_and_a_wrong_one_named() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let etcd = start(folder.path(), &authority, &["127.0.0.1", "localhost"], None);
    let client = connect(&etcd, Tls::new().with_ca_pem(authority.pem())).await.unwrap();
    client.put(put("k", "v")).await.unwrap();
    assert_eq!(client.range(get("k")).await.unwrap().count, 1);

    is_untrusted(&etcd, Tls::new().with_ca_pem(Authority::new().pem()), "certificate").await;
}

#[tokio::test]
async fn the_servers_name_can_differ_from_its_address() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let etcd = start(folder.path(), &authority, &["etcd.internal"], None);
    let trusted = || Tls::new().with_ca_pem(authority.pem());
    is_untrusted(&etcd, trusted(), "not valid for").await;
    let client = connect(&etcd, trusted().with_server_name("etcd.internal")).await.unwrap();
    client.put(put("k", "v")).await.unwrap();
}

#[tokio::test]
async fn a_server_that_wants_a_certificate_gets_one_or_refuses() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let etcd = start(folder.path(), &authority, &["127.0.0.1"], Some(&authority));
    let trusted = || Tls::new().with_ca_pem(authority.pem());
    let (certificate, key) = authority.sign(&["ann"]);
    let client = connect(&etcd, trusted().with_identity(certificate, Secret::new(key))).await.unwrap();
    client.put(put("k", "v")).await.unwrap();

    is_untrusted(&etcd, trusted(), "certificate").await;
}

#[tokio::test]
async fn plain_and_secure_do_not_mix_and_the_answer_comes_in_time() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let secure = start(folder.path(), &authority, &["127.0.0.1"], None);
    let url = secure.client_urls()[0].replace("https://", "http://");
    let error = Client::connect(Config::new([url])).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error:?}");

    let plain = Etcd::start();
    let url = plain.client_urls()[0].replace("http://", "https://");
    let config = Config::new([url]).with_tls(Tls::new().with_ca_pem(authority.pem()));
    let error = Client::connect(config).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_) | Error::Untrusted(_)), "{error:?}");
}
