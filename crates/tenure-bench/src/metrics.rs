//! Requests as the servers counted them, so that a client cannot flatter itself.

use std::time::Duration;

use tenure::store::{StoreUrl, Transport};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Where requests are counted.
pub(super) struct Counter {
    /// `host:port` of every member.
    endpoints: Vec<String>,
}

/// A metrics page comes at once or not at all.
const WAIT: Duration = Duration::from_secs(2);

impl Counter {
    /// None where the pages cannot be read without TLS.
    pub(super) fn of(url: &StoreUrl) -> Option<Counter> {
        match url {
            StoreUrl::Etcd { endpoints, security: Transport::Plain } => {
                Some(Counter { endpoints: endpoints.clone() })
            }
            StoreUrl::Etcd { .. } | StoreUrl::Memory | StoreUrl::File(_) => None,
        }
    }

    /// All requests that all members have answered so far; `None` if one does not report it.
    pub(super) async fn handled(&self) -> Option<u64> {
        self.read().await?.sum("grpc_server_handled_total", "")
    }

    /// The counters of all members as they are now; `None` if one does not report them.
    pub(super) async fn read(&self) -> Option<Counters> {
        let mut pages = Vec::new();
        for endpoint in &self.endpoints {
            pages.push(tokio::time::timeout(WAIT, page(endpoint)).await.ok()?.ok()?);
        }
        Some(Counters { pages })
    }
}

/// What all members had counted at one time.
pub(super) struct Counters {
    pages: Vec<String>,
}

impl Counters {
    /// The sum of those series of a counter with labels that contain a text, such as
    /// `grpc_method="LeaseKeepAlive"`.
    pub(super) fn sum(&self, name: &str, labelled: &str) -> Option<u64> {
        self.pages.iter().map(|page| sum_of(page, name, labelled)).sum()
    }
}

/// HTTP/1.0: the server closes after the reply and never sends chunks.
async fn page(endpoint: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(endpoint).await?;
    stream.write_all(format!("GET /metrics HTTP/1.0\r\nHost: {endpoint}\r\n\r\n").as_bytes()).await?;
    let mut page = String::new();
    stream.read_to_string(&mut page).await?;
    Ok(page)
}

/// The sum of the series of a counter with labels that contain a text; `None` if the page contains
/// no metrics.
fn sum_of(page: &str, name: &str, labelled: &str) -> Option<u64> {
    let body = page.strip_prefix("HTTP/1.")?.split_once("\r\n\r\n")?.1;
    let mut sum = 0;
    for line in body.lines() {
        let Some(series) = line.strip_prefix(name) else { continue };
        let Some((labels, figure)) = series.rsplit_once(' ') else { continue };
        if !labels.starts_with('{') || !labels.contains(labelled) {
            continue;
        }
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a counter is a whole number from 0 on"
        )]
        let count = figure.parse::<f64>().ok()?.max(0.0) as u64;
        sum += count;
    }
    Some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counter_sums_only_wanted_series() {
        let page = "HTTP/1.0 200 OK\r\nA: b\r\n\r\n# HELP x\nx{a=\"1\"} 7\nx{a=\"b c\"} 1.2e+03\nx_other{a=\"1\"} 5\nx 9\n";
        assert_eq!(sum_of(page, "x", ""), Some(1207));
        assert_eq!(sum_of(page, "x", "a=\"1\""), Some(7));
        assert_eq!(sum_of(page, "nothing", ""), Some(0));
        assert_eq!(sum_of("not http", "x", ""), None);
    }
}
