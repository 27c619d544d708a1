//! Hints for invalid values: common spellings of other tools, and their equivalent here.

use super::schema::ValueType;
use super::text::{ADDRESS, ADDRESS_OR_OFF, LOCAL_OR_OFF, POINTER, RESULT_WEIGHT, ROUTE_PATH, TextRule, WEIGHT};

/// Other names of protocols, in lower case and without punctuation. Without them, the edit distance takes
/// `KFServing`, the former name of KServe, for TF Serving.
const OTHER_NAMES: [(&str, &str); 15] = [
    ("kfserving", "KServeV1"),
    ("kfservingv1", "KServeV1"),
    ("tensorflow", "TFServing"),
    ("tensorflowserving", "TFServing"),
    ("textembeddingsinference", "TEI"),
    ("passthru", "PassThrough"),
    ("kservev2", "OpenInferenceV2"),
    ("kfservingv2", "OpenInferenceV2"),
    ("v2", "OpenInferenceV2"),
    ("oip", "OpenInferenceV2"),
    ("oipv2", "OpenInferenceV2"),
    ("openinference", "OpenInferenceV2"),
    ("openinferenceprotocol", "OpenInferenceV2"),
    ("triton", "OpenInferenceV2"),
    ("mlserver", "OpenInferenceV2"),
];
/// Keys that a section has under another name than its neighbours: the section, the name, and the
/// key of the section.
const RENAMED_KEYS: [(&str, &str, &str); 1] = [("priority.classes[]", "slo", "latencyP99")];
/// Minimum length of a name that is completed to a key. Shorter ones are part of any word.
const PART_CHARS_MIN: usize = 3;

/// Returns advice about a scalar that a value type rejects; `None` if the list of allowed values is
/// the best advice.
pub(super) fn hint(value_type: &ValueType, text: &str) -> Option<String> {
    match value_type {
        ValueType::Text(rule) if is_rule(rule, &ROUTE_PATH) => route_path(text),
        ValueType::Text(rule) if [&POINTER, &WEIGHT, &RESULT_WEIGHT].iter().any(|known| is_rule(rule, known)) => {
            pointer(text)
        }
        ValueType::Text(rule) if is_rule(rule, &ADDRESS) || is_rule(rule, &ADDRESS_OR_OFF) => {
            port(text).map(|port| format!("write \":{port}\", or \"127.0.0.1:{port}\" for this machine only"))
        }
        ValueType::Text(rule) if is_rule(rule, &LOCAL_OR_OFF) => {
            port(text).map(|port| format!("write \"127.0.0.1:{port}\""))
        }
        _ => None,
    }
}

/// Returns the word that another name of it means.
pub(super) fn other_name(value_type: &ValueType, path: &str, text: &str) -> Option<&'static str> {
    let is_protocol = matches!(value_type, ValueType::Word(..)) && path.ends_with(".protocol");
    let letters = is_protocol.then(|| normalize_word(text))?;
    OTHER_NAMES.iter().find(|(name, _)| *name == letters).map(|(_, word)| *word)
}

/// Returns the key that an unknown key of the section `path` probably means although it is not
/// similar: a key that the section has under another name, or the only key that begins or ends with
/// this name.
pub(super) fn key_for(name: &str, path: &str, keys: &[&'static str]) -> Option<&'static str> {
    let section = without_indices(path);
    let renamed = RENAMED_KEYS.iter().find(|(of, renamed, _)| *of == section && *renamed == name);
    if let Some(key) = renamed.map(|(.., key)| *key) {
        return Some(key);
    }
    let part = normalize_word(name);
    let fits = |key: &&&'static str| {
        let key = key.to_ascii_lowercase();
        key.starts_with(&part) || key.ends_with(&part)
    };
    let mut fitting = keys.iter().filter(fits);
    let only = fitting.next().filter(|_| part.len() >= PART_CHARS_MIN)?;
    fitting.next().is_none().then_some(*only)
}

/// Returns a path with `[]` in place of each index.
fn without_indices(path: &str) -> String {
    let mut inside = false;
    let is_outside = |c: &char| {
        let is_outside = !inside || *c == ']';
        inside = (inside || *c == '[') && *c != ']';
        is_outside
    };
    path.chars().filter(is_outside).collect()
}

/// Returns a word in lower case and without punctuation.
fn normalize_word(text: &str) -> String {
    text.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase()
}

/// Returns the list element that a single value in the place of a list probably means.
pub(super) fn list_element_for(value_type: &ValueType, text: &str) -> String {
    match value_type {
        ValueType::Text(rule) if is_rule(rule, &ADDRESS) => {
            port(text).map_or_else(|| text.to_owned(), |port| format!(":{port}"))
        }
        _ => text.to_owned(),
    }
}

fn is_rule(rule: &TextRule, known: &TextRule) -> bool {
    rule.allowed == known.allowed
}

fn port(text: &str) -> Option<u16> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten().filter(|port| *port > 0)
}

