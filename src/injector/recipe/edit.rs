//! The changes of a container that move its server.

use serde_json::Value;

use super::command::{WordPlace, variable};
use super::found::RecipeMatch;
use super::numbers::port_of;
use super::sure::has_command;
use super::table::{FORWARDED_IPS, MoveSetting, ServerListener};
use crate::injector::access::{list, text};

/// The address on which an application listens beside the sidecar.
const LOOPBACK: &str = "127.0.0.1";
/// An address that no peer has (TEST-NET-1, RFC 5737).
const NO_PEER: &str = "192.0.2.0";

/// A change of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::injector) enum ContainerEdit {
    /// A variable with its value.
    Variable(String, String),
    /// An item of `command` or `args` in the place of another.
    Item { list: &'static str, index: usize, set: String },
    /// Items at the end of `args`.
    Append(Vec<String>),
}

/// The changes in the making.
struct EditDraft<'a> {
    matched: &'a RecipeMatch,
    container: &'a Value,
    /// Words in the place of others: the place, and the word with the part of it that stays.
    items: Vec<(WordPlace, String)>,
    edits: Vec<ContainerEdit>,
}

// === impl RecipeMatch ===

impl RecipeMatch {
    /// The changes that move captured listeners; `application` is the number at which the
    /// application listens in place of a captured one, and `None` for one that is not captured.
    pub(in crate::injector) fn edits(
        &self,
        container: &Value,
        application: impl Fn(u16) -> Option<u16>,
    ) -> Vec<ContainerEdit> {
        let mut draft = EditDraft { matched: self, container, items: Vec::new(), edits: Vec::new() };
        let mut set: Option<&ServerListener> = None;
        for (listener, number) in &self.listeners {
            // One that has several numbers has one setting.
            let is_moved = self.is_moved(listener, |number| application(number).is_some());
            if set.replace(listener) == Some(*listener) || !is_moved {
                continue;
            }
            match listener.setting {
                MoveSetting::HostOrEnv(_, name) if !has_command(container) => {
                    draft.variable(name, LOOPBACK.to_owned());
                }
                MoveSetting::Host(flags) | MoveSetting::HostOrEnv(flags, _) => {
                    draft.flag(flags, |_| LOOPBACK.to_owned(), LOOPBACK);
                }
                MoveSetting::Bind(flags) => {
                    let mut taken = Vec::new();
                    let bound = |value: &str| free_loopback(port_of(value), &mut taken);
                    draft.flag(flags, bound, &format!("{LOOPBACK}:{number}"));
                }
                MoveSetting::Port(flags) => {
                    if let Some(application) = application(*number) {
                        let application = application.to_string();
                        draft.flag(flags, |_| application.clone(), &application);
                    }
                }
                MoveSetting::HostEnv(name) => draft.variable(name, LOOPBACK.to_owned()),
                MoveSetting::BindEnv(name, scheme) => {
                    let scheme = draft.scheme(name).unwrap_or_else(|| scheme.to_owned());
                    draft.variable(name, format!("{scheme}{LOOPBACK}:{number}"));
                }
                MoveSetting::Along(flags) => draft.flag_where_it_stands(flags, |_| LOOPBACK.to_owned()),
            }
        }
        let is_moved = self.listeners.iter().any(|(_, number)| application(*number).is_some());
        if is_moved && self.trusts_sidecar(container) {
            draft.variable(FORWARDED_IPS.0, NO_PEER.to_owned());
        }
        draft.finish()
    }

    /// Returns `true` where the server would believe what the sidecar's callers say of themselves:
    /// they come from loopback then, which nothing but the sidecar did.
    fn trusts_sidecar(&self, container: &Value) -> bool {
        let is_set = list(container, &["env"])
            .iter()
            .any(|entry| text(entry, &["name"]) == Some(FORWARDED_IPS.0) && text(entry, &["value"]) != Some(NO_PEER));
        let may_be_set = !list(container, &["envFrom"]).is_empty() || self.values(&[FORWARDED_IPS.1]).next().is_some();
        self.recipe.trusts_loopback && self.is_alone && !is_set && !may_be_set
    }
}

// === impl EditDraft ===

impl EditDraft<'_> {
    /// Sets each occurrence of a flag.
    fn flag_where_it_stands(&mut self, flags: &[&str], mut set: impl FnMut(&str) -> String) {
        for (index, before, value) in self.matched.values(flags) {
            let wanted = set(value);
            if let Some(word) = self.matched.words.get(index).filter(|_| wanted != value) {
                self.items.push((word.place.clone(), format!("{before}{wanted}")));
            }
        }
    }

    /// Sets each occurrence of a flag, or adds the flag where it has none.
    fn flag(&mut self, flags: &[&str], set: impl FnMut(&str) -> String, absent: &str) {
        if self.matched.values(flags).next().is_some() {
            self.flag_where_it_stands(flags, set);
            return;
        }
        let flag = flags.iter().max_by_key(|flag| flag.len()).copied().unwrap_or_default();
        let is_long = flag.starts_with("--") && !self.matched.recipe.takes_two_words;
        // In a shell's text right after the program: what follows its words is not known.
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

    /// The scheme of the address in a variable.
    fn scheme(&self, name: &str) -> Option<String> {
        let entry = variable(self.container, name)?;
        Some(format!("{}//", text(entry, &["value"])?.split_once("//")?.0))
    }

    fn variable(&mut self, name: &str, value: String) {
        let entry = variable(self.container, name);
        if entry.and_then(|entry| text(entry, &["value"])) != Some(&value) {
            self.edits.push(ContainerEdit::Variable(name.to_owned(), value));
        }
    }

    /// The changes, one for each item of a list.
    fn finish(mut self) -> Vec<ContainerEdit> {
        // From the end, so that the places before stay where they are.
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

/// A loopback address with this port that no earlier one is: two binds of one server, such as those
/// of two families, must not become the same, or the server does not start.
fn free_loopback(port: Option<&str>, taken: &mut Vec<String>) -> String {
    let address = |last: usize| match port {
        Some(port) => format!("127.0.0.{last}:{port}"),
        None => format!("127.0.0.{last}"),
    };
    // One more than there are taken, so one of them is free.
    let free = (1..=taken.len()).map(address).find(|address| !taken.contains(address));
    let free = free.unwrap_or_else(|| address(taken.len() + 1));
    taken.push(free.clone());
    free
}
