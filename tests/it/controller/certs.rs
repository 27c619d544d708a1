//! Certificates in a real Secret, served by a real listener, trusted by a real webhook
//! configuration.

use std::sync::Arc;
use std::time::Duration;

use groupage::clock::Clock;
use groupage::controller::certs::{
    CertificateInfo, RotationSettings, SecretContents, ServingCertificate, parse_certificates, rotate_certificates,
};
use groupage::controller::lease::Leadership;
use k8s_openapi::ByteString;
use rcgen::{CertificateParams, DnType, Issuer, KeyPair, date_time_ymd};
use rustls::pki_types::ServerName;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::api::{FakeApiServer, Fault, FaultKind, HANG};

const SECRET: (&str, &str, &str) = ("secrets", "groupage-system", "groupage-tls");
const NAME: &str = "groupage-webhook.groupage-system.svc";

struct CertKeeperTask {
    served: ServingCertificate,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

/// Starts a replica's certificate rotator. `leads` selects a leader or a follower.
fn start_keeper(api: &FakeApiServer, leads: bool) -> CertKeeperTask {
    let settings = RotationSettings {
        namespace: SECRET.1.into(),
        secret: SECRET.2.into(),
        names: vec![NAME.into()],
        webhooks: Some("groupage-injector".into()),
    };
    let (stop, stopped) = watch::channel(false);
    let served = ServingCertificate::none();
    let leadership = if leads { Leadership::always(Clock::start()) } else { Leadership::never(Clock::start()) };
    let task = tokio::spawn(rotate_certificates(api.client(), settings, leadership, served.clone(), stopped));
    CertKeeperTask { served, stop, task }
}

impl CertKeeperTask {
    async fn served_bundle(&self) -> String {
        let mut watch = self.served.subscribe();
        let shown = tokio::time::timeout(HANG, watch.wait_for(Option::is_some)).await.unwrap().unwrap();
        shown.clone().unwrap().bundle
    }

    async fn end(self) {
        self.stop.send(true).unwrap();
        self.task.await.unwrap();
    }
}

fn configuration() -> Value {
    let webhook = |name: &str| {
        json!({"name": name, "sideEffects": "NoneOnDryRun", "admissionReviewVersions": ["v1"],
               "clientConfig": {"service": {"name": "groupage-webhook", "namespace": "groupage-system"}}})
    };
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "groupage-injector"},
        "webhooks": [webhook("namespaces.injector.groupage.dev"), webhook("pods.injector.groupage.dev")],
    })
}

/// Connects as a client that trusts these certificates.
async fn connects(served: &ServingCertificate, bundle: &str) -> Result<(), std::io::Error> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(served.server_config(None, &["h2", "http/1.1"]).unwrap()));
    let server = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        acceptor.accept(stream).await.map(drop)
    });
    let mut roots = rustls::RootCertStore::empty();
    for certificate in parse_certificates(bundle.as_bytes()) {
        roots.add(certificate).unwrap();
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let stream = TcpStream::connect(address).await.unwrap();
    let client = connector.connect(ServerName::try_from(NAME).unwrap(), stream).await;
    server.await.unwrap().ok();
    client.map(drop)
}

fn secret_data(api: &FakeApiServer) -> std::collections::BTreeMap<String, Vec<u8>> {
    let secret = api.get(SECRET.0, SECRET.1, SECRET.2).unwrap();
    let data: std::collections::BTreeMap<String, ByteString> = serde_json::from_value(secret["data"].clone()).unwrap();
    data.into_iter().map(|(key, value)| (key, value.0)).collect()
}

#[tokio::test]
async fn the_leader_makes_certificates_and_every_replica_shows_them() {
    let api = FakeApiServer::start().await;
    let leader = start_keeper(&api, true);
    let follower = start_keeper(&api, false);
    let bundle = leader.served_bundle().await;
    assert_eq!(follower.served_bundle().await, bundle);
    connects(&follower.served, &bundle).await.unwrap();
    assert!(connects(&follower.served, "").await.is_err(), "a client that does not trust the CA does not connect");
    let held = SecretContents::read(&secret_data(&api), &[NAME.to_owned()]);
    assert!(held.has_ca_key && held.leaf.unwrap().covers_names);
    api.assert_nothing_forbidden();
    leader.end().await;
    follower.end().await;
}

#[tokio::test]
async fn ca_bundle_is_the_only_change_to_webhook_configuration() {
    let api = FakeApiServer::start().await;
    let made = api.put(configuration());
    let leader = start_keeper(&api, true);
    let bundle = leader.served_bundle().await;
    let key = ("mutatingwebhookconfigurations", "", "groupage-injector");
    let configured =
        api.until_object(key, |found| found["webhooks"][1]["clientConfig"].get("caBundle").is_some()).await;
    let expected = serde_json::to_value(ByteString(secret_data(&api)["ca.crt"].clone())).unwrap();
    for (at, before) in made["webhooks"].as_array().unwrap().iter().enumerate() {
        let mut after = configured["webhooks"][at].clone();
        assert_eq!(after["clientConfig"].as_object_mut().unwrap().remove("caBundle"), Some(expected.clone()));
        assert_eq!(after, *before);
    }
    assert!(bundle.contains("BEGIN CERTIFICATE"));
    api.assert_nothing_forbidden();
    leader.end().await;
}

