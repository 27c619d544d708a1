//! The guide: every command of `docs/guide/kubernetes.md`, in its order, in the shell that a reader has.
//!
//! It installs the product by the guide's own command, so what the other cases installed is taken away before it; it comes last.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use super::manifests::Model;
use super::{Case, case};
use crate::cluster::said_by;
use crate::installation;
use crate::space::Space;
use crate::tools::root;
use crate::{Fault, Verdict};

pub(super) const CASES: &[Case] = &[case!("guide", every_command_of_the_guide_does_what_it_says)];

/// How a block of commands begins; words after it are for readers of the source.
const FENCE: &str = "```sh";

async fn every_command_of_the_guide_does_what_it_says(space: &Space) -> Verdict {
    let cluster = &space.cluster;
    installation::leave(cluster).await?;
    let model = Model { annotations: "", args: ", --base, 5ms", ..Model::default() }.yaml();
    let model = model.replace("name: model", "name: embedder").replace("app: model", "app: embedder");
    space.apply(&model).await?;
    space.deployment_ready("embedder").await?;
    let guide = std::fs::read_to_string(root().join("docs/guide/kubernetes.md"))?;
    let blocks = blocks(&guide);
    if blocks.len() < 8 {
        return Err(format!("{} blocks of commands were found in the guide", blocks.len()).into());
    }
    let home = std::env::temp_dir().join(format!("groupage-e2e-guide-{}", std::process::id()));
    std::fs::create_dir_all(&home)?;
    let done = run(space, &home, &blocks).await;
    std::fs::remove_dir_all(&home)?;
    let lines = done?;
    Ok(format!("{} blocks, {lines} lines said", blocks.len()))
}

async fn run(space: &Space, home: &Path, blocks: &[String]) -> Result<usize, Fault> {
    let cluster = &space.cluster;
    symlink(&cluster.kit.images.binary, home.join("groupage"))?;
    symlink(cluster.kubectl.program(), home.join("kubectl"))?;
    let kubeconfig = home.join("config");
    std::fs::copy(cluster.kubectl.kubeconfig(), &kubeconfig)?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(std::iter::once(home.to_path_buf()).chain(std::env::split_paths(&path)))?;
    let shell = async |commands: &str| {
        let mut command = Command::new("bash");
        command.args(["-euo", "pipefail", "-c", commands]).env("PATH", &path).env("KUBECONFIG", &kubeconfig);
        said_by("bash", command, None).await.map_err(|fault| Fault::from(format!("{commands}\n{fault}")))
    };
    // Whoever reads the guide works in the namespace of his workload.
    shell(&format!("kubectl config set-context --current --namespace {}", space.name)).await?;
    let mut lines = 0;
    for block in blocks {
        lines += shell(block).await?.lines().count();
    }
    Ok(lines)
}

/// The blocks of commands of a page.
fn blocks(page: &str) -> Vec<String> {
    let mut blocks: Vec<String> = Vec::new();
    let mut within = false;
    for line in page.lines() {
        match (within, line) {
            (false, line) if line.split_whitespace().next() == Some(FENCE) => {
                blocks.push(String::new());
                within = true;
            }
            (true, "```") => within = false,
            (true, line) => {
                if let Some(block) = blocks.last_mut() {
                    block.push_str(line);
                    block.push('\n');
                }
            }
            (false, _) => {}
        }
    }
    blocks
}
