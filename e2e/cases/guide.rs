//! The guide: runs every command of `docs/guide/kubernetes.md`, in order, in a shell like a
//! reader's.
//!
//! It installs the product by the guide's own command, so the installation of other cases is
//! removed first. For that reason it runs last.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use super::servers::{self, ExpectedCalls};
use super::{TestCase, case};
use crate::cluster::{retry_until, run_program};
use crate::installation;
use crate::programs::{cargo_target, repository_root};
use crate::test_client::TestClient;
use crate::test_namespace::TestNamespace;
use crate::{CaseResult, TestError};

pub(super) const CASES: &[TestCase] = &[case!("guide", every_command_of_the_guide_works, Node, Python)];

/// Info string of a block of commands. The words after it are for readers of the source, except for
/// [`LOAD_MARK`] and [`CHECK_MARK`].
const FENCE: &str = "```sh";
/// Marks the block after which calls are sent. Pods without a sidecar may lose calls when they
/// terminate.
const LOAD_MARK: &str = "enable";
/// Marks the block after which batches must have been made.
const CHECK_MARK: &str = "look";
/// Timeout for the first merged batch after [`CHECK_MARK`], while calls are sent.
const MERGED_MAX: Duration = Duration::from_secs(30);
/// Address of the Service of the guide's application, as resolved in pods.
const SERVICE: &str = "embedder:80";

async fn every_command_of_the_guide_works(space: &TestNamespace) -> CaseResult {
    let cluster = &space.cluster;
    installation::uninstall_for_case(cluster).await?;
    let deployed = servers::fastapi(space, "embedder").await?;
    space.deployment_ready("embedder").await?;
    let caller = TestClient::start_for(space, SERVICE).await?;
    let unbatched = caller.call_sequentially(SERVICE, &deployed.calls).await?;
    let load = ExpectedCalls { caller: &caller, service: SERVICE, calls: &deployed.calls, unbatched: &unbatched };
    let guide = std::fs::read_to_string(repository_root().join("docs/guide/kubernetes.md"))?;
    let blocks = parse_blocks(&guide);
    if blocks.len() < 8 {
        return Err(format!("{} blocks of commands were found in the guide", blocks.len()).into());
    }
    // A unique directory: process ids repeat between runs. It is also removed when the case times
    // out.
    let home = tempfile::tempdir()?;
    let (begun, over) = (Notify::new(), AtomicBool::new(false));
    let calls = async {
        begun.notified().await;
        // Few callers leave a serial server with too little of a queue to merge.
        load.until(&over, Some(load.calls.len())).await
    };
    let walk = async {
        let lines = run_blocks(space, home.path(), &blocks, &begun).await?;
        over.store(true, Ordering::Relaxed);
        Ok(lines)
    };
    let (calls, lines) = tokio::try_join!(calls, walk)?;
    let commands: usize = blocks.iter().map(CommandBlock::commands).sum();
    Ok(format!(
        "{} blocks of {commands} commands, {lines} lines of output; {calls} calls beside, none lost",
        blocks.len()
    ))
}

/// A block of commands.
struct CommandBlock {
    text: String,
    /// Words after the info string.
    words: Vec<String>,
}

// === impl CommandBlock ===

impl CommandBlock {
    /// Returns the number of commands, each of which consists of one line or of one line and its
    /// input.
    fn commands(&self) -> usize {
        let starts = ["groupage ", "kubectl ", "just ", "ctr ", "ln "];
        self.text.lines().filter(|line| starts.iter().any(|start| line.starts_with(start))).count()
    }
}

async fn run_blocks(
    space: &TestNamespace,
    home: &Path,
    blocks: &[CommandBlock],
    begun: &Notify,
) -> Result<usize, TestError> {
    let cluster = &space.cluster;
    create_programs(space, home)?;
    symlink(&cluster.kit.images.binary, home.join("groupage"))?;
    symlink(cluster.kubectl.program(), home.join("kubectl"))?;
    let kubeconfig = home.join("config");
    std::fs::copy(cluster.kubectl.kubeconfig(), &kubeconfig)?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(std::iter::once(home.to_path_buf()).chain(std::env::split_paths(&path)))?;
    let shell = async |commands: &str| {
        let mut command = Command::new("bash");
        command.args(["-euo", "pipefail", "-c", commands]).current_dir(home);
        command.env("PATH", &path).env("KUBECONFIG", &kubeconfig);
        run_program("bash", command, None).await.map_err(|fault| TestError::from(format!("{commands}\n{fault}")))
    };
    // A reader of the guide works in the namespace of the workload.
    shell(&format!("kubectl config set-context --current --namespace {}", space.name)).await?;
    let mut lines = 0;
    for block in blocks {
        lines += shell(&block.text).await?.lines().count();
        if block.words.iter().any(|word| word == LOAD_MARK) {
            // Pods without a sidecar are not drained: calls that still reach one are refused.
            space.deployment_settled("embedder").await?;
            begun.notify_one();
        }
        if block.words.iter().any(|word| word == CHECK_MARK) {
            let pods = space.deployment_ready("embedder").await?;
            // Calls have only just started, and on a slow node none may have been answered yet.
            retry_until("a merged batch", MERGED_MAX, async || {
                let shared = space.merged_metrics(&pods).await?.shared_batches();
                if shared >= 1.0 { Ok(()) } else { Err(format!("{shared} batches of several calls").into()) }
            })
            .await?;
        }
    }
    Ok(lines)
}

/// Creates programs under the names used by the guide, which a reader has on the path: `just` of
/// the repository, and `ctr` of the node.
fn create_programs(space: &TestNamespace, home: &Path) -> Result<(), TestError> {
    let script = |name: &str, text: String| {
        let file = home.join(name);
        std::fs::write(&file, format!("#!/bin/sh\n{text}\n"))?;
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755))
    };
    let (kit, runner) = (&space.cluster.kit, std::env::current_exe()?);
    // The command that `just image` runs.
    script("just", format!("[ \"$1\" = image ] && exec '{}' --image --profile '{}'", runner.display(), kit.profile))?;
    let node = space.cluster.node.as_ref().ok_or("no own node")?;
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let ctr = std::env::split_paths(&paths).map(|path| path.join("ctr")).find(|file| file.is_file()).ok_or("no ctr")?;
    script("ctr", format!("exec '{}' -a '{}' \"$@\"", ctr.display(), node.socket.display()))?;
    symlink(cargo_target(), home.join("target"))?;
    Ok(())
}

/// Extracts the blocks of commands from a page.
fn parse_blocks(page: &str) -> Vec<CommandBlock> {
    let mut blocks: Vec<CommandBlock> = Vec::new();
    let mut within = false;
    for line in page.lines() {
        let mut words = line.split_whitespace();
        if !within && words.next() == Some(FENCE) {
            blocks.push(CommandBlock { text: String::new(), words: words.map(str::to_owned).collect() });
            within = true;
        } else if line == "```" {
            within = false;
        } else if let Some(block) = blocks.last_mut().filter(|_| within) {
            block.text.push_str(line);
            block.text.push('\n');
        }
    }
    blocks
}