/// Returns advice about a `*` that is not at the end of a path.
fn route_path(text: &str) -> Option<String> {
    let before = text.split_once('*')?.0;
    let prefix = before.get(..=before.rfind('/')?)?;
    prefix.starts_with('/').then(|| {
        format!(
            "`*` is allowed only at the end, after `/`: write {prefix}*, where only calls that the protocol supports are merged"
        )
    })
}

/// Returns the JSON Pointer that a JSON Path or a bare name probably means.
fn pointer(text: &str) -> Option<String> {
    let path = text.strip_prefix('$').unwrap_or(text);
    let path = path.strip_suffix("[*]").unwrap_or(path).trim_start_matches('.');
    let plain =
        |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'));
    if path.is_empty() && text.starts_with('$') {
        return Some("a JSON Pointer begins with `/`; the whole document is \"\"".to_owned());
    }
    path.split('.').all(plain).then(|| format!("a JSON Pointer begins with `/`: write /{}", path.replace('.', "/")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_paths_and_bare_names_become_pointers() {
        for (text, pointer) in [
            ("$.texts", "/texts"),
            ("$.inputs.texts", "/inputs/texts"),
            ("$.texts[*]", "/texts"),
            ("texts", "/texts"),
            ("a.b", "/a/b"),
        ] {
            let hint = hint(&ValueType::Text(&POINTER), text).unwrap();
            assert!(hint.ends_with(&format!("write {pointer}")), "{hint}");
        }
        assert!(pointer("$").unwrap().contains("\"\""));
        assert_eq!(pointer("$.a[0].b c"), None);
    }

    #[test]
    fn a_star_inside_a_path_becomes_a_prefix() {
        let hint = route_path("/v1/models/*:predict").unwrap();
        assert!(hint.contains("write /v1/models/*,"), "{hint}");
        assert!(route_path("/v2/models/*/infer").unwrap().contains("write /v2/models/*,"));
        assert!(route_path("/*/x").unwrap().contains("write /*,"));
        assert_eq!((route_path("*"), route_path("v1/*")), (None, None));
    }

    #[test]
    fn kserve_v2_is_not_taken_for_v1() {
        let words = ValueType::Word(&["KServeV1", "OpenInferenceV2"], &[]);
        for word in ["KServeV2", "kserve-v2", "V2", "OIP", "Triton"] {
            assert_eq!(other_name(&words, "routes[0].protocol", word), Some("OpenInferenceV2"), "{word}");
        }
    }

    #[test]
    fn another_name_of_a_protocol_is_not_compared_by_its_letters() {
        let words = ValueType::Word(&["KServeV1", "TFServing"], &[]);
        assert_eq!(other_name(&words, "routes[0].protocol", "KFServing"), Some("KServeV1"));
        assert_eq!(other_name(&words, "routes[0].protocol", "TensorFlow-Serving"), Some("TFServing"));
        assert_eq!((other_name(&words, "mode", "KFServing"), other_name(&words, "a.protocol", "Auto")), (None, None));
    }

    #[test]
    fn a_part_of_a_single_key_is_completed() {
        let slo = ["latencyP99", "late"];
        assert_eq!(key_for("latency", "slo", &slo), Some("latencyP99"));
        assert_eq!((key_for("p99", "slo", &slo), key_for("lat", "slo", &slo)), (Some("latencyP99"), None));
        assert_eq!(key_for("max", "limits", &["slotsMax", "queueDelayMax"]), None);
        assert_eq!((key_for("99", "slo", &slo), key_for("", "slo", &slo)), (None, None));
    }

    #[test]
    fn the_slo_of_a_priority_class_has_another_name() {
        let class = ["name", "latencyP99"];
        assert_eq!(key_for("slo", "priority.classes[12]", &class), Some("latencyP99"));
        assert_eq!(key_for("slo", "routes[1].limits", &class), None);
        assert_eq!(without_indices("a[1].b[23].c"), "a[].b[].c");
    }

    #[test]
    fn a_bare_port_becomes_an_address() {
        assert_eq!(list_element_for(&ValueType::Text(&ADDRESS), "15080"), ":15080");
        assert_eq!(list_element_for(&ValueType::Text(&ADDRESS), "0.0.0.0:1"), "0.0.0.0:1");
        let hint = |rule, text| hint(&ValueType::Text(rule), text);
        assert!(hint(&ADDRESS, "15080").unwrap().starts_with("write \":15080\""));
        assert_eq!(hint(&LOCAL_OR_OFF, "9191").unwrap(), "write \"127.0.0.1:9191\"");
        assert_eq!(hint(&ADDRESS, "70000"), None);
    }
}
