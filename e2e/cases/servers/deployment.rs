//! Deployment of a model server: its manifests as in its own documentation, and a snapshot of them
//! for comparison.

use std::path::PathBuf;

use groupage::testkit::remote::HttpCall;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Pod, Service};
use serde_json::{Value, json};

use super::super::kserve::{machine_mounts, run_script};
use super::claims::to_claims;
use super::table::ServerSpec;
use crate::TestError;
use crate::programs::repository_root;
use crate::test_namespace::TestNamespace;

/// Number of different calls.
const CALLS: usize = 48;

/// The manifests. `NAME`, `COMMAND`, `FOLDER`, `ENV`, `PORTS`, `PORT` and `READY` describe the
/// server. `BIN`, `SCRIPTS`, `MOUNTS` and `VOLUMES` provide files of this machine to the pod
/// instead of an image.
const SERVER: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: NAME}
spec:
  selector: {matchLabels: {app: NAME}}
  template:
    metadata: {labels: {app: NAME}}
    spec:
      containers:
        - name: server
          image: $stand-in
          command: COMMAND
          workingDir: FOLDER
          env: [{name: PATH, value: 'BIN:/usr/bin'}, {name: HOME, value: /tmp}, {name: OMP_NUM_THREADS, value: '1'},
                {name: PYTHONDONTWRITEBYTECODE, value: '1'}, {name: PYTHONNOUSERSITE, value: '1'}ENV]
          ports: [PORTS]
          readinessProbe: {httpGet: {path: READY, port: PORT}, periodSeconds: 1, timeoutSeconds: 5}
SECURITY          volumeMounts:
            - {name: tmp, mountPath: /tmp}
MOUNTS      volumes:
        - {name: tmp, emptyDir: {}}
VOLUMES---
apiVersion: v1
kind: Service
metadata: {name: NAME}
spec:
  selector: {app: NAME}
  ports: [{port: 80, targetPort: PORT}]
";

/// Pod Security level of a server's namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cases) enum PodSecurity {
    /// No restrictions: the pod mounts folders of the node.
    Plain,
    /// Pod Security `restricted`: the pod uses volume claims.
    Restricted,
}

/// A deployed server. The folder of its model is removed on drop.
#[derive(Debug)]
pub(in crate::cases) struct DeployedServer {
    folder: PathBuf,
    /// Calls with distinct answers.
    pub(in crate::cases) calls: Vec<HttpCall>,
}

/// The parts of a workload that `groupage disable` must restore.
#[derive(Debug, PartialEq)]
pub(super) struct WorkloadSnapshot {
    template: Value,
    service: Value,
    containers: Value,
}

// === impl DeployedServer ===

impl DeployedServer {
    /// Creates the model, and applies the manifests of the server under this name.
    pub(super) async fn apply(
        space: &TestNamespace,
        server: &ServerSpec,
        name: &str,
        security: PodSecurity,
    ) -> Result<Self, TestError> {
        let kit = &space.cluster.kit;
        let python = server.venv.map_or_else(|| kit.python.clone(), |venv| kit.venv(venv))?;
        let venv = python.parent().and_then(|bin| bin.parent()).ok_or("an interpreter without an environment")?;
        let folder = kit.output_dir.join(format!("{}-{}", space.name, kit.run));
        let mut deployed = Self { folder, calls: Vec::new() };
        std::fs::create_dir_all(&deployed.folder)?;
        for script in server.scripts {
            run_script(&python, script, &deployed.folder)?;
        }
        deployed.calls = deployed.calls_of(server)?;
        let scripts = repository_root().join("e2e/python");
        let (mounts, volumes) = machine_mounts(&python, &[venv, &scripts, &deployed.folder])?;
        let (claims, volumes, context) = match security {
            PodSecurity::Plain => (String::new(), volumes, ""),
            PodSecurity::Restricted => {
                let (claims, volumes) = to_claims(&volumes);
                (claims, volumes, "          securityContext: $restricted\n")
            }
        };
        let ports: Vec<_> = server.ports.iter().map(|port| format!("{{containerPort: {port}}}")).collect();
        let manifest = format!("{claims}{SERVER}")
            .replace("NAME", name)
            .replace("COMMAND", server.command)
            .replace("FOLDER", server.folder)
            .replace("ENV]", &format!("{}]", server.env))
            .replace("PORTS", &ports.join(", "))
            .replace("PORT", &server.ports.first().ok_or("no port")?.to_string())
            .replace("READY", server.ready)
            .replace("SECURITY", context)
            .replace("MOUNTS", &mounts)
            .replace("VOLUMES", &volumes)
            .replace("BIN", &venv.join("bin").to_string_lossy())
            .replace("SCRIPTS", &scripts.to_string_lossy())
            .replace("MODEL", &deployed.folder.to_string_lossy());
        space.apply(&manifest).await?;
        Ok(deployed)
    }

    fn calls_of(&self, server: &ServerSpec) -> Result<Vec<HttpCall>, TestError> {
        let rows = match server.scripts {
            [] => String::new(),
            _ => std::fs::read_to_string(self.folder.join("rows.json"))?,
        };
        let rows = rows.lines().chain(std::iter::repeat(""));
        let call = |(at, row)| {
            let mut call = HttpCall::post(server.path, (server.body)(at, row));
            call.headers.extend(server.key.map(|key| ("authorization".to_owned(), format!("Bearer {key}"))));
            call
        };
        Ok((0..CALLS).zip(rows).map(call).collect())
    }
}

impl Drop for DeployedServer {
    fn drop(&mut self) {
        // A folder that cannot be removed remains beside the diagnostics of failures.
        std::fs::remove_dir_all(&self.folder).ok();
    }
}

// === impl WorkloadSnapshot ===

impl WorkloadSnapshot {
    /// Reads the parts, without the annotations that `disable` and `kubectl rollout restart` write
    /// into the template.
    pub(super) async fn read(space: &TestNamespace, pods: &[Pod]) -> Result<Self, TestError> {
        let deployment: Deployment = space.api().get("server").await?;
        let mut template = json!(deployment.spec.map(|spec| spec.template));
        if let Some(annotations) = template.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
            annotations.retain(|name, _| name != "groupage.dev/inject" && name != "kubectl.kubernetes.io/restartedAt");
        }
        let metadata = template.get_mut("metadata").and_then(Value::as_object_mut);
        if let Some(metadata) = metadata.filter(|metadata| metadata.get("annotations") == Some(&json!({}))) {
            metadata.remove("annotations");
        }
        let service: Service = space.api().get("server").await?;
        let containers = pods.iter().filter_map(|pod| pod.spec.as_ref()).map(|spec| {
            let own = |container: &k8s_openapi::api::core::v1::Container| {
                json!([
                    container.name,
                    container.command,
                    container.args,
                    container.env,
                    container.ports,
                    container.lifecycle,
                    container.readiness_probe
                ])
            };
            let init = spec.init_containers.iter().flatten();
            init.chain(&spec.containers).map(own).collect::<Vec<_>>()
        });
        Ok(Self { template, service: json!(service.spec), containers: containers.collect() })
    }
}
