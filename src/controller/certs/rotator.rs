//! The I/O of certificate rotation: the Secret, which every replica reads and the leader writes,
//! and the CA bundle of the webhook configuration.

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::certificates::{self, CA_CERT, CA_KEY, CERT, KEY, SecretData};
use super::{RotationStep, SecretContents, ServingCertificate, plan};
use crate::FIELD_MANAGER;
use crate::clock::Clock;
use crate::error::BoxError;
use crate::lease::Leadership;

/// Interval between two checks: the RBAC rules grant `get` but no `watch`. A recreated webhook
/// configuration has no CA bundle, and pods are admitted without a sidecar until it is restored.
const EVERY: Duration = Duration::from_secs(2);
/// Interval between two checks while no certificate is loaded.
const EVERY_AT_FIRST: Duration = Duration::from_secs(1);
/// Timeout of one API call.
const CALL: Duration = Duration::from_secs(10);
/// Maximum number of actions per round: introduce, renew and retire may follow each other; more are
/// a defect.
const STEPS_MAX: usize = 4;

/// Parameters of certificate rotation.
#[derive(Debug, Clone)]
pub struct RotationSettings {
    /// Namespace of the Secret.
    pub namespace: String,
    /// Name of the Secret.
    pub secret: String,
    /// DNS names of the certificate.
    pub names: Vec<String>,
    /// The `MutatingWebhookConfiguration` that gets the CA bundle.
    pub webhooks: Option<String>,
}

struct CertRotator {
    secrets: Api<Secret>,
    webhooks: Api<MutatingWebhookConfiguration>,
    settings: RotationSettings,
    leadership: Leadership,
    certificate: ServingCertificate,
    /// Resource version and data of the Secret when it was last read.
    version: String,
    data: SecretData,
    last_error: String,
}

/// Loads the certificates of the Secret, and rotates them while this replica leads, until shutdown
/// is signalled.
pub async fn rotate_certificates(
    client: kube::Client,
    settings: RotationSettings,
    leadership: Leadership,
    certificate: ServingCertificate,
    mut stop: watch::Receiver<bool>,
) {
    let mut rotator = CertRotator {
        secrets: Api::namespaced(client.clone(), &settings.namespace),
        webhooks: Api::all(client),
        settings,
        leadership: leadership.clone(),
        certificate,
        version: String::new(),
        data: SecretData::new(),
        last_error: String::new(),
    };
    let mut leadership = leadership;
    loop {
        match rotator.round().await {
            Ok(()) => rotator.last_error.clear(),
            Err(error) => rotator.log_once(&error),
        }
        let every = if rotator.certificate.is_loaded() { EVERY } else { EVERY_AT_FIRST };
        tokio::select! {
            () = tokio::time::sleep(every) => {}
            () = leadership.changed() => {}
            () = crate::wait_for_shutdown(&mut stop) => return,
        }
    }
}

/// Returns the wall-clock time in seconds since 1970.
fn now() -> u64 {
    Clock::wall_micros() / 1_000_000
}

/// Performs a call with a timeout.
async fn call<T>(what: &str, call: impl Future<Output = kube::Result<T>>) -> Result<T, BoxError> {
    match tokio::time::timeout(CALL, call).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(error)) => Err(format!("cannot {what}: {error}").into()),
        Err(_) => Err(format!("cannot {what}: no answer within {CALL:?}").into()),
    }
}

// === impl CertRotator ===

impl CertRotator {
    async fn round(&mut self) -> Result<(), BoxError> {
        let found = call("read the certificate Secret", self.secrets.get_opt(&self.settings.secret)).await?;
        self.load_secret(found)?;
        for _ in 0..STEPS_MAX {
            // Checked before each write, since leadership may have ended.
            if !self.leadership.is_leader() {
                return Ok(());
            }
            let held = SecretContents::read(&self.data, &self.settings.names);
            let action = plan(now(), &held);
            if matches!(action, RotationStep::Keep(_)) {
                return self.update_webhooks().await;
            }
            self.perform(action).await?;
        }
        Err("the certificates are still outdated after every renewal step: this is a bug".into())
    }

