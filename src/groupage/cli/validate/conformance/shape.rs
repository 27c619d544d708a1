//! Comparison of two JSON answers by shape: fields, lists and types, regardless of the values.

use serde_json::Value;

/// Maximum number of list elements compared, since the results in a list are of few kinds.
const ELEMENTS_MAX: usize = 16;
/// Maximum nesting depth compared. Answers of models are far flatter.
const DEPTH_MAX: usize = 32;

/// Returns the first difference in shape between an answer to an unbatched call and a merged
/// caller's part, or `None` if there is none.
pub(super) fn shape_difference(unbatched: &[u8], part: &[u8]) -> Option<String> {
    let read = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).ok();
    match (read(unbatched), read(part)) {
        (Some(unbatched), Some(part)) => find_difference(&unbatched, &part, "", DEPTH_MAX),
        (None, Some(_)) => Some("sent alone, it is not JSON".to_owned()),
        (_, None) => Some("merged, it is not JSON".to_owned()),
    }
}

fn find_difference(unbatched: &Value, part: &Value, at: &str, depth: usize) -> Option<String> {
    let place = if at.is_empty() { "the answer".to_owned() } else { format!("`{at}`") };
    match (unbatched, part) {
        // An optional field may be null in one answer and not in the next.
        (Value::Null, _) | (_, Value::Null) => None,
        _ if depth == 0 => None,
        (Value::Object(one), Value::Object(other)) => {
            if let Some(name) = one.keys().find(|name| !other.contains_key(*name)) {
                return Some(format!("{place} has no `{name}` when merged"));
            }
            if let Some(name) = other.keys().find(|name| !one.contains_key(*name)) {
                return Some(format!("{place} has `{name}` only when merged"));
            }
            one.iter()
                .find_map(|(name, value)| find_difference(value, other.get(name)?, &format!("{at}/{name}"), depth - 1))
        }
        (Value::Array(one), Value::Array(other)) => {
            if one.is_empty() != other.is_empty() {
                return Some(format!("{place} is empty in one of the two"));
            }
            find_element_difference(one, other, at, depth - 1)
        }
        _ if kind(unbatched) == kind(part) => None,
        _ => Some(format!("{place} is {} when sent alone and {} when merged", kind(unbatched), kind(part))),
    }
}

/// Compares the elements of two lists in pairs, since outputs have types of their own. If the lists
/// differ in length, an element has no counterpart, and has to fit any of the answer to the unbatched
/// call.
fn find_element_difference(unbatched: &[Value], part: &[Value], at: &str, depth: usize) -> Option<String> {
    if unbatched.len() == part.len() {
        let mut pairs = unbatched.iter().zip(part).take(ELEMENTS_MAX).enumerate();
        return pairs.find_map(|(place, (one, other))| find_difference(one, other, &format!("{at}/{place}"), depth));
    }
    let place = format!("{at}/0");
    part.iter().take(ELEMENTS_MAX).find_map(|other| {
        let difference = find_difference(unbatched.first()?, other, &place, depth)?;
        let mut others = unbatched.iter().take(ELEMENTS_MAX).skip(1);
        let fits = others.any(|one| find_difference(one, other, &place, depth).is_none());
        (!fits).then_some(difference)
    })
}

const fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_differ_and_shapes_do_not() {
        let same = |one: &str, other: &str| shape_difference(one.as_bytes(), other.as_bytes());
        assert_eq!(same(r#"{"v":[[1,2]],"id":"a"}"#, r#"{"v":[[3,4.5]],"id":"b"}"#), None);
        assert_eq!(same(r#"{"v":null}"#, r#"{"v":[1]}"#), None);
        assert_eq!(
            same(r#"{"v":1}"#, r#"{"v":[1]}"#).unwrap(),
            "`/v` is a number when sent alone and a list when merged"
        );
        assert_eq!(
            same(r#"{"v":[[1]]}"#, r#"{"v":[1]}"#).unwrap(),
            "`/v/0` is a list when sent alone and a number when merged"
        );
        assert_eq!(same(r#"{"v":1,"n":2}"#, r#"{"v":1}"#).unwrap(), "the answer has no `n` when merged");
        assert_eq!(same("[1]", "[]").unwrap(), "the answer is empty in one of the two");
        assert_eq!(same("text", "[]").unwrap(), "sent alone, it is not JSON");
    }

    #[test]
    fn elements_of_different_types_are_compared_in_pairs_and_by_any_if_their_numbers_differ() {
        let same = |one: &str, other: &str| shape_difference(one.as_bytes(), other.as_bytes());
        let outputs = r#"{"outputs":[{"name":"y","data":[0.5]},{"name":"l","data":["a"]}]}"#;
        assert_eq!(same(outputs, &outputs.replace("0.5", "0.7")), None);
        assert_eq!(
            same(outputs, &outputs.replace(r#""a""#, "7")).unwrap(),
            "`/outputs/1/data/0` is a string when sent alone and a number when merged"
        );
        assert_eq!(same(r#"[1,"a"]"#, r#"["b",2,"c"]"#), None);
        assert_eq!(
            same(r#"[1,"a"]"#, r#"["b",[2],"c"]"#).unwrap(),
            "`/0` is a number when sent alone and a list when merged"
        );
    }
}
