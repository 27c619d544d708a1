//! The policies among manifests, held to what `groupage validate` holds them to.
//!
//! A controller goes on where a policy says what it does not know: it may be the older one. Whoever runs this has the file in hand, and a capture that is
//! misspelt there would be a default that nobody chose.

use serde_json::Value;

use super::Source;
use crate::cli::yaml;
use crate::config;

/// What is wrong with the policies, as `groupage validate` says it; empty where nothing is.
pub(super) fn wrong(sources: &[Source]) -> String {
    let mut said = String::new();
    for source in sources {
        for document in &source.documents {
            let text = source.text.get(document.text.clone()).unwrap_or_default();
            if is_policy(&document.value) {
                // Empty lines before it, so that its lines are those of the file.
                let before = source.text.get(..document.text.start).unwrap_or_default().matches('\n').count();
                check(&format!("{}{text}", "\n".repeat(before)), &source.name, &mut said);
            }
            for item in document.value.get("items").and_then(Value::as_array).into_iter().flatten() {
                if is_policy(item) {
                    let name = item.pointer("/metadata/name").and_then(Value::as_str).unwrap_or("?");
                    let text = yaml::write(item).unwrap_or_default();
                    check(&text, &format!("{}, BatchPolicy {name} of the list", source.name), &mut said);
                }
            }
        }
    }
    said
}

fn is_policy(object: &Value) -> bool {
    let text = |key: &str| object.get(key).and_then(Value::as_str).unwrap_or_default();
    text("kind") == "BatchPolicy" && text("apiVersion").starts_with("groupage.dev/")
}

fn check(text: &str, name: &str, said: &mut String) {
    if let Err(errors) = config::load(text, name) {
        said.push_str(&errors.render(false));
        said.push('\n');
    }
}
