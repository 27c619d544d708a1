//! The check of `Host` on the ports on loopback.

use std::net::SocketAddr;

use serde_json::json;

use super::super::scripted_setup::start_with_scripted_server;
use super::{fetch, ports, until_ready};

#[tokio::test]
async fn metrics_on_loopback_need_a_loopback_host_and_probes_take_any() {
    let (proxy, _hand) = start_with_scripted_server(json!({})).await;
    let (metrics, local) = ports(&proxy);
    until_ready(metrics, 200).await;
    let status = async |port: SocketAddr, path: &str, hosts: &[&str]| {
        let own: Vec<(&str, &str)> = hosts.iter().map(|host| ("host", *host)).collect();
        fetch(port, "GET", path, &own, None).await.status
    };
    for host in ["localhost", "LOCALHOST:1", "127.0.0.1:9190", "127.8.8.8", "[::1]:9190"] {
        assert_eq!(status(metrics, "/metrics", &[host]).await, Some(200), "{host}");
        assert_eq!(status(local, "/metrics", &[host]).await, Some(200), "{host}");
    }
    let foreign = [
        &["evil.example"][..],
        &["evil.example:9190"],
        &["10.0.0.1"],
        &["localhost@evil.example"],
        &["localhost", "localhost"],
        &["localhost", "evil.example"],
        &["evil.example", "localhost"],
    ];
    for hosts in foreign {
        assert_eq!(status(metrics, "/metrics", hosts).await, Some(403), "{hosts:?}");
        for path in ["/metrics", "/api/stats", "/livez"] {
            assert_eq!(status(local, path, hosts).await, Some(403), "{path} {hosts:?}");
        }
        for path in ["/livez", "/readyz"] {
            assert_eq!(status(metrics, path, hosts).await, Some(200), "{path} {hosts:?}");
        }
    }
}
