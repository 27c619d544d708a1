//! Starts the cluster. The node is ready after about five seconds.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use k8s_openapi::api::core::v1;
use kube::runtime::wait::await_condition;
use kube::{Api, Client};
use tokio::sync::OnceCell;

use super::certificates::{Certificates, path_text};
use super::component::{Component, write_config};
use super::network::{HOST, HOST6, PODS, SERVICES};
use super::node::LocalNode;
use super::{Cluster, Kubectl, client, dns, network, retry_until};
use crate::TestError;
use crate::namespaces::cgroup;
use crate::prerequisites::Prerequisites;
use crate::programs::run_quietly;

/// Folder of the run's files. It is in memory and vanishes with the mount namespace.
const FOLDER: &str = "/run/groupage-e2e";
/// Ten times the start time on two busy cores.
const START_MAX: Duration = Duration::from_secs(60);

/// A cluster that is being started.
struct ClusterBuilder {
    folder: PathBuf,
    certificates: Certificates,
    components: BTreeMap<&'static str, Component>,
    kit: Prerequisites,
}

/// Starts a cluster with one node in the namespaces of this process.
pub(crate) async fn start(kit: Prerequisites) -> Result<Cluster, TestError> {
    network::set_up_mounts()?;
    network::set_up_links()?;
    let folder = PathBuf::from(FOLDER);
    for inner in ["log", "cni", "pods", "plugins"] {
        std::fs::create_dir_all(folder.join(inner))?;
    }
    let certificates = Certificates::make(folder.join("pki"))?;
    let mut starting = ClusterBuilder { folder, certificates, components: BTreeMap::new(), kit };
    let up = starting.start_all().await;
    let ClusterBuilder { folder, certificates, components, kit } = starting;
    let node = LocalNode { components: Mutex::new(components), socket: folder.join("containerd.sock") };
    let client = up.map_err(|fault| format!("{fault}\n{}", node.exit_reports().join("\n")))?;
    tokio::spawn(dns::serve(client.clone()));
    let kubectl = Kubectl::new(kit.kube.clone(), certificates.kubeconfig("admin")?);
    Ok(Cluster { client, kubectl, node: Some(node), kit, installed: OnceCell::new() })
}

/// Copies the logs of every component.
pub(crate) fn keep_logs(to: &Path) -> Result<(), TestError> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(Path::new(FOLDER).join("log"))? {
        let entry = entry?;
        std::fs::copy(entry.path(), to.join(entry.file_name()))?;
    }
    Ok(())
}

// === impl ClusterBuilder ===

impl ClusterBuilder {
    async fn start_all(&mut self) -> Result<Client, TestError> {
        self.start_control_plane()?;
        self.start_containerd().await?;
        let client = client(&self.certificates.kubeconfig("admin")?).await?;
        let components = std::cell::RefCell::new(&mut self.components);
        let answered = retry_until("the API server", START_MAX, async || {
            let ready = http::Request::get("/readyz").body(Vec::new())?;
            let ended = components.borrow_mut().values_mut().find_map(Component::exit_report);
            match ended {
                // A component has exited, so retrying is futile.
                Some(fault) => Ok(Err(TestError::from(fault))),
                None => Ok(Ok(client.request_text(ready).await.map(drop)?)),
            }
        });
        answered.await??;
        self.start_dependents()?;
        let nodes: Api<v1::Node> = Api::all(client.clone());
        let ready = await_condition(nodes, "node1", |node: Option<&v1::Node>| {
            let conditions = node.and_then(|node| node.status.as_ref()?.conditions.as_ref());
            conditions.is_some_and(|all| all.iter().any(|one| one.type_ == "Ready" && one.status == "True"))
        });
        tokio::time::timeout(START_MAX, ready)
            .await
            .map_err(|_| format!("the node is not ready within {} s", START_MAX.as_secs()))??;
        // Pods are rejected until the controller manager has created the default service account.
        let accounts: Api<v1::ServiceAccount> = Api::default_namespaced(client.clone());
        let there = await_condition(accounts, "default", |account: Option<&v1::ServiceAccount>| account.is_some());
        tokio::time::timeout(START_MAX, there).await.map_err(|_| "no service account was created")??;
        Ok(client)
    }

