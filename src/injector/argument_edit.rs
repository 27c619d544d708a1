//! Edits of an application container that make it listen on loopback, by a variable or an argument,
//! each with an undo record.

use serde_json::{Value, json};

use super::InjectionReport;
use super::access::{list, list_mut, text};
use super::app_listen::ListenOverride;
use super::recipe::{ContainerEdit, is_shell};
use super::status::{ArgumentChange, UndoRecord, VariableChange};

/// Applies a setting of an `app-listen` override to its container.
pub(super) fn apply_override(
    own: &mut Value,
    container: &str,
    setting: &ListenOverride,
    undo: &mut UndoRecord,
    report: &mut InjectionReport,
) {
    match setting {
        ListenOverride::Env(name, value) => set_variable(own, container, (name, value), undo, report),
        ListenOverride::Arg(words) => set_argument(own, container, words, undo, report),
    }
}

/// Applies the edit of a recipe to a container.
pub(super) fn apply_edit(
    own: &mut Value,
    container: &str,
    edit: &ContainerEdit,
    undo: &mut UndoRecord,
    report: &mut InjectionReport,
) {
    match edit {
        ContainerEdit::Variable(name, value) => {
            if write_variable(own, container, (name, value), undo).is_some() {
                report.facts.push(format!("container {container}: {name}={value}"));
            }
        }
        ContainerEdit::Item { list, index, set } => {
            let Some(item) = own.get_mut(*list).and_then(|items| items.get_mut(*index)) else { return };
            let was = std::mem::replace(item, json!(set));
            report.facts.push(format!("container {container}: changed {was} in {list} to {set:?}"));
            let (container, list) = (container.to_owned(), (*list).to_owned());
            undo.args.push(ArgumentChange { container, list, index: *index, set: set.clone(), was: Some(was) });
        }
        ContainerEdit::Append(words) => {
            append(own, container, words, undo, report);
        }
    }
}

/// Appends words to a container's `args`.
fn append(own: &mut Value, container: &str, words: &[String], undo: &mut UndoRecord, report: &mut InjectionReport) {
    let args = list_mut(own, &["args"]);
    for word in words {
        let (container, list) = (container.to_owned(), "args".to_owned());
        undo.args.push(ArgumentChange { container, list, index: args.len(), set: word.clone(), was: None });
        args.push(json!(word));
    }
    report.facts.push(format!("container {container}: added argument {:?}", words.join(" ")));
}

/// Returns `true` if the container already has the variable or flag of the setting.
pub(super) fn has_setting(own: &Value, setting: &ListenOverride) -> bool {
    match setting {
        ListenOverride::Env(name, _) => list(own, &["env"]).iter().any(|entry| text(entry, &["name"]) == Some(name)),
        ListenOverride::Arg(words) => split_flag(words).is_some_and(|(flag, value)| {
            ["command", "args"].iter().any(|key| flag_positions(list(own, &[key]), flag, value).next().is_some())
        }),
    }
}

/// Sets a variable. If it occurs more than once, the last entry is replaced, which is the one that
/// takes effect. Returns the previous entry, `Some(None)` if there was none, `None` if nothing
/// changed.
fn write_variable(
    own: &mut Value,
    container: &str,
    (name, value): (&str, &str),
    undo: &mut UndoRecord,
) -> Option<Option<Value>> {
    let desired = json!({"name": name, "value": value});
    let env = list_mut(own, &["env"]);
    let was = match env.iter_mut().rfind(|entry| text(entry, &["name"]) == Some(name)) {
        Some(entry) if *entry == desired => return None,
        Some(entry) => Some(std::mem::replace(entry, desired)),
        None => {
            env.push(desired);
            None
        }
    };
    let (container, name, set) = (container.to_owned(), name.to_owned(), value.to_owned());
    undo.env.push(VariableChange { container, name, set, was: was.clone() });
    Some(was)
}

