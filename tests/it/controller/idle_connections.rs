//! Ports of the controller on which many idle connections are open: a review, a sidecar and a probe
//! are still served.

use std::net::SocketAddr;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::api::FakeApiServer;
use super::end_to_end::{POST, admission_response, call_webhook, get, pod, policy, review};
use super::streams::{ConnectedSidecar, controller, injected_pod};

/// More connections than the webhook admits, and than handshakes that run at once.
const SILENT: usize = 600;

/// Opens connections that send these bytes and then stay idle.
async fn open_idle_connections(address: SocketAddr, bytes: &[u8]) -> Vec<TcpStream> {
    let mut held = Vec::with_capacity(SILENT);
    for _ in 0..SILENT {
        let mut stream = TcpStream::connect(address).await.unwrap();
        // The connection may be closed already if many are open.
        stream.write_all(bytes).await.ok();
        held.push(stream);
    }
    held
}

#[tokio::test]
async fn silent_connections_keep_out_neither_reviews_nor_sidecars_nor_probes() {
    let api = FakeApiServer::start().await;
    api.put(policy());
    api.put(injected_pod("emb-0"));
    let running = controller(&api).await;
    // Nothing, the first byte of a TLS record, and an incomplete request head.
    for bytes in [&b""[..], &[22], b"GET /livez HTTP/1.1\r\nx: "] {
        let _held = (
            open_idle_connections(running.webhook, bytes).await,
            open_idle_connections(running.streams.unwrap(), bytes).await,
            open_idle_connections(running.health, bytes).await,
        );
        let answer = admission_response(&call_webhook(&running, POST, &review(&pod("emb-1"))).await);
        assert_eq!(answer["allowed"], true);
        let sidecar = ConnectedSidecar::new(&api, &running, "emb-0", &api.token("a", "emb-0"));
        sidecar.wait_for_config(|config| config.generation == 1).await;
        assert!(get(&running, "/livez").await.starts_with("HTTP/1.1 200"));
    }
    running.shut_down().await;
}
