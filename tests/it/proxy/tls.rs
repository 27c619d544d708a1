//! TLS on both sides: certificates on the data port, `https://` upstreams, and changes of the files
//! of either.

mod certificates;
mod downstream;
mod upstream;

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use http::Request;
use serde_json::{Value, json};

use super::http2_endpoints::{Body, full};
use super::setup::{PREDICT, TestProxy, instances, merge_json, wait_while};
use super::support::client::Outgoing;
use super::tunnel::{CertAuthority, CertKeyPair, TlsTunnelEnd};

const HTTP1: &[&str] = &["http/1.1"];
const BOTH: &[&str] = &["h2", "http/1.1"];

/// A folder with a certificate for 127.0.0.1 and `localhost`, and the settings that refer to it.
struct CertFolder {
    dir: tempfile::TempDir,
}

/// A model server behind TLS, and the settings of a proxy that trusts its authority.
struct TlsUpstream {
    authority: CertAuthority,
    folder: CertFolder,
    ca: String,
}

// === impl CertFolder ===

impl CertFolder {
    fn with(pair: &CertKeyPair) -> Self {
        let dir = tempfile::tempdir().unwrap();
        pair.write(dir.path());
        Self { dir }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.dir.path().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    fn tls(&self) -> Value {
        json!({"certFile": self.path().join("tls.crt"), "keyFile": self.path().join("tls.key")})
    }

    /// Returns the settings of a proxy that presents this certificate.
    fn spec_with_certificate(&self, over: &Value) -> Value {
        let mut spec = json!({"proxy": {"tls": self.tls()}});
        merge_json(&mut spec, over);
        spec
    }
}

// === impl TlsUpstream ===

impl TlsUpstream {
    fn new() -> Self {
        let authority = CertAuthority::new("ca");
        let folder = CertFolder::with(&local_certificate(&authority));
        let ca = folder.file("ca.crt", &authority.pem);
        Self { authority, folder, ca }
    }

    async fn server(&self, to: SocketAddr, protocols: &[&str], clients: Option<&CertAuthority>) -> TlsTunnelEnd {
        TlsTunnelEnd::start_server_end(to, local_certificate(&self.authority).server(protocols, clients)).await
    }

    fn proxy(&self, server: &TlsTunnelEnd, over: &Value) -> TestProxy {
        let mut spec = json!({"proxy": {"upstreamTls": {"caFile": self.ca}}});
        merge_json(&mut spec, over);
        TestProxy::start_in_front_of(&server.url(), spec)
    }
}

fn local_certificate(authority: &CertAuthority) -> CertKeyPair {
    authority.sign(&["127.0.0.1", "localhost"])
}

/// Returns a call with a host that is independent of the port that it is sent to.
fn predict(proxy: &TestProxy, item: u64) -> Outgoing {
    proxy.post(PREDICT, &[("host", "model.example")], &instances(&[item]))
}

fn h2_predict(item: u64) -> Request<Body> {
    Request::post(format!("https://model.example{PREDICT}"))
        .header("content-type", "application/json")
        .body(full(instances(&[item])))
        .unwrap()
}

async fn until_metric(proxy: &TestProxy, series: &str, value: u64) {
    wait_while(|| proxy.metric(series) != value).await;
}
