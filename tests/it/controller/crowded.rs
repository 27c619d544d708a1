//! Ports of the controller that many connections hold which ask nothing: a review, a sidecar and a
//! probe get their turn.

use std::net::SocketAddr;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::api::Api;
use super::streams::{Dialled, controller, injected};
use super::whole::{POST, answered, ask, get, pod, policy, review};

/// More than the webhook has places, and than handshakes are made at once.
const SILENT: usize = 600;

/// Connections that send these bytes and wait.
async fn hold(address: SocketAddr, bytes: &[u8]) -> Vec<TcpStream> {
    let mut held = Vec::with_capacity(SILENT);
    for _ in 0..SILENT {
        let mut stream = TcpStream::connect(address).await.unwrap();
        // Where many came before it may be closed already.
        stream.write_all(bytes).await.ok();
        held.push(stream);
    }
    held
}

#[tokio::test]
async fn silent_connections_keep_out_neither_reviews_nor_sidecars_nor_probes() {
    let api = Api::start().await;
    api.put(policy());
    api.put(injected("emb-0"));
    let running = controller(&api).await;
    // The first byte of a TLS record, and an unfinished head.
    for bytes in [&b""[..], &[22], b"GET /livez HTTP/1.1\r\nx: "] {
        let _held = (
            hold(running.webhook, bytes).await,
            hold(running.streams.unwrap(), bytes).await,
            hold(running.health, bytes).await,
        );
        let answer = answered(&ask(&running, POST, &review(&pod("emb-1"))).await);
        assert_eq!(answer["allowed"], true);
        let sidecar = Dialled::new(&api, &running, "emb-0", &api.token("a", "emb-0"));
        sidecar.told(|config| config.generation == 1).await;
        assert!(get(&running, "/livez").await.starts_with("HTTP/1.1 200"));
    }
    running.end().await;
}