    /// Starts a component of Kubernetes.
    fn start_kubernetes_component(&mut self, name: &'static str, args: &[String]) -> Result<(), TestError> {
        let args: Vec<_> = std::iter::once(name.to_owned()).chain(args.iter().cloned()).collect();
        let component = Component::start(name, &self.kit.kube, args, &self.folder.join("log"))?;
        self.components.insert(name, component);
        Ok(())
    }

    fn path(&self, name: &str) -> String {
        path_text(&self.folder.join(name))
    }

    fn key(&self, name: &str) -> String {
        path_text(&self.certificates.file(name))
    }

    fn start_control_plane(&mut self) -> Result<(), TestError> {
        self.start_kubernetes_component(
            "etcd",
            &[
                flag("data-dir", self.path("etcd")),
                "--unsafe-no-fsync".to_owned(),
                flag("listen-client-urls", "http://127.0.0.1:2379"),
                flag("advertise-client-urls", "http://127.0.0.1:2379"),
                flag("listen-peer-urls", "http://127.0.0.1:2380"),
            ],
        )?;
        self.start_kubernetes_component(
            "kube-apiserver",
            &[
                flag("etcd-servers", "http://127.0.0.1:2379"),
                flag("secure-port", "6443"),
                flag("advertise-address", HOST),
                flag("service-cluster-ip-range", SERVICES),
                flag("tls-cert-file", self.key("apiserver.crt")),
                flag("tls-private-key-file", self.key("apiserver.key")),
                flag("client-ca-file", self.key("ca.crt")),
                flag("service-account-issuer", "https://kubernetes.default.svc"),
                flag("service-account-signing-key-file", self.key("sa.key")),
                flag("service-account-key-file", self.key("sa.pub")),
                flag("authorization-mode", "Node,RBAC"),
                flag("enable-admission-plugins", "NodeRestriction"),
                flag("allow-privileged", "true"),
                // Webhooks are called at the addresses of their pods, without kube-proxy, and the
                // name of the node cannot be resolved.
                flag("enable-aggregator-routing", "true"),
                flag("kubelet-preferred-address-types", "InternalIP"),
                flag("kubelet-client-certificate", self.key("admin.crt")),
                flag("kubelet-client-key", self.key("admin.key")),
                flag("kubelet-certificate-authority", self.key("ca.crt")),
            ],
        )
    }

    /// Starts the container runtime and imports the images.
    async fn start_containerd(&mut self) -> Result<(), TestError> {
        write_config(&self.folder.join("cni/10.conflist"), &self.cni())?;
        let toml = write_config(&self.folder.join("containerd.toml"), &self.containerd())?;
        let args = vec!["-c".to_owned(), toml];
        let component = Component::start("containerd", Path::new("containerd"), args, &self.folder.join("log"))?;
        self.components.insert("containerd", component);
        let socket = self.path("containerd.sock");
        retry_until("containerd", START_MAX, async || {
            run_quietly(Command::new("ctr").args(["-a", &socket, "version"])).map(drop)
        })
        .await?;
        for image in self.kit.images.all() {
            let import = ["-a", &socket, "-n", "k8s.io", "images", "import"];
            run_quietly(Command::new("ctr").args(import).arg(&image.archive))?;
        }
        Ok(())
    }

