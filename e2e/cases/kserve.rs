//! A real Python model server in pods without an image of their own: interpreter and libraries are
//! mounted from the machine.

use std::path::Path;
use std::process::{Command, Stdio};

use groupage::testkit::remote::HttpCall;
use kube::ResourceExt;

use super::manifests::MERGING_POLICY;
use super::sidecar::wait_until_started;
use super::{TestCase, case};
use crate::installation::{ensure_installed, has_sidecar};
use crate::programs::{output_or_error, repository_root, run_quietly};
use crate::test_client::TestClient;
use crate::test_namespace::{TestNamespace, is_ready};
use crate::{CaseResult, TestError};

pub(super) const CASES: &[TestCase] =
    &[case!("kserve", an_annotated_python_server_is_ready_with_its_model_and_batches_change_no_answer, Node, Python)];

const PREDICT: &str = "/v1/models/digits:predict";
/// Number of concurrent clients.
const CALLERS: usize = 48;

/// `PYTHON` is replaced by the interpreter, `SCRIPTS` by the folder of the server, and `MODEL` by
/// that of the model. `MOUNTS` and `VOLUMES` are replaced by the mounts that these require.
const DIGITS: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: digits}
spec:
  selector: {matchLabels: {app: digits}}
  template:
    metadata: {labels: {app: digits}, annotations: {groupage.dev/inject: enabled}}
    spec:
      containers:
        - name: digits
          image: $stand-in
          command: [PYTHON, -B, SCRIPTS/digits.py, MODEL/model.joblib]
          env: [{name: HOME, value: /tmp}, {name: OMP_NUM_THREADS, value: '1'}, {name: PYTHONNOUSERSITE, value: '1'}]
          ports: [{name: http, containerPort: 8080}]
          readinessProbe: {httpGet: {path: /v2/health/ready, port: http}, periodSeconds: 1}
          securityContext: {runAsUser: 65534, runAsNonRoot: true, allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
          volumeMounts:
            - {name: tmp, mountPath: /tmp}
MOUNTS      volumes:
        - {name: tmp, emptyDir: {}}
VOLUMES---
apiVersion: v1
kind: Service
metadata: {name: digits}
spec:
  selector: {app: digits}
  ports: [{name: http, port: 80, targetPort: http}]
";

async fn an_annotated_python_server_is_ready_with_its_model_and_batches_change_no_answer(
    space: &TestNamespace,
) -> CaseResult {
    ensure_installed(space).await?;
    space.apply(MERGING_POLICY).await?;
    let kit = &space.cluster.kit;
    let python = kit.python.clone()?;
    let venv = python.parent().and_then(|bin| bin.parent()).ok_or("an interpreter without an environment")?;
    let scripts = repository_root().join("e2e/python");
    let trained = kit.output_dir.join(format!("digits-{}", kit.run));
    let model = trained.join("served");
    std::fs::create_dir_all(&model)?;
    run_script(&python, "tests/servers/train.py", &trained)?;
    let rows = std::fs::read_to_string(trained.join("rows.json"))?;
    let (mounts, volumes) = machine_mounts(&python, &[venv, &scripts, &model])?;
    let manifest = DIGITS
        .replace("MOUNTS", &mounts)
        .replace("VOLUMES", &volumes)
        .replace("PYTHON", &python.to_string_lossy())
        .replace("SCRIPTS", &scripts.to_string_lossy())
        .replace("MODEL", &model.to_string_lossy());
    space.apply(&manifest).await?;
    let pod = wait_until_started(space, "app=digits").await?;
    if !has_sidecar(&pod) {
        return Err("the pod requested a sidecar and has none".into());
    }
    if is_ready(&pod) {
        return Err("the pod is ready before its model is loaded".into());
    }
    std::fs::rename(trained.join("model.joblib"), model.join("model.joblib"))?;
    let pod = space.pod_ready(&pod.name_any()).await?;
    space.deployment_ready("digits").await?;
    let caller = TestClient::start(space).await?;
    caller.wait_until_reachable("digits:80", "/v2/health/ready").await?;
    let around = pod.status.as_ref().and_then(|status| status.pod_ip.as_ref()).ok_or("no address")?;
    let around = std::net::SocketAddr::new(around.parse()?, 8080).to_string();
    let calls: Vec<_> = rows
        .lines()
        .cycle()
        .take(CALLERS)
        .map(|row| HttpCall::post(PREDICT, format!(r#"{{"instances": [{row}]}}"#)))
        .collect();
    let unbatched = caller.call_sequentially(&around, &calls).await?;
    let batched = caller.call_concurrently("digits:80", &calls).await?;
    for (at, (unbatched, batched)) in unbatched.iter().zip(&batched).enumerate() {
        if unbatched.status != 200 || (unbatched.status, &unbatched.body) != (batched.status, &batched.body) {
            return Err(TestError::from(format!("call {at}: unbatched {unbatched:?}, batched {batched:?}")));
        }
    }
    let metrics = space.metrics(&pod).await?;
    if metrics.shared_batches() < 1.0 {
        return Err("nothing was shared".into());
    }
    std::fs::remove_dir_all(&trained)?;
    Ok(format!("not ready without its model, then {CALLERS} answers equal, mean batch {:.1}", metrics.batch_mean()))
}

/// Returns mounts and volumes for these folders of the machine, for its libraries, and for the base
/// interpreter of the virtual environment, which may be located elsewhere.
pub(super) fn machine_mounts(python: &Path, folders: &[&Path]) -> Result<(String, String), TestError> {
    let base = run_quietly(Command::new(python).args(["-c", "import sys; print(sys.base_prefix)"]))?;
    let mut places = vec![("/usr/lib".to_owned(), "/lib".to_owned()), ("/usr/lib64".to_owned(), "/lib64".to_owned())];
    for folder in [Path::new("/usr"), Path::new(base.trim())].iter().chain(folders) {
        let folder = folder.to_string_lossy().into_owned();
        if !places.iter().any(|(_, at)| *at == folder) {
            places.push((folder.clone(), folder));
        }
    }
    let places: Vec<_> = places.into_iter().enumerate().collect();
    let mount = |(index, (_, at)): &(usize, (String, String))| {
        format!("            - {{name: machine-{index}, mountPath: {at}, readOnly: true}}\n")
    };
    let volume = |(index, (folder, _)): &(usize, (String, String))| {
        format!("        - {{name: machine-{index}, hostPath: {{path: {folder}}}}}\n")
    };
    Ok((places.iter().map(mount).collect(), places.iter().map(volume).collect()))
}

/// Runs a script of the repository with an output folder. `tests/servers/train.py` for instance
/// writes a model, and rows that it was not trained on.
pub(super) fn run_script(python: &Path, script: &str, folder: &Path) -> Result<(), TestError> {
    let mut command = Command::new(python);
    command.arg("-B").arg(repository_root().join(script)).arg(folder);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    // The script exits when its standard input is closed, hence at the latest with this process.
    let held = child.stdin.take();
    let output = child.wait_with_output()?;
    drop(held);
    output_or_error(script, &output).map(drop)
}
