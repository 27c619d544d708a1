//! Container edits that move a server off its ports.

use serde_json::Value;

use super::command::{WordPlace, env_entry};
use super::listener_ports::port_of;
use super::recipe_match::RecipeMatch;
use super::safety::has_command;
use super::table::{FORWARDED_IPS, MoveSetting, ServerListener};
use crate::access::{list, text};

/// Loopback address that an application listens on beside the sidecar.
const LOOPBACK: &str = "127.0.0.1";
/// An address that no peer has (TEST-NET-1, RFC 5737).
const NO_PEER: &str = "192.0.2.0";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ContainerEdit {
    /// Sets a variable to a value.
    Variable(String, String),
    /// Replaces an item of `command` or `args`.
    Item { list: &'static str, index: usize, set: String },
    /// Appends items to `args`.
    Append(Vec<String>),
}

/// A builder for the edits of one container.
struct EditDraft<'a> {
    matched: &'a RecipeMatch,
    container: &'a Value,
    /// Replacements of words: the position, and the new word with its unchanged prefix.
    items: Vec<(WordPlace, String)>,
    edits: Vec<ContainerEdit>,
}

// === impl RecipeMatch ===

impl RecipeMatch {
    /// Returns the edits that move the captured listeners. `application` maps a captured port to
    /// the port that the application uses instead; `None` for a port that is not captured.
    pub(crate) fn edits(&self, container: &Value, application: impl Fn(u16) -> Option<u16>) -> Vec<ContainerEdit> {
        let mut draft = EditDraft { matched: self, container, items: Vec::new(), edits: Vec::new() };
        let mut set: Option<&ServerListener> = None;
        for (listener, number) in &self.listeners {
            // A listener with several port numbers has one setting.
            let is_moved = self.is_moved(listener, |number| application(number).is_some());
            if set.replace(listener) == Some(*listener) || !is_moved {
                continue;
            }
            match listener.setting {
                MoveSetting::HostOrEnv(_, name) if !has_command(container) => {
                    draft.set_variable(name, LOOPBACK.to_owned());
                }
                MoveSetting::Host(flags) | MoveSetting::HostOrEnv(flags, _) => {
                    draft.set_flag(flags, |_| LOOPBACK.to_owned(), LOOPBACK);
                }
                MoveSetting::Bind(flags) => {
                    let mut taken = Vec::new();
                    let bound = |value: &str| free_loopback(port_of(value), &mut taken);
                    draft.set_flag(flags, bound, &format!("{LOOPBACK}:{number}"));
                }
                MoveSetting::Port(flags) => {
                    if let Some(application) = application(*number) {
                        let application = application.to_string();
                        draft.set_flag(flags, |_| application.clone(), &application);
                    }
                }
                MoveSetting::HostEnv(name) => draft.set_variable(name, LOOPBACK.to_owned()),
                MoveSetting::BindEnv(name, scheme) => {
                    let scheme = draft.scheme(name).unwrap_or_else(|| scheme.to_owned());
                    draft.set_variable(name, format!("{scheme}{LOOPBACK}:{number}"));
                }
                MoveSetting::WithFirst(flags) => draft.replace_flag(flags, |_| LOOPBACK.to_owned()),
            }
        }
        let is_moved = self.listeners.iter().any(|(_, number)| application(*number).is_some());
        if is_moved && self.trusts_sidecar(container) {
            draft.set_variable(FORWARDED_IPS.0, NO_PEER.to_owned());
        }
        draft.finish()
    }

    /// Returns `true` if the server would trust forwarding headers of the sidecar's callers. Behind
    /// the sidecar every call comes from loopback, which the server trusts, although it did not
    /// trust those callers before.
    fn trusts_sidecar(&self, container: &Value) -> bool {
        let is_set = list(container, &["env"])
            .iter()
            .any(|entry| text(entry, &["name"]) == Some(FORWARDED_IPS.0) && text(entry, &["value"]) != Some(NO_PEER));
        let may_be_set =
            !list(container, &["envFrom"]).is_empty() || self.flag_values(&[FORWARDED_IPS.1]).next().is_some();
        self.recipe.trusts_loopback && self.is_alone && !is_set && !may_be_set
    }
}