#[tokio::test]
async fn a_recreated_webhook_configuration_gets_its_bundle_within_seconds() {
    let api = FakeApiServer::start().await;
    let key = ("mutatingwebhookconfigurations", "", "groupage-injector");
    let believes = |found: &Value| found["webhooks"][1]["clientConfig"].get("caBundle").is_some();
    api.put(configuration());
    let leader = start_keeper(&api, true);
    api.until_object(key, believes).await;
    api.remove(key.0, key.1, key.2);
    api.put(configuration());
    let soon = tokio::time::timeout(Duration::from_secs(6), api.until_object(key, believes));
    soon.await.expect("it is checked every two seconds");
    api.assert_nothing_forbidden();
    leader.end().await;
}

/// Replaces the leaf in the Secret by one that the stored CA issued for this name, from the start of
/// one year to the start of another.
fn put_leaf(api: &FakeApiServer, name: &str, (from, to): (i32, i32)) {
    let ca = KeyPair::from_pem(&String::from_utf8(secret_data(api)["ca.key"].clone()).unwrap()).unwrap();
    let mut issuer = CertificateParams::new(Vec::new()).unwrap();
    // The controller derives the name of a CA from its key.
    let id: String = issuer.key_identifier(&ca).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    issuer.distinguished_name.push(DnType::CommonName, format!("groupage-ca-{id}"));
    let key = KeyPair::generate().unwrap();
    let mut leaf = CertificateParams::new(vec![name.to_owned()]).unwrap();
    (leaf.not_before, leaf.not_after) = (date_time_ymd(from, 1, 1), date_time_ymd(to, 1, 1));
    let cert = leaf.signed_by(&key, &Issuer::new(issuer, ca)).unwrap().pem();
    let mut secret = api.get(SECRET.0, SECRET.1, SECRET.2).unwrap();
    secret["data"]["tls.crt"] = serde_json::to_value(ByteString(cert.into_bytes())).unwrap();
    secret["data"]["tls.key"] = serde_json::to_value(ByteString(key.serialize_pem().into_bytes())).unwrap();
    api.put(secret);
}

#[tokio::test]
async fn an_expired_leaf_and_one_for_another_name_are_replaced_and_the_ca_stays() {
    for (name, years, covers_names) in [(NAME, (2020, 2021), true), ("elsewhere.svc", (2020, 2049), false)] {
        let api = FakeApiServer::start().await;
        let first = start_keeper(&api, true);
        let bundle = first.served_bundle().await;
        first.end().await;
        put_leaf(&api, name, years);
        let before = secret_data(&api);
        let leaf = SecretContents::read(&before, &[NAME.to_owned()]).leaf.unwrap();
        assert_eq!((leaf.authority, leaf.covers_names), (0, covers_names), "{name}: the stored CA issued it");
        let next = start_keeper(&api, true);
        // The stored leaf is served until its replacement, which expires at another time.
        let mut served = next.served.subscribe();
        let is_replaced =
            |shown: &Option<CertificateInfo>| shown.as_ref().is_some_and(|shown| shown.expires != leaf.validity.end);
        tokio::time::timeout(HANG, served.wait_for(is_replaced)).await.unwrap().unwrap();
        let after = secret_data(&api);
        assert_ne!(after["tls.crt"], before["tls.crt"], "{name}");
        assert_eq!((&after["ca.crt"], &after["ca.key"]), (&before["ca.crt"], &before["ca.key"]), "{name}");
        assert_eq!(next.served_bundle().await, bundle, "{name}");
        connects(&next.served, &bundle).await.unwrap();
        next.end().await;
    }
}

#[tokio::test]
async fn a_deleted_secret_is_recreated_with_a_new_ca_and_the_old_bundle_stays_valid() {
    let api = FakeApiServer::start().await;
    let leader = start_keeper(&api, true);
    let bundle = leader.served_bundle().await;
    let before = secret_data(&api);
    api.remove(SECRET.0, SECRET.1, SECRET.2);
    api.until_object(SECRET, |_| true).await;
    let after = secret_data(&api);
    assert_eq!(after["tls.crt"], before["tls.crt"], "a client that trusts only the old CA can connect");
    assert_ne!(after["ca.key"], before["ca.key"]);
    let both = String::from_utf8(after["ca.crt"].clone()).unwrap();
    assert!(both.ends_with(&bundle) && both.matches("BEGIN CERTIFICATE").count() == 2, "{both}");
    connects(&leader.served, &bundle).await.unwrap();
    leader.end().await;
}

#[tokio::test]
async fn a_conflict_while_the_secret_is_created_is_no_error() {
    let api = FakeApiServer::start().await;
    api.fault(Fault::always(FaultKind::Conflict).for_verb_and_resource("create", "secrets").times(1));
    let leader = start_keeper(&api, true);
    let bundle = leader.served_bundle().await;
    connects(&leader.served, &bundle).await.unwrap();
    leader.end().await;
}

#[tokio::test]
async fn the_certificate_stays_served_while_the_api_server_is_unreachable() {
    let api = FakeApiServer::start().await;
    let leader = start_keeper(&api, true);
    let bundle = leader.served_bundle().await;
    api.fault(Fault::always(FaultKind::Reset));
    leader.stop.send(true).unwrap();
    leader.task.await.unwrap();
    connects(&leader.served, &bundle).await.unwrap();
}