    /// Processes the Secret that was read.
    fn load_secret(&mut self, found: Option<Secret>) -> Result<(), BoxError> {
        let Some(secret) = found else {
            // The Secret was deleted, by mistake or to replace the CA. As after the loss of a CA
            // key, the leaf of the old CA stays in use until all clients trust the new CA, also
            // sidecars that are disconnected now.
            self.version.clear();
            self.data.remove(CA_KEY);
            return Ok(());
        };
        let version = secret.metadata.resource_version.unwrap_or_default();
        if version == self.version {
            return Ok(());
        }
        self.data = secret.data.unwrap_or_default().into_iter().map(|(key, value)| (key, value.0)).collect();
        self.version = version;
        let part = |key: &str| self.data.get(key).map(Vec::as_slice).unwrap_or_default();
        match self.certificate.replace(part(CERT), part(KEY), part(CA_CERT)) {
            Ok(()) => Ok(()),
            // The leader repairs it.
            Err(_) if self.leadership.is_leader() => Ok(()),
            Err(error) => Err(format!("cannot use the certificate Secret: {error}").into()),
        }
    }

    async fn perform(&mut self, action: RotationStep) -> Result<(), BoxError> {
        tracing::info!(?action, "updating the certificates");
        let mut data = self.data.clone();
        match action {
            RotationStep::Keep(_) => return Ok(()),
            RotationStep::Begin => {
                certificates::introduce(&mut data, now())?;
                certificates::renew(&mut data, now(), &self.settings.names)?;
            }
            RotationStep::Introduce => certificates::introduce(&mut data, now())?,
            RotationStep::Renew => certificates::renew(&mut data, now(), &self.settings.names)?,
            RotationStep::Retire => certificates::retire(&mut data, now(), &self.settings.names),
        }
        let bytes = data.into_iter().map(|(key, value)| (key, ByteString(value))).collect();
        let written = self.write(bytes).await?;
        self.load_secret(Some(written))
    }

    /// Writes the Secret with the version that was read, so that one of two temporary leaders is
    /// rejected.
    async fn write(&self, data: BTreeMap<String, ByteString>) -> Result<Secret, BoxError> {
        let version = (!self.version.is_empty()).then(|| self.version.clone());
        let secret = Secret {
            metadata: ObjectMeta {
                name: Some(self.settings.secret.clone()),
                resource_version: version.clone(),
                ..ObjectMeta::default()
            },
            data: Some(data),
            // The type is immutable, so it is set only at creation.
            type_: version.is_none().then(|| "kubernetes.io/tls".to_owned()),
            ..Secret::default()
        };
        if version.is_none() {
            return call("create the certificate Secret", self.secrets.create(&PostParams::default(), &secret)).await;
        }
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        call("write the certificate Secret", self.secrets.patch(&self.settings.secret, &params, &Patch::Merge(&secret)))
            .await
    }

    /// Updates the CA bundle of the webhook configuration. It is checked in every round, since an
    /// upgrade of the installation may have removed it.
    async fn update_webhooks(&self) -> Result<(), BoxError> {
        let Some(name) = &self.settings.webhooks else { return Ok(()) };
        let found = call("read the webhook configuration", self.webhooks.get_opt(name)).await?;
        let bundle = self.data.get(CA_CERT).cloned().unwrap_or_default();
        let Some(patch) = found.and_then(|found| ca_bundle_patch(name, &found, bundle)) else { return Ok(()) };
        let params = PatchParams::apply(FIELD_MANAGER).force();
        call("write the webhook configuration", self.webhooks.patch(name, &params, &Patch::Apply(patch))).await?;
        tracing::info!(name, "updated the CA bundle of the webhook configuration");
        Ok(())
    }

    /// Logs an error unless it repeats the last one.
    fn log_once(&mut self, error: &BoxError) {
        let text = error.to_string();
        if self.last_error != text {
            tracing::warn!(error = text, "cannot maintain the certificates");
            self.last_error = text;
        }
    }
}

/// Returns the patch that sets the CA bundle of every webhook of a configuration; `None` if all are
/// up to date. It contains only names and bundles, the fields that this field manager owns.
fn ca_bundle_patch(name: &str, found: &MutatingWebhookConfiguration, bundle: Vec<u8>) -> Option<Value> {
    let bundle = ByteString(bundle);
    let webhooks = found.webhooks.as_deref().unwrap_or_default();
    if webhooks.iter().all(|webhook| webhook.client_config.ca_bundle.as_ref() == Some(&bundle)) {
        return None;
    }
    let ours = |name: &String| json!({"name": name, "clientConfig": {"caBundle": bundle}});
    let webhooks: Vec<Value> = webhooks.iter().map(|webhook| ours(&webhook.name)).collect();
    Some(json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": name},
        "webhooks": webhooks,
    }))
}
