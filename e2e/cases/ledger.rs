//! Ledger test on a cluster: every item is tracked from a pod through a Service and a sidecar to a
//! faulty model server, and back.

use groupage::testkit::integrity::POLICY;

use super::{TestCase, case};
use crate::CaseResult;
use crate::test_client::TestClient;
use crate::test_namespace::TestNamespace;

pub(super) const CASES: &[TestCase] = &[case!("ledger", every_item_that_passes_through_a_service_is_accounted_for)];

/// Clients and faulty model server are one process, with a common ledger. The process is the
/// application of its own pod.
const POD: &str = "
apiVersion: v1
kind: Pod
metadata: {name: ledger, labels: {app: ledger}}
spec:
  initContainers:
    - name: groupage
      image: $groupage
      args: [proxy, --upstream, 'http://127.0.0.1:8080', --listen, '[::]:15080', --metrics, '[::]:9190', --config, /policy/policy.yaml]
      restartPolicy: Always
      ports: [{name: batched, containerPort: 15080}]
      startupProbe: {httpGet: {path: /livez, port: 9190}, periodSeconds: 1, failureThreshold: 30}
      readinessProbe: {httpGet: {path: /readyz, port: 9190}, periodSeconds: 1}
      securityContext: $restricted
      volumeMounts: [{name: policy, mountPath: /policy}]
  containers:
    - name: ledger
      image: $stand-in
      args: [caller, --ledger, '8080']
      securityContext: $restricted
  volumes: [{name: policy, configMap: {name: policy}}]
---
apiVersion: v1
kind: Service
# Not the pod's own name: that is known to the pod as its own address, and would lead past the Service.
metadata: {name: through}
spec:
  selector: {app: ledger}
  # Refused connections are among the faults, and make the sidecar unready for a moment; the clients stay.
  publishNotReadyAddresses: true
  ports: [{name: http, port: 80, targetPort: batched}]
";

async fn every_item_that_passes_through_a_service_is_accounted_for(space: &TestNamespace) -> CaseResult {
    let indented: String = POLICY.lines().map(|line| format!("    {line}\n")).collect();
    let policy =
        format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: policy}}\ndata:\n  policy.yaml: |\n{indented}");
    space.apply(&policy).await?;
    space.apply(POD).await?;
    space.pod_ready("ledger").await?;
    let items = if space.is_full_length() { 300_000 } else { 20_000 };
    let caller = TestClient::in_pod(space, "ledger");
    caller.wait_until_reachable("through:80", "/").await?;
    let report = caller.run_ledger("through:80", items).await?;
    let summary = format!(
        "{} items, {} violations, innocent served {:.4}, shared {:.3}",
        report.items, report.violations, report.innocent_served, report.shared
    );
    if report.violations > 0 || report.innocent_served < 0.95 || report.shared < 0.3 {
        return Err(format!("{summary}\n{}", report.details).into());
    }
    Ok(summary)
}
