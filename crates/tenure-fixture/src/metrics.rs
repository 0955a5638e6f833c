//! Reads single figures out of etcd's `/metrics` page.
//!
//! The tests count requests on the server's side, where a client cannot flatter itself.

/// The sum of all series of `name` with labels that contain `labels`; 0 when there is none.
///
/// etcd creates a series with its first event, so absent means 0.
pub(crate) fn sum(page: &str, name: &str, labels: &str) -> f64 {
    page.lines().filter_map(|line| value(line, name, labels)).sum()
}

fn value(line: &str, name: &str, labels: &str) -> Option<f64> {
    let rest = line.strip_prefix(name)?;
    // A label value may hold spaces, the figure never does: it is the last word.
    let (series, figure) = rest.rsplit_once(' ')?;
    let is_this_name = series.is_empty() || series.starts_with('{');
    (is_this_name && series.contains(labels)).then(|| figure.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "\
# HELP grpc_server_handled_total Total number of RPCs
# TYPE grpc_server_handled_total counter
grpc_server_handled_total{grpc_code=\"OK\",grpc_method=\"Txn\",grpc_service=\"etcdserverpb.KV\"} 7
grpc_server_handled_total{grpc_code=\"Unavailable\",grpc_method=\"Txn\",grpc_service=\"etcdserverpb.KV\"} 2
grpc_server_handled_total{grpc_code=\"OK\",grpc_method=\"Range\",grpc_service=\"etcdserverpb.KV\"} 5
grpc_server_handled_total_other 100
etcd_server_is_leader 1
etcd_debugging_mvcc_db_total_size_in_bytes 2.0480e+04
";

    #[test]
    fn metric_sums_matching_series() {
        assert_eq!(sum(PAGE, "grpc_server_handled_total", ""), 14.0);
        assert_eq!(sum(PAGE, "grpc_server_handled_total", "grpc_method=\"Txn\""), 9.0);
        assert_eq!(sum(PAGE, "etcd_server_is_leader", ""), 1.0);
        assert_eq!(sum(PAGE, "etcd_debugging_mvcc_db_total_size_in_bytes", ""), 20_480.0);
        assert_eq!(sum(PAGE, "etcd_server", ""), 0.0);
        assert_eq!(sum(PAGE, "etcd_server_is_leader", "grpc_method"), 0.0);
    }
}
