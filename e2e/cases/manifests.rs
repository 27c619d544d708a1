//! Manifests shared by several cases. A case replaces placeholders such as `NAME`, and the test
//! environment those that begin with `$`.

/// The simulated model server without a sidecar, with a Service.
pub(super) const MODEL: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: model}
spec:
  replicas: 1
  selector: {matchLabels: {app: model}}
  template:
    metadata: {labels: {app: model}}
    spec:
      containers:
        - name: model
          image: $stand-in
          args: [model]
          ports: [{name: http, containerPort: 8080}]
          readinessProbe: {httpGet: {path: /health, port: http}, periodSeconds: 1}
          securityContext: $restricted
---
apiVersion: v1
kind: Service
metadata: {name: model}
spec:
  ipFamilyPolicy: PreferDualStack
  selector: {app: model}
  ports: [{name: http, port: 80, targetPort: http}]
";

/// The simulated model server behind a hand-written native sidecar with the product's image. The
/// placeholders are `REPLICAS`, `MODEL_ARGS`, `SIDECAR_ARGS` and `LIFECYCLE`.
///
/// The Service `model` leads through the sidecar, and `direct` bypasses it.
pub(super) const BATCHED_DEPLOYMENT: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: model}
spec:
  replicas: REPLICAS
  strategy: {rollingUpdate: {maxUnavailable: 0, maxSurge: 1}}
  selector: {matchLabels: {app: model}}
  template:
    metadata: {labels: {app: model}}
    spec:
      terminationGracePeriodSeconds: 30
      initContainers:
        - name: groupage
          image: $groupage
          args: [proxy, --upstream, 'http://127.0.0.1:8080', --listen, '[::]:15080', --metrics, '[::]:9190'SIDECAR_ARGS]
          restartPolicy: Always
          ports: [{name: batched, containerPort: 15080}, {name: metrics, containerPort: 9190}]
          startupProbe: {httpGet: {path: /livez, port: 9190}, periodSeconds: 1, failureThreshold: 30}
          readinessProbe: {httpGet: {path: /readyz, port: 9190}, periodSeconds: 1}
          lifecycle: {preStop: {exec: {command: [/groupage, drain]}}}
          securityContext: $restricted
          resources: {requests: {cpu: 50m, memory: 48Mi}, limits: {memory: 128Mi}}
      containers:
        - name: model
          image: $stand-in
          args: [model, --queue, '100000'MODEL_ARGS]
          ports: [{name: http, containerPort: 8080}]
          securityContext: $restricted
          LIFECYCLE
---
apiVersion: v1
kind: Service
metadata: {name: model}
spec:
  ipFamilyPolicy: PreferDualStack
  selector: {app: model}
  ports: [{name: http, port: 80, targetPort: batched}]
---
apiVersion: v1
kind: Service
metadata: {name: direct}
spec:
  selector: {app: model}
  ports: [{name: http, port: 80, targetPort: http}]
";

/// Fills in [`BATCHED_DEPLOYMENT`]. Arguments are YAML that continues a list.
pub(super) fn batched(replicas: u32, model_args: &str, sidecar_args: &str, lifecycle: &str) -> String {
    BATCHED_DEPLOYMENT
        .replace("REPLICAS", &replicas.to_string())
        .replace("MODEL_ARGS", model_args)
        .replace("SIDECAR_ARGS", sidecar_args)
        .replace("LIFECYCLE", lifecycle)
}

/// Changes a manifest of [`batched`] to merge from the first call on: `Adaptive` forwards calls
/// until it has learned how much a batch saves.
pub(super) fn merged(manifest: &str) -> String {
    let policy = r#"[{name: GROUPAGE_POLICY, value: '{"scheduling": {"policy": "WorkConserving"}}'}]"#;
    manifest.replace(
        "          restartPolicy: Always\n",
        &format!("          restartPolicy: Always\n          env: {policy}\n"),
    )
}

/// Policy of a namespace in which pods merge from the first call on.
pub(super) const MERGING_POLICY: &str = "
apiVersion: groupage.dev/v1alpha1
kind: BatchPolicy
metadata: {name: merges}
spec:
  scheduling: {policy: WorkConserving}
";

/// The simulated model server as a user deploys it, for the injector: a Deployment and a Service.
#[derive(Debug, Clone, Copy)]
pub(super) struct ModelManifest<'a> {
    /// Number of pods.
    pub(super) replicas: u32,
    /// Annotations of the pod template, as YAML inside of braces.
    pub(super) annotations: &'a str,
    /// Additional arguments, as YAML that continues a list.
    pub(super) args: &'a str,
    /// Target port of the Service, as name or number.
    pub(super) target: &'a str,
    /// Resources of the container, as YAML.
    pub(super) resources: &'a str,
}

/// Annotation that requests a sidecar.
pub(super) const INJECT_ANNOTATION: &str = "groupage.dev/inject: enabled";

/// The queue of the model outlasts a pause of the machine. With the default of 64 calls, the model
/// itself refuses calls if its process gets no CPU for a second.
const INJECTED: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: model}
spec:
  replicas: REPLICAS
  strategy: {rollingUpdate: {maxUnavailable: 0, maxSurge: 1}}
  selector: {matchLabels: {app: model}}
  template:
    metadata: {labels: {app: model}, annotations: {ANNOTATIONS}}
    spec:
      containers:
        - name: model
          image: $stand-in
          args: [model, --queue, '100000'MODEL_ARGS]
          ports: [{name: http, containerPort: 8080}]
          readinessProbe: {httpGet: {path: /health, port: http}, periodSeconds: 1}
          resources: RESOURCES
          securityContext: $restricted
---
apiVersion: v1
kind: Service
metadata: {name: model}
spec:
  ipFamilyPolicy: PreferDualStack
  selector: {app: model}
  ports: [{name: http, port: 80, targetPort: TARGET}]
";

// === impl ModelManifest ===

impl Default for ModelManifest<'_> {
    fn default() -> Self {
        Self { replicas: 1, annotations: INJECT_ANNOTATION, args: "", target: "http", resources: "{}" }
    }
}

impl ModelManifest<'_> {
    /// Returns the manifest.
    pub(super) fn yaml(&self) -> String {
        INJECTED
            .replace("REPLICAS", &self.replicas.to_string())
            .replace("ANNOTATIONS", self.annotations)
            .replace("MODEL_ARGS", self.args)
            .replace("TARGET", self.target)
            .replace("RESOURCES", self.resources)
    }
}
