//! Handle of the cluster: a client, kubectl, and the node with its components if this run started
//! the cluster.

mod certificates;
mod component;
mod dns;
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

pub(crate) use self::node::LocalNode;
pub(crate) use self::start::{keep_logs, start};
use super::TestError;
use super::prerequisites::Prerequisites;
use super::programs::output_or_error;

/// A cluster that is up.
pub(crate) struct Cluster {
    /// Client with the permissions of a cluster administrator.
    pub(crate) client: Client,
    /// `kubectl` for this cluster.
    pub(crate) kubectl: Kubectl,
    /// The only node, if this run started the cluster.
    pub(crate) node: Option<LocalNode>,
    /// Prerequisites that the run was started with.
    pub(crate) kit: Prerequisites,
    /// Set once the product has been installed in this run.
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
    /// Connects to an existing cluster.
    pub(crate) async fn connect_existing(kit: Prerequisites, kubeconfig: PathBuf) -> Result<Self, TestError> {
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

    /// Returns a client that authenticates with a service account's token instead of the
    /// administrator's certificate.
    pub(crate) async fn client_with_token(&self, token: &str) -> Result<Client, TestError> {
        let mut config = Config::from_custom_kubeconfig(
            Kubeconfig::read_from(&self.kubectl.kubeconfig)?,
            &KubeConfigOptions::default(),
        )
        .await?;
        config.auth_info =
            kube::config::AuthInfo { token: Some(token.to_owned().into()), ..kube::config::AuthInfo::default() };
        Ok(Client::try_from(config)?)
    }

    /// Returns the node, or an error if the cluster was not started by this run.
    pub(crate) fn node(&self) -> Result<&LocalNode, TestError> {
        self.node.as_ref().ok_or_else(|| "requires an own node".into())
    }

    /// Runs helm on this cluster.
    pub(crate) async fn helm(&self, args: &[&str]) -> Result<String, TestError> {
        let helm = self.kit.helm.clone()?;
        // Caches and settings of helm belong to this run alone.
        let home = std::env::temp_dir().join("groupage-e2e-helm");
        let mut command = Command::new(&helm);
        command.args(args).env("KUBECONFIG", &self.kubectl.kubeconfig).env("HOME", home);
        run_program("helm", command, None).await
    }

    /// Runs the product's command-line interface on this cluster: `inject`, `check` and others.
    pub(crate) async fn groupage(&self, args: &[&str], input: &str) -> Result<String, TestError> {
        let mut command = Command::new(&self.kit.images.binary);
        command.args(args).env("KUBECONFIG", &self.kubectl.kubeconfig);
        run_program("groupage", command, Some(input.to_owned())).await
    }
}

/// Creates a client from a configuration file.
pub(crate) async fn client(kubeconfig: &Path) -> Result<Client, TestError> {
    let config =
        Config::from_custom_kubeconfig(Kubeconfig::read_from(kubeconfig)?, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}

// === impl Kubectl ===

impl Kubectl {
    pub(crate) fn new(program: PathBuf, kubeconfig: PathBuf) -> Self {
        Self { program, kubeconfig }
    }

    /// Returns the path of the program, which may be the combined Kubernetes binary.
    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    /// Returns the path of its configuration.
    pub(crate) fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Runs `kubectl` and returns its output.
    pub(crate) async fn run(&self, args: &[&str]) -> Result<String, TestError> {
        run_program("kubectl", self.command(args), None).await
    }

    /// Runs `kubectl` with this standard input and returns its output.
    pub(crate) async fn run_with(&self, args: &[&str], input: &str) -> Result<String, TestError> {
        run_program("kubectl", self.command(args), Some(input.to_owned())).await
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        // The combined Kubernetes binary expects the name of the program as its first argument.
        if self.program.file_name().is_some_and(|name| name != "kubectl") {
            command.arg("kubectl");
        }
        command.arg("--kubeconfig").arg(&self.kubeconfig).args(args);
        command
    }
}

/// Runs a program and returns its standard output.
pub(crate) async fn run_program(
    name: &'static str,
    mut command: Command,
    input: Option<String>,
) -> Result<String, TestError> {
    let ran = tokio::task::spawn_blocking(move || {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let pipe = child.stdin.take();
        // Written by a separate thread, since a long input and a long output would otherwise
        // deadlock.
        let written = std::thread::spawn(move || match (pipe, input) {
            (Some(mut pipe), Some(input)) => std::io::Write::write_all(&mut pipe, input.as_bytes()),
            _ => Ok(()),
        });
        let output = child.wait_with_output();
        // A program that exits without reading its input reports the reason itself.
        written.join().ok();
        output
    });
    output_or_error(name, &ran.await??)
}

/// Retries until the operation succeeds or the time limit is reached.
pub(crate) async fn retry_until<T, F>(
    what: &str,
    limit: Duration,
    mut attempt: impl FnMut() -> F,
) -> Result<T, TestError>
where
    F: Future<Output = Result<T, TestError>>,
{
    const PAUSE: Duration = Duration::from_millis(50);
    let last = Arc::new(std::sync::Mutex::new(None));
    let request = async {
        loop {
            match attempt().await {
                Ok(answer) => return answer,
                Err(fault) => *last.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(fault),
            }
            tokio::time::sleep(PAUSE).await;
        }
    };
    if let Ok(answer) = tokio::time::timeout(limit, request).await {
        return Ok(answer);
    }
    let why = last.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
    let why = why.map_or_else(|| "no answer".to_owned(), |fault| fault.to_string());
    Err(format!("{what}: not within {} s: {why}", limit.as_secs()).into())
}
