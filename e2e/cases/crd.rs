//! The custom resource definitions on a real API server: objects that they accept, and objects that
//! they reject with the expected message.

use std::path::{Path, PathBuf};

use super::{TestCase, case};
use crate::programs::repository_root;
use crate::test_namespace::TestNamespace;
use crate::{CaseResult, TestError};

pub(super) const CASES: &[TestCase] = &[case!("crd", definitions_accept_valid_objects_and_refuse_invalid_ones)];

/// Prefix of a comment in a manifest that contains part of the expected error message.
const REFUSED: &str = "# refused:";

async fn definitions_accept_valid_objects_and_refuse_invalid_ones(space: &TestNamespace) -> CaseResult {
    let definitions = std::fs::read_to_string(repository_root().join("manifests/crds.yaml"))?;
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
            return Err(format!("{} does not contain `{REFUSED} …`", file.display()).into());
        }
        let why = space.apply_rejected(&text).await.map_err(|fault| format!("{}: {fault}", file.display()))?;
        if let Some(part) = expected.iter().find(|part| !why.contains(**part)) {
            return Err(format!("{}: no {part:?} in\n{why}", file.display()).into());
        }
    }
    Ok(format!("{} accepted, {} refused", accepted.len(), refused.len()))
}

/// Returns the manifests of a folder in order, or an error if it has none.
fn objects(folder: &str) -> Result<Vec<PathBuf>, TestError> {
    let folder = repository_root().join("tests/data/crd").join(folder);
    let mut files = Vec::new();
    for entry in std::fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))? {
        files.push(entry?.path());
    }
    files.retain(|file| file.extension() == Some(Path::new("yaml").as_os_str()));
    files.sort();
    if files.is_empty() { Err(format!("{} is empty", folder.display()).into()) } else { Ok(files) }
}