// === impl EditDraft ===

impl EditDraft<'_> {
    /// Sets each occurrence of a flag.
    fn replace_flag(&mut self, flags: &[&str], mut set: impl FnMut(&str) -> String) {
        for (index, before, value) in self.matched.flag_values(flags) {
            let replacement = set(value);
            if let Some(word) = self.matched.words.get(index).filter(|_| replacement != value) {
                self.items.push((word.place.clone(), format!("{before}{replacement}")));
            }
        }
    }

    /// Sets each occurrence of a flag, or adds the flag if it is absent.
    fn set_flag(&mut self, flags: &[&str], set: impl FnMut(&str) -> String, absent: &str) {
        if self.matched.flag_values(flags).next().is_some() {
            self.replace_flag(flags, set);
            return;
        }
        let flag = flags.iter().max_by_key(|flag| flag.len()).copied().unwrap_or_default();
        let is_long = flag.starts_with("--") && !self.matched.recipe.takes_two_words;
        // In a shell script the flag is inserted directly after the program, because the end of the
        // command is unknown.
        let program = self.matched.flags_at.checked_sub(1).and_then(|at| self.matched.words.get(at));
        match program.and_then(|word| Some((word, word.place.span.clone()?))) {
            Some((word, span)) => {
                let place = WordPlace { span: Some(span.end..span.end), ..word.place.clone() };
                let joint = if is_long { '=' } else { ' ' };
                self.items.push((place, format!(" {flag}{joint}{absent}")));
            }
            None if is_long => self.edits.push(ContainerEdit::Append(vec![format!("{flag}={absent}")])),
            None => self.edits.push(ContainerEdit::Append(vec![flag.to_owned(), absent.to_owned()])),
        }
    }

    /// Returns the scheme of the address in a variable.
    fn scheme(&self, name: &str) -> Option<String> {
        let entry = env_entry(self.container, name)?;
        Some(format!("{}//", text(entry, &["value"])?.split_once("//")?.0))
    }

    fn set_variable(&mut self, name: &str, value: String) {
        let entry = env_entry(self.container, name);
        if entry.and_then(|entry| text(entry, &["value"])) != Some(&value) {
            self.edits.push(ContainerEdit::Variable(name.to_owned(), value));
        }
    }

    /// Returns the edits, one for each item of a list.
    fn finish(mut self) -> Vec<ContainerEdit> {
        // From the end to the start, so that earlier byte ranges stay valid.
        self.items.sort_by_key(|(place, _)| std::cmp::Reverse(place.span.as_ref().map_or(0, |span| span.start)));
        let mut edits: Vec<ContainerEdit> = Vec::new();
        for (place, word) in self.items {
            let Some(span) = place.span else {
                edits.push(ContainerEdit::Item { list: place.list, index: place.index, set: word });
                continue;
            };
            let whole = edits.iter_mut().find_map(|edit| match edit {
                ContainerEdit::Item { list, index, set } if (*list, *index) == (place.list, place.index) => Some(set),
                _ => None,
            });
            match whole {
                Some(whole) => whole.replace_range(span, &word),
                None => {
                    let item = list(self.container, &[place.list]).get(place.index);
                    let mut set = item.and_then(Value::as_str).unwrap_or_default().to_owned();
                    set.replace_range(span, &word);
                    edits.push(ContainerEdit::Item { list: place.list, index: place.index, set });
                }
            }
        }
        edits.append(&mut self.edits);
        edits
    }
}

/// Returns a loopback address with this port that is not in use yet. Two binds of one server, such
/// as those of two address families, must stay distinct, or the server fails to start.
fn free_loopback(port: Option<&str>, taken: &mut Vec<String>) -> String {
    let address = |last: usize| match port {
        Some(port) => format!("127.0.0.{last}:{port}"),
        None => format!("127.0.0.{last}"),
    };
    // There is one more candidate than there are addresses in use, so one is always free.
    let free = (1..=taken.len()).map(address).find(|address| !taken.contains(address));
    let free = free.unwrap_or_else(|| address(taken.len() + 1));
    taken.push(free.clone());
    free
}
