//! JSON manifests of the sidecar container, the redirect init container and their volumes.

use serde_json::{Value, json};

use super::access::{as_integer, at};
use super::allocator::PortAllocator;
use super::effective::InjectionSettings;
use super::engine::{self, EnginePlan};
use super::names::{DRAIN_TOKEN, STATE_VOLUME, TOKEN_VOLUME};
use super::planned::{PlannedPort, PortCapture};
use super::{CONTAINER, InjectionContext, REDIRECT};

/// Mount path of the token. It is the path of the workload's own service account token, so the
/// sidecar does not get that one.
const TOKEN_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Mount path of the state volume.
const STATE_PATH: &str = "/var/run/groupage";
/// Name of the container port that serves `/metrics`, and that if the application has the first.
pub(super) const METRICS_NAMES: [&str; 2] = ["gpg-metrics", "gpg-metrics-2"];
/// Audience of the service account token.
const AUDIENCE: &str = "groupage.dev";
/// User ID of the image. It is set explicitly if the pod's own user is root, which `runAsNonRoot`
/// rejects.
const USER: u32 = 65532;

pub(super) struct ManifestInputs<'a> {
    pub(super) pod: &'a Value,
    pub(super) context: &'a InjectionContext,
    pub(super) overrides: &'a InjectionSettings,
    pub(super) planned: &'a [PlannedPort],
    /// The model that the sidecar executes.
    pub(super) engine: Option<&'a EnginePlan>,
    pub(super) numbers: &'a PortAllocator,
    pub(super) resources: &'a Value,
    pub(super) native: bool,
    pub(super) token: &'a str,
    /// Initial policy configuration of the sidecar.
    pub(super) snapshot: &'a str,
    /// Termination grace period of the pod, in seconds.
    pub(super) grace: u64,
}

// === impl ManifestInputs ===