    /// Starts the components that need a running API server.
    fn start_dependents(&mut self) -> Result<(), TestError> {
        let kubeconfig =
            |starting: &Self, component| starting.certificates.kubeconfig(component).map(|file| path_text(&file));
        let manager = "kube-controller-manager";
        let args = [
            flag("kubeconfig", kubeconfig(self, manager)?),
            flag("service-account-private-key-file", self.key("sa.key")),
            flag("root-ca-file", self.key("ca.crt")),
            flag("leader-elect", "false"),
            flag("use-service-account-credentials", "true"),
            // Cases take the API server down for longer than the default grace period of a silent
            // node.
            flag("node-monitor-grace-period", "5m"),
        ];
        self.start_kubernetes_component(manager, &args)?;
        let scheduler = "kube-scheduler";
        let args = [flag("kubeconfig", kubeconfig(self, scheduler)?), flag("leader-elect", "false")];
        self.start_kubernetes_component(scheduler, &args)?;
        let file = write_config(&self.folder.join("kubelet.yaml"), &self.kubelet())?;
        let args = [
            flag("config", file),
            flag("kubeconfig", kubeconfig(self, "kubelet")?),
            flag("root-dir", self.path("kubelet")),
            flag("hostname-override", "node1"),
            flag("node-ip", format!("{HOST},{HOST6}")),
            // Set as by a cloud provider: pods on the same node class start with the state that
            // other pods learned on it.
            flag("node-labels", "node.kubernetes.io/instance-type=e2e"),
        ];
        self.start_kubernetes_component("kubelet", &args)?;
        let proxy = Self::proxy(&kubeconfig(self, "kube-proxy")?);
        let file = write_config(&self.folder.join("proxy.yaml"), &proxy)?;
        self.start_kubernetes_component("kube-proxy", &[flag("config", file)])
    }

    fn cni(&self) -> String {
        let [pods, pods6] = PODS;
        format!(
            r#"{{"cniVersion":"1.0.0","name":"pods","plugins":[
 {{"type":"bridge","bridge":"cni0","isGateway":true,"hairpinMode":true,"ipam":{{"type":"host-local","dataDir":"{}",
   "ranges":[[{{"subnet":"{pods}"}}],[{{"subnet":"{pods6}"}}]],"routes":[{{"dst":"0.0.0.0/0"}},{{"dst":"::/0"}}]}}}},
 {{"type":"portmap","capabilities":{{"portMappings":true}}}}]}}
"#,
            self.path("ipam")
        )
    }

    fn containerd(&self) -> String {
        format!(
            r#"version = 2
root = "{}"
state = "{}"
[grpc]
  address = "{}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{}"
  restrict_oom_score_adj = true # where CAP_SYS_RESOURCE is missing
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{}"
"#,
            self.path("containerd"),
            self.path("containerd-state"),
            self.path("containerd.sock"),
            self.kit.images.pause.reference,
            self.path("cni"),
        )
    }

    fn kubelet(&self) -> String {
        format!(
            "apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix://{}
cgroupDriver: cgroupfs
cgroupRoot: /{}
failCgroupV1: false
failSwapOn: false
oomScoreAdj: 0
authentication: {{anonymous: {{enabled: false}}, webhook: {{enabled: true}}, x509: {{clientCAFile: {}}}}}
authorization: {{mode: Webhook}}
tlsCertFile: {}
tlsPrivateKeyFile: {}
clusterDNS: [{HOST}]
clusterDomain: {}
resolvConf: ''
podLogsDir: {}
volumePluginDir: {}
evictionHard: {{memory.available: 100Mi}}
imageGCHighThresholdPercent: 100
localStorageCapacityIsolation: false
nodeStatusUpdateFrequency: 2s
syncFrequency: 5s
",
            self.path("containerd.sock"),
            cgroup(self.kit.run),
            self.key("ca.crt"),
            self.key("kubelet.crt"),
            self.key("kubelet.key"),
            dns::DOMAIN,
            self.path("pods"),
            self.path("plugins"),
        )
    }

    fn proxy(kubeconfig: &str) -> String {
        format!(
            "apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
hostnameOverride: node1
clientConnection: {{kubeconfig: {kubeconfig}}}
clusterCIDR: {}
conntrack: {{maxPerCore: 0, min: 0}}
nftables: {{minSyncPeriod: 100ms, syncPeriod: 10s}}
",
            PODS.join(",")
        )
    }
}

fn flag(name: &str, value: impl AsRef<str>) -> String {
    format!("--{name}={}", value.as_ref())
}
