//! Tells an application to listen on loopback: by a variable of its environment or by an argument, with a record of what stood there.

use serde_json::{Value, json};

use super::Report;
use super::access::{list, list_mut, text};
use super::overrides::Knob;
use super::recipe::ContainerEdit;
use super::status::{Argument, Undo, Variable};

/// Shells of the images that there are.
const SHELLS: [&str; 5] = ["sh", "bash", "dash", "ash", "zsh"];

/// Turns an application's knob in its container.
pub(super) fn turn(own: &mut Value, container: &str, knob: &Knob, undo: &mut Undo, report: &mut Report) {
    match knob {
        Knob::Env(name, value) => set_variable(own, container, (name, value), undo, report),
        Knob::Arg(words) => set_argument(own, container, words, undo, report),
    }
}

/// Makes a recipe's change in a container, with a record of what was there.
pub(super) fn edit(own: &mut Value, container: &str, edit: &ContainerEdit, undo: &mut Undo, report: &mut Report) {
    match edit {
        ContainerEdit::Variable(name, value) => {
            if write_variable(own, container, (name, value), undo).is_some() {
                report.facts.push(format!("container {container}: {name}={value}"));
            }
        }
        ContainerEdit::Item { list, index, set } => {
            let Some(item) = own.get_mut(*list).and_then(|items| items.get_mut(*index)) else { return };
            let was = std::mem::replace(item, json!(set));
            report.facts.push(format!("container {container}: {was} in {list} is {set:?} now"));
            let (container, list) = (container.to_owned(), (*list).to_owned());
            undo.args.push(Argument { container, list, index: *index, set: set.clone(), was: Some(was) });
        }
        ContainerEdit::Append(words) => {
            append(own, container, words, undo, report);
        }
    }
}

/// Adds words at the end of a container's arguments.
fn append(own: &mut Value, container: &str, words: &[String], undo: &mut Undo, report: &mut Report) {
    let args = list_mut(own, &["args"]);
    for word in words {
        let (container, list) = (container.to_owned(), "args".to_owned());
        undo.args.push(Argument { container, list, index: args.len(), set: word.clone(), was: None });
        args.push(json!(word));
    }
    report.facts.push(format!("container {container}: argument {:?}", words.join(" ")));
}

/// Whether the variable or the flag of a knob stands in a container already.
pub(super) fn stands(own: &Value, knob: &Knob) -> bool {
    match knob {
        Knob::Env(name, _) => list(own, &["env"]).iter().any(|entry| text(entry, &["name"]) == Some(name)),
        Knob::Arg(words) => flag_of(words).is_some_and(|(flag, value)| {
            ["command", "args"].iter().any(|key| places(list(own, &[key]), flag, value).next().is_some())
        }),
    }
}

/// Writes a variable: of one that is set more than once the last, which is the one that counts.
/// Returns the entry as it was, `Some(None)` where there was none, `None` where nothing changed.
fn write_variable(
    own: &mut Value,
    container: &str,
    (name, value): (&str, &str),
    undo: &mut Undo,
) -> Option<Option<Value>> {
    let wanted = json!({"name": name, "value": value});
    let env = list_mut(own, &["env"]);
    let was = match env.iter_mut().rfind(|entry| text(entry, &["name"]) == Some(name)) {
        Some(entry) if *entry == wanted => return None,
        Some(entry) => Some(std::mem::replace(entry, wanted)),
        None => {
            env.push(wanted);
            None
        }
    };
    let (container, name, set) = (container.to_owned(), name.to_owned(), value.to_owned());
    undo.env.push(Variable { container, name, set, was: was.clone() });
    Some(was)
}

fn set_variable(own: &mut Value, container: &str, (name, value): (&str, &str), undo: &mut Undo, report: &mut Report) {
    let Some(was) = write_variable(own, container, (name, value), undo) else { return };
    match &was {
        Some(was) => {
            let before = text(was, &["value"]).map_or_else(|| "a reference".to_owned(), |value| format!("{value:?}"));
            report.warnings.push(format!("container {container}: {name} was {before} and is {value:?} now"));
        }
        None => report.facts.push(format!("container {container}: {name}={value}")),
    }
}

/// Sets an argument wherever its flag stands, since servers differ in which of two counts; adds it where it stands nowhere.
fn set_argument(own: &mut Value, container: &str, words: &[String], undo: &mut Undo, report: &mut Report) {
    let Some((flag, value)) = flag_of(words) else { return };
    let before = undo.args.len();
    let mut stands = false;
    for key in ["command", "args"] {
        let places: Vec<(usize, String)> = places(list(own, &[key]), flag, value).collect();
        for (index, wanted) in places {
            stands = true;
            let Some(item) = own.get_mut(key).and_then(|list| list.get_mut(index)).filter(|item| **item != wanted)
            else {
                continue;
            };
            let was = std::mem::replace(item, json!(wanted));
            report.warnings.push(format!("container {container}: argument {was} is {wanted:?} now"));
            let (container, list) = (container.to_owned(), key.to_owned());
            undo.args.push(Argument { container, list, index, set: wanted, was: Some(was) });
        }
    }
    if !stands {
        let of_image = list(own, &["args"]).is_empty() && list(own, &["command"]).is_empty();
        append(own, container, words, undo, report);
        if of_image {
            report.warnings.push(format!(
                "container {container} had no args: what its image says instead (CMD) counts no more; write it into args if it has any"
            ));
        }
    }
    let shell = runs_shell(list(own, &["command"]).iter().chain(list(own, &["args"])));
    if shell && undo.args.len() > before {
        report.warnings.push(format!(
            "container {container} runs a shell: the argument may not reach the server; use env: or write it into the command"
        ));
    }
}

/// The flag of an argument, and what it is set to.
fn flag_of(words: &[String]) -> Option<(&str, &str)> {
    let first = words.first()?;
    Some(match (first.split_once('='), words.get(1)) {
        (Some((flag, value)), _) => (flag, value),
        (None, value) => (first.as_str(), value.map_or("", String::as_str)),
    })
}

/// Whether words run a shell with a text: `-c`, or after the name of one also flags that end so (`bash -lc`, `sh -e -xc`).
fn runs_shell<'a>(words: impl Iterator<Item = &'a Value>) -> bool {
    let mut named = false;
    for word in words.filter_map(Value::as_str) {
        let letters = word.strip_prefix('-').unwrap_or_default();
        if word == "-c" || (named && letters.ends_with('c') && letters.bytes().all(|b| b.is_ascii_alphabetic())) {
            return true;
        }
        named |= SHELLS.contains(&word.rsplit_once('/').map_or(word, |(_, name)| name));
    }
    false
}

/// Where a flag's value stands in a list of arguments, and what is to stand there: `--flag=value`, or the word after `--flag`.
fn places<'a>(words: &'a [Value], flag: &'a str, value: &'a str) -> impl Iterator<Item = (usize, String)> + 'a {
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
