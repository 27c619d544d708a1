//! Validation of the policies among the manifests, by the rules of `groupage validate`.
//!
//! A controller accepts a policy with values that it does not know, because the policy may be of a
//! newer version. Here the file is at hand and can be corrected, and a misspelt capture mode would
//! silently become the default.

use serde_json::Value;

use super::ManifestFile;
use crate::cli::yaml;
use crate::config;

/// Returns the problems of the policies, in the format of `groupage validate`; empty if there are
/// none.
pub(super) fn policy_errors(sources: &[ManifestFile]) -> String {
    let mut errors = String::new();
    for source in sources {
        for document in &source.documents {
            let text = source.text.get(document.text.clone()).unwrap_or_default();
            if is_policy(&document.value) {
                // Leading empty lines preserve the line numbers of the file.
                let before = source.text.get(..document.text.start).unwrap_or_default().matches('\n').count();
                check(&format!("{}{text}", "\n".repeat(before)), &source.name, &mut errors);
            }
            for item in document.value.get("items").and_then(Value::as_array).into_iter().flatten() {
                if is_policy(item) {
                    let name = item.pointer("/metadata/name").and_then(Value::as_str).unwrap_or("?");
                    let text = yaml::write(item).unwrap_or_default();
                    check(&text, &format!("{}, BatchPolicy {name} of the list", source.name), &mut errors);
                }
            }
        }
    }
    errors
}

fn is_policy(object: &Value) -> bool {
    let text = |key: &str| object.get(key).and_then(Value::as_str).unwrap_or_default();
    text("kind") == "BatchPolicy" && text("apiVersion").starts_with("groupage.dev/")
}

fn check(text: &str, name: &str, out: &mut String) {
    if let Err(errors) = config::load(text, name) {
        out.push_str(&errors.render(false));
        out.push('\n');
    }
}