impl ManifestInputs<'_> {
    pub(super) fn sidecar_container(&self) -> Value {
        let defaults = &self.context.sidecar;
        let mut container = json!({
            "name": CONTAINER,
            "image": defaults.image,
            "imagePullPolicy": defaults.pull_policy,
            "args": self.args(),
            "env": self.env(),
            "ports": self.ports(),
            // The probe checks only the proxy. A native sidecar delays the start of the
            // application, so a probe that waited for the model would deadlock. Readiness waits for
            // the model, also for one that the sidecar executes.
            "startupProbe": self.probe("/livez", 1, if self.engine.is_some() { engine::START_SECONDS } else { 60 }),
            "readinessProbe": self.probe("/readyz", 2, 1),
            "livenessProbe": self.probe("/livez", 10, 3),
            "lifecycle": {"preStop": {"exec": {"command": ["/groupage", "drain", "--admin", self.admin()]}}},
            "resources": self.resources,
            "securityContext": self.security_context(),
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "volumeMounts": self.volume_mounts(),
        });
        if self.native {
            container["restartPolicy"] = json!("Always");
        }
        container
    }

    /// Builds the init container that redirects ports; `None` if no port is redirected.
    pub(super) fn redirect_container(&self) -> Option<Value> {
        let rules: Vec<String> = self
            .planned
            .iter()
            .filter(|planned| planned.mode == PortCapture::Redirect)
            .flat_map(|planned| ["--redirect".to_owned(), format!("{}={}", planned.port.number, planned.listen)])
            .collect();
        if rules.is_empty() {
            return None;
        }
        let args: Vec<String> = std::iter::once("redirect-init".to_owned()).chain(rules).collect();
        Some(json!({
            "name": REDIRECT,
            "image": self.context.sidecar.image,
            "imagePullPolicy": self.context.sidecar.pull_policy,
            "args": args,
            "resources": self.resources,
            // The kernel accepts nf_tables rules only from processes with NET_ADMIN.
            "securityContext": {
                "allowPrivilegeEscalation": false,
                "capabilities": {"add": ["NET_ADMIN"], "drop": ["ALL"]},
                "readOnlyRootFilesystem": true,
                "runAsNonRoot": false,
                "runAsUser": 0,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "volumeMounts": [{"name": TOKEN_VOLUME, "mountPath": TOKEN_PATH, "readOnly": true}],
        }))
    }

    fn volume_mounts(&self) -> Vec<Value> {
        let mut mounts = vec![
            json!({"name": TOKEN_VOLUME, "mountPath": TOKEN_PATH, "readOnly": true}),
            json!({"name": STATE_VOLUME, "mountPath": STATE_PATH}),
        ];
        mounts.extend(self.engine.map(|engine| engine.volume_mount().clone()));
        mounts
    }

    fn args(&self) -> Vec<String> {
        let mut args = vec!["proxy".to_owned()];
        args.extend(self.engine.iter().flat_map(|engine| engine.args()).map(|text| escape_expansion(&text)));
        for planned in self.planned {
            let name = planned.port.name.as_deref().unwrap_or_default();
            let listen = match planned.mode {
                PortCapture::Loopback => "pod".to_owned(),
                PortCapture::Named | PortCapture::Moved | PortCapture::Redirect | PortCapture::None => {
                    planned.listen.to_string()
                }
            };
            let application = match planned.mode {
                PortCapture::Moved => format!("={}", planned.application),
                _ => String::new(),
            };
            // Flag and value are one argument, so a port name can never be parsed as a flag.
            args.push(format!("--capture={name}:{}{application}@{listen}", planned.port.number));
        }
        let rest = [
            ("--metrics", format!("[::]:{}", self.numbers.metrics)),
            ("--admin", self.admin()),
            ("--state", STATE_PATH.to_owned()),
            ("--log-format", "json".to_owned()),
            ("--log-level", escape_expansion(&self.overrides.log_level)),
        ];
        args.extend(rest.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]));
        args
    }

    fn env(&self) -> Vec<Value> {
        let field = |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}});
        let value = |name: &str, value: &str| json!({"name": name, "value": escape_expansion(value)});
        let mut env = vec![
            field("GROUPAGE_POD_NAME", "metadata.name"),
            field("GROUPAGE_POD_NAMESPACE", "metadata.namespace"),
            field("GROUPAGE_POD_UID", "metadata.uid"),
            field("GROUPAGE_POD_IPS", "status.podIPs"),
            field("GROUPAGE_NODE_NAME", "spec.nodeName"),
            value("GROUPAGE_POLICY", self.snapshot),
            value("GROUPAGE_GRACE", &format!("{}s", self.grace)),
            value(DRAIN_TOKEN, self.token),
        ];
        if self.engine.is_some_and(EnginePlan::needs_gpu) {
            // The runtime of NVIDIA provides the driver library only with `compute`.
            env.push(value("NVIDIA_DRIVER_CAPABILITIES", "compute,utility"));
        }
        if let Some(controller) = &self.context.controller {
            env.push(value("GROUPAGE_CONTROLLER", &controller.address));
            if !controller.ca.is_empty() {
                env.push(value("GROUPAGE_CA", &controller.ca));
            }
        }
        env
    }

    fn ports(&self) -> Vec<Value> {
        let mut ports: Vec<Value> = Vec::new();
        let [usual, other] = METRICS_NAMES;
        let mut names = vec![usual];
        let captured =
            self.planned.iter().filter(|planned| !matches!(planned.mode, PortCapture::Loopback | PortCapture::Moved));
        let captured = captured.map(|planned| (planned.listen, planned.names()));
        let own = self.engine.iter().flat_map(|engine| &engine.ports);
        let own = own.map(|port| (port.number, port.name.iter().map(String::as_str).collect()));
        for (number, moved) in captured.chain(own) {
            let port = || json!({"containerPort": number, "protocol": "TCP"});
            if moved.is_empty() {
                ports.push(port());
            }
            for name in moved {
                let mut port = port();
                port["name"] = json!(name);
                ports.push(port);
                names.push(name);
            }
        }
        // The application may have a port of the same name.
        let own = if names.iter().filter(|name| **name == usual).count() > 1 { other } else { usual };
        ports.push(json!({"name": own, "containerPort": self.numbers.metrics, "protocol": "TCP"}));
        ports
    }

    fn probe(&self, path: &str, period: u32, failures: u32) -> Value {
        // No `host`: Pod Security rejects it from Kubernetes 1.34 on.
        json!({
            "httpGet": {"path": path, "port": self.numbers.metrics},
            "periodSeconds": period,
            "failureThreshold": failures,
            "timeoutSeconds": 2,
        })
    }

    fn admin(&self) -> String {
        format!("127.0.0.1:{}", self.numbers.admin)
    }

    /// Builds a security context that satisfies Pod Security `restricted`. The user is that of the
    /// image, so a cluster may assign another (`OpenShift` does).
    fn security_context(&self) -> Value {
        let mut security = json!({
            "allowPrivilegeEscalation": false,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": true,
            "runAsNonRoot": true,
            "seccompProfile": {"type": "RuntimeDefault"},
        });
        if as_integer(at(self.pod, &["spec", "securityContext", "runAsUser"])) == Some(0) {
            security["runAsUser"] = json!(USER);
        }
        security
    }
}

/// Escapes a text for the kubelet, which expands `$(NAME)` to a variable and `$$` to `$`.
fn escape_expansion(text: &str) -> String {
    text.replace('$', "$$")
}

/// Builds the volumes that the sidecar mounts.
pub(super) fn volumes() -> [Value; 2] {
    [
        json!({
            "name": TOKEN_VOLUME,
            "projected": {"sources": [{"serviceAccountToken": {"audience": AUDIENCE, "expirationSeconds": 3600, "path": "token"}}]},
        }),
        json!({"name": STATE_VOLUME, "emptyDir": {"sizeLimit": "1Mi"}}),
    ]
}
