//! Lost and expired certificates: new ones are created, the webhook configuration is updated, pods
//! are injected again, and connected sidecars receive the new authority over their existing stream.

use std::time::Duration;

use kube::ResourceExt;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, KeyUsagePurpose, date_time_ymd};

use super::manifests::ModelManifest;
use super::policies::{POLICY, wait_for_pod_counts};
use super::{TestCase, case};
use crate::cluster::retry_until;
use crate::installation::{Installation, NAMESPACE, ensure_installed, has_sidecar};
use crate::programs::now;
use crate::test_namespace::TestNamespace;
use crate::{CaseResult, TestError};

pub(super) const CASES: &[TestCase] = &[case!("certificates", lost_and_expired_certificates_are_replaced)];

/// The leader checks certificates every ten seconds, and the other replicas follow.
const MADE_MAX: Duration = Duration::from_secs(60);
/// A sidecar waits for up to 30 s before it reconnects, and another replica acquires the leader
/// lease after 15 s.
const DIALLED_MAX: Duration = Duration::from_secs(90);
const EDIT: &str = r#"{"spec":{"limits":{"batchItemsMax":9}}}"#;
const EDITED: f64 = 9.0;
/// Secret that contains the certificates.
const SECRET: &str = "groupage-tls";

async fn lost_and_expired_certificates_are_replaced(space: &TestNamespace) -> CaseResult {
    let installation = ensure_installed(space).await?;
    space.apply(POLICY).await?;
    let model = ModelManifest { replicas: 2, ..ModelManifest::default() };
    space.apply(&model.yaml()).await?;
    let old = space.deployment_ready("model").await?;
    wait_for_pod_counts(space, "model", |pods| pods.connected == 2).await?;
    let first = installation.ca_bundles().await?;
    installation.kubectl(&["delete", "secret", SECRET]).await?;
    let second = wait_for_new_bundles(&installation, &first).await?;
    installation.wait_until_injecting().await?;
    installation.kubectl(&["patch", "secret", SECRET, "--type=merge", "--patch", &expired_secret()?]).await?;
    let third = wait_for_new_bundles(&installation, &second).await?;
    installation.wait_until_injecting().await?;
    // The next leader presents certificates of an authority that did not exist when the sidecars
    // started.
    for pod in installation.pods().await? {
        installation.kubectl(&["delete", "pod", &pod.name_any(), "--grace-period=0", "--force"]).await?;
    }
    installation.wait_until_ready().await?;
    space.kubectl(&["patch", "bpol", "model", "--type=merge", "--patch", EDIT]).await?;
    let begun = now();
    let back = retry_until("an edit in the sidecars", DIALLED_MAX, async || {
        let wanted = ["limit=\"batch_items_max\"", "source=\"policy\""];
        let found = space.merged_metrics(&old).await?.sum("groupage_limit", &wanted);
        let has = (found - 2.0 * EDITED).abs() < 0.5;
        if has { Ok(now().duration_since(begun)) } else { Err(TestError::from(format!("{found} in all"))) }
    })
    .await?;
    // Verify injection with pods that are really created, and through both replicas.
    space.apply(&ModelManifest { replicas: 4, ..model }.yaml()).await?;
    let pods = space.deployment_ready("model").await?;
    let injected = pods.iter().filter(|pod| has_sidecar(pod)).count();
    if injected != pods.len() {
        return Err(format!("{injected} of {} pods are injected", pods.len()).into());
    }
    let count = |bundle: &[u8]| String::from_utf8_lossy(bundle).matches("BEGIN CERTIFICATE").count();
    let counts: Vec<_> = [&first, &second, &third].iter().map(|all| all.first().map_or(0, |one| count(one))).collect();
    Ok(format!(
        "recreated twice; trusted authorities {counts:?}; old sidecars had an edit of new controllers {:.0} s later; {injected} of {} pods injected",
        back.as_secs_f64(),
        pods.len()
    ))
}

/// Waits until the CA bundle of every entry has been replaced and all are the same.
async fn wait_for_new_bundles(installation: &Installation, before: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, TestError> {
    retry_until("other certificates", MADE_MAX, async || {
        let now = installation.ca_bundles().await?;
        let same = now.iter().all(|bundle| Some(bundle) == now.first() && !bundle.is_empty());
        let other = now.iter().zip(before).all(|(now, before)| now != before);
        if same && other { Ok(now) } else { Err("the webhook is trusted with the old ones".into()) }
    })
    .await
}

/// Returns the data of a Secret with an expired authority and certificate.
fn expired_secret() -> Result<String, TestError> {
    let run_out = |params: &mut CertificateParams| {
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2020, 2, 1);
    };
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    run_out(&mut params);
    let authority = params.self_signed(&key)?.pem();
    let authority_key = key.serialize_pem();
    let issuer = Issuer::new(params, key);
    let leaf_key = KeyPair::generate()?;
    let names = ["webhook", "stream"].map(|service| format!("groupage-{service}.{NAMESPACE}.svc"));
    let mut params = CertificateParams::new(names.to_vec())?;
    run_out(&mut params);
    let leaf = params.signed_by(&leaf_key, &issuer)?.pem();
    let data = serde_json::json!({"stringData": {
        "ca.crt": authority,
        "ca.key": authority_key,
        "tls.crt": leaf,
        "tls.key": leaf_key.serialize_pem(),
    }});
    Ok(data.to_string())
}