fn set_variable(
    own: &mut Value,
    container: &str,
    (name, value): (&str, &str),
    undo: &mut UndoRecord,
    report: &mut InjectionReport,
) {
    let Some(was) = write_variable(own, container, (name, value), undo) else { return };
    match &was {
        Some(was) => {
            let before = text(was, &["value"]).map_or_else(|| "a reference".to_owned(), |value| format!("{value:?}"));
            report.warnings.push(format!("container {container}: changed {name} from {before} to {value:?}"));
        }
        None => report.facts.push(format!("container {container}: {name}={value}")),
    }
}

/// Sets an argument at every occurrence of its flag, because servers differ in whether the first or
/// the last one takes effect. Adds the argument if the flag does not occur.
fn set_argument(
    own: &mut Value,
    container: &str,
    words: &[String],
    undo: &mut UndoRecord,
    report: &mut InjectionReport,
) {
    let Some((flag, value)) = split_flag(words) else { return };
    let before = undo.args.len();
    let mut found = false;
    for key in ["command", "args"] {
        let places: Vec<(usize, String)> = flag_positions(list(own, &[key]), flag, value).collect();
        for (index, desired) in places {
            found = true;
            let Some(item) = own.get_mut(key).and_then(|list| list.get_mut(index)).filter(|item| **item != desired)
            else {
                continue;
            };
            let previous = std::mem::replace(item, json!(desired));
            report.warnings.push(format!("container {container}: changed argument {previous} to {desired:?}"));
            let (container, list) = (container.to_owned(), key.to_owned());
            undo.args.push(ArgumentChange { container, list, index, set: desired, was: Some(previous) });
        }
    }
    if !found {
        let of_image = list(own, &["args"]).is_empty() && list(own, &["command"]).is_empty();
        append(own, container, words, undo, report);
        if of_image {
            report.warnings.push(format!(
                "container {container} had no args: the arguments of its image (CMD) no longer apply; add them to args if it has any"
            ));
        }
    }
    let shell = runs_shell(list(own, &["command"]).iter().chain(list(own, &["args"])));
    if shell && undo.args.len() > before {
        report.warnings.push(format!(
            "container {container} runs a shell: the argument may not reach the server; use env: or add it to the command"
        ));
    }
}

/// Returns the flag of an argument and its value.
fn split_flag(words: &[String]) -> Option<(&str, &str)> {
    let first = words.first()?;
    Some(match (first.split_once('='), words.get(1)) {
        (Some((flag, value)), _) => (flag, value),
        (None, value) => (first.as_str(), value.map_or("", String::as_str)),
    })
}

/// Returns `true` if the words run a shell script: `-c` alone, which is for the image's entrypoint,
/// or after a shell's name flags that end with it (`bash -lc`, `sh -e -xc`). After the name of
/// another program `-c` is an option of that program (`gunicorn -c conf.py`).
fn runs_shell<'a>(words: impl Iterator<Item = &'a Value>) -> bool {
    let (mut has_program, mut has_shell) = (false, false);
    for word in words.filter_map(Value::as_str) {
        let Some(letters) = word.strip_prefix('-') else {
            has_program = true;
            has_shell |= is_shell(word);
            continue;
        };
        let is_flag = letters.ends_with('c') && letters.bytes().all(|b| b.is_ascii_alphabetic());
        if is_flag && (has_shell || (letters == "c" && !has_program)) {
            return true;
        }
    }
    false
}

/// Returns the positions of a flag's value in a list of arguments with the new item for each:
/// `--flag=value`, or the word after `--flag`.
fn flag_positions<'a>(words: &'a [Value], flag: &'a str, value: &'a str) -> impl Iterator<Item = (usize, String)> + 'a {
    words.iter().enumerate().filter_map(move |(index, word)| {
        let word = word.as_str()?;
        if value.is_empty() {
            return (word == flag).then(|| (index, flag.to_owned()));
        }
        if word == flag {
            return words.get(index + 1).map(|_| (index + 1, value.to_owned()));
        }
        word.strip_prefix(flag).filter(|rest| rest.starts_with('=')).map(|_| (index, format!("{flag}={value}")))
    })
}
