//! Formatting of values and lists for messages.

use serde_json::Value;

/// Maximum number of characters of a value in a message.
const SHOWN_MAX: usize = 80;

/// Formats a value for a message, truncated if it is long.
pub(super) fn describe_value(value: &Value) -> String {
    let whole = value.to_string();
    let mut cut: String = whole.chars().take(SHOWN_MAX).collect();
    if cut.len() < whole.len() {
        cut.push('…');
    }
    cut
}

/// Returns a hint for a value that YAML does not parse as a string, which the API server would
/// reject.
pub(super) fn quoting_hint(value: &Value) -> &'static str {
    if value.is_string() { "" } else { "; annotation and label values are strings: put it in quotes" }
}

/// Formats names or numbers as a list in a sentence.
pub(super) fn listed(items: &[String]) -> String {
    match items {
        [] => "none".to_owned(),
        [one] => one.clone(),
        [most @ .., last] => format!("{} and {last}", most.join(", ")),
    }
}
