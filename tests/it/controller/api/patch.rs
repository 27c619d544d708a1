//! Server-side apply, for one field manager beside others.
//!
//! Fields that the manager applied before and no longer applies are removed; fields that it applies
//! now overwrite the rest. A list is a single value, except for lists with keys: their elements are
//! merged by key. See <https://kubernetes.io/docs/reference/using-api/server-side-apply/>.

use serde_json::Value;

/// Lists with keys, by field name. These names have no other meaning in the objects that are used.
const KEYED: [(&str, &str); 4] =
    [("webhooks", "name"), ("conditions", "type"), ("podTunings", "pod"), ("ports", "name")];

fn key_of(field: &str) -> Option<&'static str> {
    KEYED.iter().find(|(name, _)| *name == field).map(|(_, key)| *key)
}

/// Applies `now` on behalf of a manager; `before` is the value that it applied last.
pub(super) fn apply(object: &mut Value, before: Option<&Value>, now: &Value) {
    if let Some(before) = before {
        remove_unapplied(object, before, now, "");
    }
    merge_applied(object, now, "");
}

fn remove_unapplied(object: &mut Value, before: &Value, now: &Value, field: &str) {
    if let (Value::Array(elements), Value::Array(before), Some(key)) = (&mut *object, before, key_of(field)) {
        let no = Vec::new();
        let now = now.as_array().unwrap_or(&no);
        for was in before {
            let same = |element: &&Value| element[key] == was[key];
            let Some(at) = elements.iter().position(|element| element[key] == was[key]) else { continue };
            match now.iter().find(same) {
                Some(is) => remove_unapplied(&mut elements[at], was, is, ""),
                None => drop(elements.remove(at)),
            }
        }
        return;
    }
    let (Some(fields), Some(before)) = (object.as_object_mut(), before.as_object()) else { return };
    // Fields that the manager no longer applies are removed. An object or a keyed list may contain
    // fields of other managers, so only the parts of this manager are removed from it.
    for (name, was) in before {
        match now.get(name) {
            None if was.is_object() => {
                if let Some(inner) = fields.get_mut(name) {
                    remove_unapplied(inner, was, &Value::Null, name);
                    if inner.as_object().is_some_and(serde_json::Map::is_empty) {
                        fields.remove(name);
                    }
                }
            }
            None if was.is_array() && key_of(name).is_some() => {
                if let Some(inner) = fields.get_mut(name) {
                    remove_unapplied(inner, was, &Value::Null, name);
                }
            }
            None => drop(fields.remove(name)),
            Some(is) => {
                if let Some(inner) = fields.get_mut(name) {
                    remove_unapplied(inner, was, is, name);
                }
            }
        }
    }
}

fn merge_applied(object: &mut Value, now: &Value, field: &str) {
    match (object, now) {
        (Value::Object(object), Value::Object(now)) => {
            for (name, value) in now {
                merge_applied(object.entry(name.clone()).or_insert(Value::Null), value, name);
            }
        }
        (Value::Array(elements), Value::Array(now)) if key_of(field).is_some() => {
            let key = key_of(field).unwrap();
            for wanted in now {
                match elements.iter_mut().find(|element| element[key] == wanted[key]) {
                    Some(element) => merge_applied(element, wanted, ""),
                    None => elements.push(wanted.clone()),
                }
            }
        }
        (object, now) => *object = now.clone(),
    }
}

#[test]
fn fields_dropped_by_their_manager_are_removed_and_foreign_fields_are_kept() {
    use serde_json::json;
    let mut object =
        json!({"spec": {"theirs": 1}, "webhooks": [{"name": "a", "rules": [1], "clientConfig": {"service": 1}}]});
    let first =
        json!({"spec": {"ours": 1, "gone": {"x": 1}}, "webhooks": [{"name": "a", "clientConfig": {"caBundle": "x"}}]});
    apply(&mut object, None, &first);
    assert_eq!(
        object["webhooks"][0],
        json!({"name": "a", "rules": [1], "clientConfig": {"service": 1, "caBundle": "x"}})
    );
    let second = json!({"spec": {"ours": 2}, "webhooks": [{"name": "a", "clientConfig": {}}]});
    apply(&mut object, Some(&first), &second);
    assert_eq!(
        object,
        json!({"spec": {"theirs": 1, "ours": 2}, "webhooks": [{"name": "a", "rules": [1], "clientConfig": {"service": 1}}]})
    );
}

#[test]
fn a_keyed_list_element_dropped_by_its_manager_is_removed() {
    use serde_json::json;
    let mut status = json!({"conditions": [{"type": "Theirs", "status": "True"}]});
    let first = json!({"conditions": [{"type": "Ours", "status": "True"}, {"type": "Gone", "status": "True"}]});
    apply(&mut status, None, &first);
    apply(&mut status, Some(&first), &json!({"conditions": [{"type": "Ours", "status": "False"}]}));
    assert_eq!(
        status,
        json!({"conditions": [{"type": "Theirs", "status": "True"}, {"type": "Ours", "status": "False"}]})
    );
}
