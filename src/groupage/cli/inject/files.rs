//! Input manifests: files, folders of them, or standard input.

use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};

use super::{InputError, ManifestFile};
use crate::cli::yaml;
use crate::injector::InjectionErrorCode;

/// File name extensions that are read from a folder, as `kubectl` does.
const EXTENSIONS: [&str; 3] = ["yaml", "yml", "json"];

/// Reads all inputs. The files of a folder are read in the order of their names.
///
/// # Errors
/// The first input that cannot be read.
pub(super) fn read<'a>(paths: impl Iterator<Item = &'a PathBuf>) -> Result<Vec<ManifestFile>, InputError> {
    let mut sources = Vec::new();
    for path in paths {
        if path.is_dir() {
            let found = list_folder(path).map_err(|error| InputError::unreadable(path, &error))?;
            if found.is_empty() {
                let what =
                    format!("the folder contains no {} files", EXTENSIONS.map(|end| format!("*.{end}")).join(", "));
                return Err(InputError::unreadable(path, &what));
            }
            for path in found {
                sources.push(read_source(&path)?);
            }
        } else {
            sources.push(read_source(path)?);
        }
    }
    Ok(sources)
}

fn list_folder(path: &Path) -> io::Result<Vec<PathBuf>> {
    let entries: Vec<PathBuf> = std::fs::read_dir(path)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
    let is_manifest = |path: &PathBuf| {
        path.extension().and_then(|end| end.to_str()).is_some_and(|end| EXTENSIONS.contains(&end)) && path.is_file()
    };
    let mut found: Vec<PathBuf> = entries.into_iter().filter(is_manifest).collect();
    found.sort();
    Ok(found)
}

fn read_source(path: &Path) -> Result<ManifestFile, InputError> {
    let is_input = path.as_os_str() == "-";
    let name = if is_input { "standard input".to_owned() } else { path.display().to_string() };
    let bytes = if is_input {
        if io::stdin().is_terminal() {
            eprintln!("reading manifests from the terminal; end with ctrl-d");
        }
        let mut bytes = Vec::new();
        io::stdin().read_to_end(&mut bytes).map(|_| bytes)
    } else {
        std::fs::read(path)
    };
    let bytes = bytes.map_err(|error| InputError::Unreadable { name: name.clone(), reason: error.to_string() })?;
    let text = String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let line = 1 + error.as_bytes().iter().take(valid).filter(|byte| **byte == b'\n').count();
        refuse(&name, &format!("line {line}: not valid UTF-8"))
    })?;
    let documents = yaml::documents(&text).map_err(|error| {
        let wrong = text.lines().nth(error.line.saturating_sub(1)).unwrap_or_default();
        let hint =
            if wrong.contains("{{") { "; {{ belongs to a template: render it first (helm template)" } else { "" };
        refuse(&name, &format!("{error}{hint}"))
    })?;
    for document in &documents {
        if !(document.value.is_object() || document.value.is_null()) {
            let what = if document.value.is_array() { "list" } else { "single value" };
            let what = format!("line {}: expected a Kubernetes object, found a {what}", document.line);
            return Err(refuse(&name, &what));
        }
    }
    Ok(ManifestFile { name, text, documents })
}

/// Returns the error for contents that are not manifests.
fn refuse(name: &str, what: &str) -> InputError {
    InputError::Refused(format!("error[{}]: {name}, {what}", InjectionErrorCode::Unreadable))
}
