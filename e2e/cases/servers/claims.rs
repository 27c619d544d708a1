//! Folders of the machine in a form that Pod Security `restricted` permits: `local` volumes, bound
//! by claims.

/// A volume and its claim. `NUMBER` and `FOLDER` are placeholders, and `$namespace` distinguishes
/// the volumes of different namespaces. The node affinity matches every Linux node, since the
/// cluster has only one node.
const CLAIM: &str = "
apiVersion: v1
kind: PersistentVolume
metadata: {name: $namespace-NUMBER}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadOnlyMany]
  persistentVolumeReclaimPolicy: Retain
  storageClassName: ''
  claimRef: {namespace: $namespace, name: machine-NUMBER}
  local: {path: 'FOLDER'}
  nodeAffinity:
    required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/os, operator: In, values: [linux]}]}]}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: machine-NUMBER}
spec:
  accessModes: [ReadOnlyMany]
  resources: {requests: {storage: 1Gi}}
  storageClassName: ''
  volumeName: $namespace-NUMBER
---";

/// Converts volumes that are folders of the machine (`hostPath`) to claims, and to volumes that
/// refer to these claims.
pub(super) fn to_claims(volumes: &str) -> (String, String) {
    let folders = volumes.lines().filter_map(|line| line.split_once("hostPath: {path: ")?.1.strip_suffix("}}"));
    let claim =
        |(number, folder): (usize, &str)| CLAIM.replace("NUMBER", &number.to_string()).replace("FOLDER", folder);
    let claims = folders.clone().enumerate().map(claim).collect();
    let volume = |(number, _)| {
        format!(
            "        - {{name: machine-{number}, persistentVolumeClaim: {{claimName: machine-{number}, readOnly: true}}}}\n"
        )
    };
    (claims, folders.enumerate().map(volume).collect())
}
