//! Label and field selectors, to the extent that the controller uses them.

use serde_json::Value;

/// The objects that a request selects.
#[derive(Debug, Clone, Default)]
pub(super) struct Selection {
    pub(super) namespace: String,
    pub(super) labels: String,
    pub(super) fields: String,
}

// === impl Selection ===

impl Selection {
    pub(super) fn matches(&self, object: &Value) -> bool {
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
        let label = |key: &str| object["metadata"]["labels"][key].as_str().map(str::to_owned);
        let field = |path: &str| {
            let value = path.split('.').fold(object, |at, key| &at[key]);
            Some(value.as_str().unwrap_or_default().to_owned())
        };
        (self.namespace.is_empty() || self.namespace == namespace)
            && terms(&self.labels).all(|term| term_matches(&term, label))
            && terms(&self.fields).all(|term| term_matches(&term, field))
    }
}

/// Returns the terms of a selector. A comma in parentheses belongs to a term.
fn terms(selector: &str) -> impl Iterator<Item = String> {
    let mut terms = vec![String::new()];
    let mut depth = 0;
    for letter in selector.chars() {
        depth += match letter {
            '(' => 1,
            ')' => -1,
            _ => 0,
        };
        if letter == ',' && depth == 0 {
            terms.push(String::new());
        } else {
            terms.last_mut().unwrap().push(letter);
        }
    }
    terms.into_iter().filter(|term| !term.is_empty())
}

fn term_matches(term: &str, value: impl Fn(&str) -> Option<String>) -> bool {
    if let Some((key, wanted)) = term.split_once("!=") {
        return value(key).as_deref() != Some(wanted);
    }
    if let Some((key, wanted)) = term.split_once("==").or_else(|| term.split_once('=')) {
        return value(key).as_deref() == Some(wanted);
    }
    for (word, wants) in [(" notin ", false), (" in ", true)] {
        if let Some((key, list)) = term.split_once(word) {
            let list = list.trim_matches(['(', ')']);
            let found = value(key).is_some_and(|value| list.split(',').any(|item| item.trim() == value));
            return found == wants;
        }
    }
    match term.strip_prefix('!') {
        Some(key) => value(key).is_none(),
        None => value(term).is_some(),
    }
}

#[test]
fn selectors_have_the_meaning_of_kubernetes() {
    let pod =
        serde_json::json!({"metadata": {"namespace": "a", "labels": {"app": "x"}}, "status": {"phase": "Running"}});
    let labels = |text: &str| Selection { labels: text.to_owned(), ..Selection::default() }.matches(&pod);
    assert!(labels("") && labels("app=x") && labels("app") && labels("app in (x,y)") && labels("other!=1,app==x"));
    assert!(!labels("app!=x") && !labels("!app") && !labels("app notin (x)") && !labels("other") && labels("!other"));
    let fields = |text: &str| Selection { fields: text.to_owned(), ..Selection::default() }.matches(&pod);
    assert!(fields("status.phase!=Failed,status.phase!=Succeeded") && !fields("status.phase=Failed"));
    assert!(!Selection { namespace: "b".to_owned(), ..Selection::default() }.matches(&pod));
}
