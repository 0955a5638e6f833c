//! Fuzz target: an address that is read means the same store when it was shown.

use super::{InvalidStoreUrl, StoreUrl};

fn url(bytes: &[u8]) -> String {
    let Ok(text) = std::str::from_utf8(bytes) else { return "no text".to_owned() };
    match text.parse::<StoreUrl>() {
        Ok(url) => {
            assert_eq!(url.to_string().parse().as_ref(), Ok(&url), "{url}");
            match url {
                StoreUrl::Memory => "memory".to_owned(),
                StoreUrl::File(path) => {
                    assert!(path.is_absolute(), "{path:?}");
                    "a file".to_owned()
                }
                StoreUrl::Etcd { endpoints, security } => {
                    assert!(!endpoints.is_empty());
                    for endpoint in &endpoints {
                        let (host, port) = endpoint.rsplit_once(':').expect("a host and a port");
                        assert!(
                            !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0),
                            "{endpoint}"
                        );
                    }
                    format!("{security:?} {}", endpoints.len().min(5))
                }
            }
        }
        Err(bad) => {
            assert!(!bad.to_string().contains(char::is_control), "{bad}");
            match bad {
                InvalidStoreUrl::UnknownScheme(_) => "no scheme",
                InvalidStoreUrl::RelativePath(_) => "no path",
                InvalidStoreUrl::NoEndpoint => "no member",
                InvalidStoreUrl::BadEndpoint(_) => "a bad member",
                InvalidStoreUrl::Credentials => "credentials",
            }
            .to_owned()
        }
    }
}

#[test]
fn addresses_soak() {
    tenure_fuzz::fuzz(env!("CARGO_MANIFEST_DIR"), "address", url);
}
