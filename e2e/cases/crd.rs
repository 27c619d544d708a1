//! The custom resources on a real API server: the definitions, what they accept, what they refuse and why.

use std::path::{Path, PathBuf};

use super::{Case, case};
use crate::space::Space;
use crate::tools::root;
use crate::{Fault, Verdict};

pub(super) const CASES: &[Case] = &[case!("crd", definitions_accept_and_refuse_what_they_should)];

/// How a refused object says what the API server must say.
const REFUSED: &str = "# refused:";

async fn definitions_accept_and_refuse_what_they_should(space: &Space) -> Verdict {
    let definitions = std::fs::read_to_string(root().join("manifests/crds.yaml"))?;
    space.apply(&definitions).await?;
    space.kubectl(&["wait", "crd", "--selector=", "--all", "--for=condition=Established", "--timeout=30s"]).await?;
    let accepted = objects("accepted")?;
    for file in &accepted {
        let text = std::fs::read_to_string(file)?;
        space.apply(&text).await.map_err(|fault| format!("{}: {fault}", file.display()))?;
    }
    let refused = objects("refused")?;
    for file in &refused {
        let text = std::fs::read_to_string(file)?;
        let expected: Vec<_> = text.lines().filter_map(|line| line.strip_prefix(REFUSED)).map(str::trim).collect();
        if expected.is_empty() {
            return Err(format!("{} does not say `{REFUSED} …`", file.display()).into());
        }
        let why = space.refused(&text).await.map_err(|fault| format!("{}: {fault}", file.display()))?;
        if let Some(part) = expected.iter().find(|part| !why.contains(**part)) {
            return Err(format!("{}: no {part:?} in\n{why}", file.display()).into());
        }
    }
    Ok(format!("{} accepted, {} refused", accepted.len(), refused.len()))
}

/// The manifests of a folder, in order; there are some.
fn objects(folder: &str) -> Result<Vec<PathBuf>, Fault> {
    let folder = root().join("tests/data/crd").join(folder);
    let mut files = Vec::new();
    for entry in std::fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))? {
        files.push(entry?.path());
    }
    files.retain(|file| file.extension() == Some(Path::new("yaml").as_os_str()));
    files.sort();
    if files.is_empty() { Err(format!("{} is empty", folder.display()).into()) } else { Ok(files) }
}
