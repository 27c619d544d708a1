use proptest::prelude::*;
use serde_json::json;

use super::*;

fn values(text: &str) -> Vec<Value> {
    documents(text).unwrap().into_iter().map(|document| document.value).collect()
}

fn refused(text: &str, message: &str) {
    let error = documents(text).unwrap_err();
    assert!(error.to_string().contains(message), "{text:?}: {error}");
}

#[test]
fn plain_scalars_have_the_same_values_as_in_kubectl() {
    let text = "a: yes\nb: \"yes\"\nc: 0755\nd: 0o17\ne: 1_000\nf: on\ng: ~\nh:\ni: 1e3\nj: 08\nk: 2001-01-01\nl: 12:30:45\nm: -0x1f\nf5: .5\no: y\n";
    assert_eq!(
        values(text),
        [json!({
            "a": true, "b": "yes", "c": 493, "d": 15, "e": 1000, "f": true, "g": null, "h": null, "i": 1000, "j": 8,
            "k": "2001-01-01", "l": "12:30:45", "m": -31, "f5": 0.5, "o": true,
        })]
    );
}

#[test]
fn a_float_that_is_whole_is_the_integer_that_kubectl_sends() {
    assert_eq!(
        values("[8e3, 12e1, 0e0, -0.0, 8.0e3, !!float 8e3, 1e16, 1.5]"),
        [json!([8000, 120, 0, 0, 8000, 8000, 1e16, 1.5])]
    );
    refused("a: !!int 8e3\n", "not a valid int");
    refused("8e3: a\n", "cannot be a key");
}

#[test]
fn keys_are_converted_to_strings_as_by_kubectl() {
    assert_eq!(values("{1: a, on: b, n: d, \"on \": c}"), [json!({"1": "a", "true": "b", "false": "d", "on ": "c"})]);
    refused("a: 1\na: 2\n", "line 2: the key a is set twice");
    refused("? [a]\n: 1\n", "cannot be a key");
    refused("1.5: x\n", "cannot be a key");
    refused("~: x\n", "a key is empty; if \"~\" is meant, quote it");
    refused(": x\n", "a key is empty");
}

#[test]
fn anchors_and_merge_keys_are_followed() {
    let text = "base: &b {x: 1, v: 2}\nz: {<<: *b, v: 3}\nw: {<<: [{x: 9}, *b]}\n";
    assert_eq!(values(text), [json!({"base": {"x": 1, "v": 2}, "z": {"x": 1, "v": 3}, "w": {"x": 9, "v": 2}})]);
    refused("a: *nobody\n", "invalid YAML");
    refused("a: &a [1]\nb: {<<: *a}\n", "<< accepts a map");
}

#[test]
fn a_merge_key_overrides_earlier_keys_as_in_kubectl() {
    let text = "b: &b {x: 1, v: 2}\nl: {v: 3, <<: *b, x: 4}\nm:\n  x: 9\n  <<: [*b, {v: 5, w: 6}]\n";
    assert_eq!(values(text), [json!({"b": {"x": 1, "v": 2}, "l": {"v": 2, "x": 4}, "m": {"x": 1, "v": 2, "w": 6}})]);
    refused("{x: 1, <<: {x: 2}, x: 3}", "the key x is set twice");
}

#[test]
fn a_document_that_kubectl_would_ignore_is_an_error() {
    refused("a: 1\n...\nb: 2\n", "line 3: a document begins after ... without ---");
    assert_eq!(values("a: 1\n...\n---\nb: 2\n...\n"), [json!({"a": 1}), json!({"b": 2})]);
}

#[test]
fn alias_expansion_and_nesting_are_bounded() {
    let mut text = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned();
    for level in 1..9 {
        let refs = vec![format!("*a{}", level - 1); 10].join(",");
        text.push_str(&format!("a{level}: &a{level} [{refs}]\n"));
    }
    refused(&text, "more than");
    refused(&"[".repeat(1000), "");
}

#[test]
fn a_text_is_divided_into_its_documents_without_a_gap() {
    let text = "# first\na: 1\n---\n# second\nb: 2\n---\n\n---\nc: 3\n...\n";
    let found = documents(text).unwrap();
    assert_eq!(
        found.iter().map(|document| &document.value).collect::<Vec<_>>(),
        [&json!({"a": 1}), &json!({"b": 2}), &Value::Null, &json!({"c": 3})]
    );
    let whole: String = found.iter().map(|document| text.get(document.text.clone()).unwrap()).collect();
    assert_eq!(whole, text);
    assert_eq!(found.iter().map(|document| document.marked).collect::<Vec<_>>(), [false, true, true, true]);
}

#[test]
fn text_before_the_first_marker_belongs_to_the_first_document() {
    let text = "# whose\n%YAML 1.1\n---\na: 1\n---\nb: 2\n";
    let found = documents(text).unwrap();
    let texts: Vec<&str> = found.iter().map(|document| text.get(document.text.clone()).unwrap()).collect();
    assert_eq!(texts, ["# whose\n%YAML 1.1\n---\na: 1\n", "---\nb: 2\n"]);
    assert_eq!(found.iter().map(|document| document.line).collect::<Vec<_>>(), [3, 5]);
}

#[test]
fn one_or_several_json_objects_are_read() {
    assert_eq!(values("{\"a\": 1}\n{\"b\": 2}\n"), [json!({"a": 1}), json!({"b": 2})]);
    assert_eq!(values("{\n\t\"a\": 1\n}"), [json!({"a": 1})]);
    assert_eq!(values(""), [] as [Value; 0]);
}

#[test]
fn values_without_a_json_equivalent_are_refused() {
    refused("a: .inf\n", "line 1");
    refused("a: !mine x\n", "tag");
}

fn any_json() -> impl Strategy<Value = Value> {
    let text = prop_oneof![
        "\\PC{0,12}",
        "[-+0-9._:eExobn ]{0,8}",
        Just("no".to_owned()),
        Just("0o7".to_owned()),
        Just("a\nb\n".to_owned()),
        Just("  x".to_owned()),
        Just("~".to_owned()),
        Just("a: b".to_owned()),
        Just("# c".to_owned()),
        Just("x\ty".to_owned()),
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>()
            .prop_filter("neither infinite nor an integer", |float| float.is_finite()
                && (float.fract() != 0.0 || float.abs() > 1e16))
            .prop_map(Value::from),
        text.clone().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 40, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(text.clone(), inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn any_written_value_reads_back_unchanged(value in any_json()) {
        let text = write(&value).unwrap();
        prop_assert_eq!(values(&text), vec![value], "{}", text);
    }
}
