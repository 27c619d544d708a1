//! The cluster, from the outside: a client, kubectl, and where it is ours the node with everything that runs on it.

mod certificates;
mod component;
mod names;
mod network;
mod node;
mod start;

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tokio::sync::OnceCell;

pub(crate) use self::node::Node;
pub(crate) use self::start::{keep_logs, start};
use super::Fault;
use super::kit::Kit;
use super::tools::said;

/// A cluster that answers.
pub(crate) struct Cluster {
    /// As a cluster administrator.
    pub(crate) client: Client,
    /// What a user types.
    pub(crate) kubectl: Kubectl,
    /// The one node, where the cluster is ours.
    pub(crate) node: Option<Node>,
    /// What it was made of.
    pub(crate) kit: Kit,
    /// Whether the product was installed in this run.
    pub(crate) installed: OnceCell<()>,
}

/// `kubectl` with a configuration.
#[derive(Debug, Clone)]
pub(crate) struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
}

// === impl Cluster ===

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("node", &self.node).finish_non_exhaustive()
    }
}

impl Cluster {
    /// One that is there already.
    pub(crate) async fn there(kit: Kit, kubeconfig: PathBuf) -> Result<Self, Fault> {
        let client = client(&kubeconfig).await?;
        client.apiserver_version().await.map_err(|error| format!("{}: {error}", kubeconfig.display()))?;
        Ok(Self {
            client,
            kubectl: Kubectl::new(kit.kube.clone(), kubeconfig),
            node: None,
            kit,
            installed: OnceCell::new(),
        })
    }

    /// The same, as somebody else: a service account's token in place of the administrator's certificate.
    pub(crate) async fn as_bearer(&self, token: &str) -> Result<Client, Fault> {
        let mut config = Config::from_custom_kubeconfig(
            Kubeconfig::read_from(&self.kubectl.kubeconfig)?,
            &KubeConfigOptions::default(),
        )
        .await?;
        config.auth_info =
            kube::config::AuthInfo { token: Some(token.to_owned().into()), ..kube::config::AuthInfo::default() };
        Ok(Client::try_from(config)?)
    }

    /// The node, or why a case cannot have one.
    pub(crate) fn node(&self) -> Result<&Node, Fault> {
        self.node.as_ref().ok_or_else(|| "needs a node of ours".into())
    }

    /// Runs the real helm on this cluster.
    pub(crate) async fn helm(&self, args: &[&str]) -> Result<String, Fault> {
        let helm = self.kit.helm.clone()?;
        // Its caches and settings are nobody's but this run's.
        let home = std::env::temp_dir().join("groupage-e2e-helm");
        let mut command = Command::new(&helm);
        command.args(args).env("KUBECONFIG", &self.kubectl.kubeconfig).env("HOME", home);
        said_by("helm", command, None).await
    }

    /// Runs our own program, as a user would: `inject`, `check` and the like.
    pub(crate) async fn groupage(&self, args: &[&str], input: &str) -> Result<String, Fault> {
        let mut command = Command::new(&self.kit.images.binary);
        command.args(args).env("KUBECONFIG", &self.kubectl.kubeconfig);
        said_by("groupage", command, Some(input.to_owned())).await
    }
}

/// A client of this configuration.
pub(crate) async fn client(kubeconfig: &Path) -> Result<Client, Fault> {
    let config =
        Config::from_custom_kubeconfig(Kubeconfig::read_from(kubeconfig)?, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}

// === impl Kubectl ===

impl Kubectl {
    pub(crate) fn new(program: PathBuf, kubeconfig: PathBuf) -> Self {
        Self { program, kubeconfig }
    }

    /// The program; it goes by the name under which it is called.
    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    /// The configuration that it uses.
    pub(crate) fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// What it prints, or why it failed.
    pub(crate) async fn run(&self, args: &[&str]) -> Result<String, Fault> {
        said_by("kubectl", self.command(args), None).await
    }

    /// The same with something on its standard input.
    pub(crate) async fn run_with(&self, args: &[&str], input: &str) -> Result<String, Fault> {
        said_by("kubectl", self.command(args), Some(input.to_owned())).await
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        // Ours is all of Kubernetes in one.
        if self.program.file_name().is_some_and(|name| name != "kubectl") {
            command.arg("kubectl");
        }
        command.arg("--kubeconfig").arg(&self.kubeconfig).args(args);
        command
    }
}

/// What a program says, or why it failed.
pub(crate) async fn said_by(name: &'static str, mut command: Command, input: Option<String>) -> Result<String, Fault> {
    let ran = tokio::task::spawn_blocking(move || {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let pipe = child.stdin.take();
        // On a thread of its own, or a long input and a long output would wait for each other.
        let written = std::thread::spawn(move || match (pipe, input) {
            (Some(mut pipe), Some(input)) => std::io::Write::write_all(&mut pipe, input.as_bytes()),
            _ => Ok(()),
        });
        let output = child.wait_with_output();
        // One that ended without reading all says why itself.
        written.join().ok();
        output
    });
    said(name, &ran.await??)
}

/// Asks again until there is an answer, for as long as something may take to come up.
pub(crate) async fn until<T, F>(what: &str, limit: Duration, mut ask: impl FnMut() -> F) -> Result<T, Fault>
where
    F: Future<Output = Result<T, Fault>>,
{
    const PAUSE: Duration = Duration::from_millis(50);
    let last = Arc::new(std::sync::Mutex::new(None));
    let asked = async {
        loop {
            match ask().await {
                Ok(answer) => return answer,
                Err(fault) => *last.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(fault),
            }
            tokio::time::sleep(PAUSE).await;
        }
    };
    if let Ok(answer) = tokio::time::timeout(limit, asked).await {
        return Ok(answer);
    }
    let why = last.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
    let why = why.map_or_else(|| "no answer".to_owned(), |fault| fault.to_string());
    Err(format!("{what}: not within {} s: {why}", limit.as_secs()).into())
}
