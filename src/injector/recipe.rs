//! Recipes: how a server that is known moves off its ports, so that the sidecar can listen there.
//!
//! A server is recognised by what its container declares: command, arguments, environment, and the
//! name of the image where there is no command. It is moved to loopback by its own flag or variable,
//! or, where it has none for the address, to another port. The numbers stay as they are for whatever
//! refers to them. Where a command cannot be read for sure there is no recipe.

mod command;
mod table;

use serde_json::Value;

use self::command::{CommandWord, WordPlace, base_name};
use self::table::{FORWARDED_IPS, MoveSetting, ON_REQUEST, RECIPES, Recipe, RecipeNeed, ServerListener};
use super::access::{list, text};
use super::ports;

/// The address on which an application listens beside the sidecar.
const LOOPBACK: &str = "127.0.0.1";
/// An address that no peer has (TEST-NET-1, RFC 5737).
const NO_PEER: &str = "192.0.2.0";
/// Flags and variables of settings that are not seen here: a file, or more arguments.
const UNSEEN_SETTINGS: &[&str] = &["-c", "--config", "--ts-config"];
const UNSEEN_VARIABLES: [&str; 3] = ["GUNICORN_CMD_ARGS", "UVICORN_HOST", "MLFLOW_HOST"];
/// Options of Python that take no value.
const PYTHON_OPTIONS: [&str; 5] = ["-u", "-O", "-B", "-I", "-E"];

/// A recipe that fits a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RecipeMatch {
    recipe: &'static Recipe,
    pub(super) container: String,
    /// The words of the command, with the place of each; empty where the image starts the server.
    words: Vec<CommandWord>,
    /// The first word after the program and its subcommand.
    flags_at: usize,
    /// It is the only container: what calls it over loopback is the sidecar alone.
    is_alone: bool,
    /// Listeners with the number that each has.
    listeners: Vec<(&'static ServerListener, u16)>,
}

/// The way in which a listener is moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MoveKind {
    /// To loopback, with its number.
    Loopback,
    /// To another number.
    Number,
}

/// A change of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ContainerEdit {
    /// A variable with its value.
    Variable(String, String),
    /// An item of `command` or `args` in the place of another.
    Item { list: &'static str, index: usize, set: String },
    /// Items at the end of `args`.
    Append(Vec<String>),
}

/// Names of all recipes.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    RECIPES.iter().map(|recipe| recipe.name)
}

/// The recipes that fit the application's containers; `wanted`: only the one of this name.
pub(super) fn find(pod: &Value, wanted: Option<&str>) -> Vec<RecipeMatch> {
    let is_alone = list(pod, &["spec", "containers"]).len() == 1;
    let found = ports::applications(pod).filter_map(|container| of_container(container, wanted));
    found.map(|found| RecipeMatch { is_alone, ..found }).collect()
}

/// The servers that captured containers run, and what of their calls is merged: a line for each.
#[must_use]
pub fn merged_calls(pod: &Value, is_captured: impl Fn(&str) -> bool) -> Vec<String> {
    find(pod, None)
        .iter()
        .filter(|found| is_captured(&found.container))
        .map(|found| format!("container {}: {}: {}", found.container, found.name(), found.merges()))
        .collect()
}

fn of_container(container: &Value, wanted: Option<&str>) -> Option<RecipeMatch> {
    let recipes = || RECIPES.iter().filter(|recipe| wanted.is_none_or(|name| recipe.name == name));
    let commands = command::commands(container);
    let mut found = commands.iter().flat_map(|words| {
        let rest = command::unwrapped(words);
        let skipped = words.len() - rest.len();
        recipes().filter_map(move |recipe| {
            let flags_at = skipped + recipe.program_words(rest)?;
            RecipeMatch::new(recipe, container, words.clone(), flags_at)
        })
    });
    match (found.next(), found.next()) {
        (Some(one), None) => return Some(one),
        // Two servers in one text: which of them has which port is not known.
        (Some(_), Some(_)) => return None,
        (None, _) => {}
    }
    if !list(container, &["command"]).is_empty() {
        return None;
    }
    let words: Vec<CommandWord> = commands.into_iter().flatten().collect();
    let image = text(container, &["image"]).map(repository).unwrap_or_default();
    let mut recipes = recipes().filter(|recipe| recipe.images.iter().any(|end| ends_with(image, end)));
    RecipeMatch::new(recipes.next()?, container, words, 0)
}

/// An image's repository: without its tag and its digest.
fn repository(image: &str) -> &str {
    let image = image.split('@').next().unwrap_or_default();
    match image.rsplit_once(':') {
        Some((repository, tag)) if !tag.contains('/') => repository,
        _ => image,
    }
}

/// Returns `true` for a repository of this name, in any registry.
fn ends_with(repository: &str, name: &str) -> bool {
    repository.strip_suffix(name).is_some_and(|before| before.is_empty() || before.ends_with('/'))
}

// === impl Recipe ===

impl Recipe {
    /// The number of words that start it, where a command does.
    fn program_words(&self, words: &[CommandWord]) -> Option<usize> {
        let at = |index: usize| words.get(index).map_or("", |word| word.text.as_str());
        let is_program = |index: usize| self.programs.contains(&base_name(at(index)));
        let version = base_name(at(0)).strip_prefix("python");
        let is_python = version.is_some_and(|version| version.bytes().all(|b| b.is_ascii_digit() || b == b'.'));
        let options = words.iter().skip(1).take_while(|word| PYTHON_OPTIONS.contains(&word.text.as_str())).count();
        let start = 1 + options;
        let count = if is_program(0) {
            1
        } else if is_python && at(start) == "-m" && self.modules.contains(&at(start + 1)) {
            start + 2
        } else if is_python && at(start).contains('/') && is_program(start) {
            // The program's script, which Python is given by its path.
            start + 1
        } else {
            return None;
        };
        // A module within a package is the server itself, and takes no subcommand.
        if self.verbs.is_empty() || at(count - 1).contains('.') && !is_program(count - 1) {
            return Some(count);
        }
        let stands = |verb: &&&str| verb.split(' ').enumerate().all(|(offset, part)| at(count + offset) == part);
        self.verbs.iter().find(stands).map(|verb| count + verb.split(' ').count())
    }
}

// === impl RecipeMatch ===

impl RecipeMatch {
    fn new(recipe: &'static Recipe, container: &Value, words: Vec<CommandWord>, flags_at: usize) -> Option<Self> {
        let name = text(container, &["name"])?.to_owned();
        let mut found = Self { recipe, container: name, words, flags_at, is_alone: false, listeners: Vec::new() };
        let elsewhere = recipe.elsewhere.iter().any(|flag| found.values(&[flag]).next().is_some());
        let is_unsure = elsewhere || found.has_hidden_flags(container) || found.assigns(container);
        if is_unsure || !found.has_needed(container) || !found.is_settable(container) {
            return None;
        }
        for listener in recipe.listeners {
            let numbers = found.numbers(listener, container)?;
            found.listeners.extend(numbers.into_iter().map(|number| (listener, number)));
        }
        Some(found)
    }

    /// The name of its recipe.
    pub(super) const fn name(&self) -> &'static str {
        self.recipe.name
    }

    /// The calls that are merged without a route of a policy.
    pub(super) const fn merges(&self) -> &'static str {
        self.recipe.merges
    }

    /// The documentation of the server.
    pub(super) const fn source(&self) -> &'static str {
        self.recipe.source
    }

    /// The way in which a port of its container is moved; `None`: it is none of the server's.
    pub(super) fn moves(&self, number: u16) -> Option<MoveKind> {
        let (listener, _) = self.listeners.iter().find(|(_, own)| *own == number)?;
        Some(match listener.setting {
            MoveSetting::Port(_) => MoveKind::Number,
            _ => MoveKind::Loopback,
        })
    }

    /// Numbers that are not captured and move to loopback all the same, since one setting moves them
    /// with those that are.
    pub(super) fn along(&self, captured: impl Fn(u16) -> bool) -> Vec<u16> {
        let moves = |(listener, number): &&(&ServerListener, u16)| {
            !matches!(listener.setting, MoveSetting::Port(_))
                && !captured(*number)
                && self.is_moved(listener, &captured)
        };
        self.listeners.iter().filter(moves).map(|(_, number)| *number).collect()
    }

    /// Returns `true` for a listener whose setting is changed: it, or another that the setting moves
    /// too, is captured.
    fn is_moved(&self, listener: &ServerListener, captured: impl Fn(u16) -> bool) -> bool {
        let is_along = |other: &ServerListener| matches!(other.setting, MoveSetting::Along(_));
        let leads = |other: &ServerListener| {
            self.recipe.listeners.first() == Some(other) && self.recipe.listeners.iter().any(is_along)
        };
        let is_shared = |other: &ServerListener| is_along(other) || leads(other);
        self.listeners
            .iter()
            .any(|(other, number)| (*other == listener || is_shared(listener) && is_shared(other)) && captured(*number))
    }

    /// All numbers on which it listens.
    pub(super) fn numbers_of_all(&self) -> impl Iterator<Item = u16> + '_ {
        self.listeners.iter().map(|(_, number)| *number)
    }

    /// Returns `true` for a number that the server has on loopback as it is: to capture it is to let
    /// others reach what was kept from them.
    pub(super) fn is_local(&self, number: u16, container: &Value) -> bool {
        let Some((listener, _)) = self.listeners.iter().find(|(_, own)| *own == number) else { return false };
        let is_loopback = |address: &str| {
            let host = address.rsplit_once("//").map_or(address, |(_, address)| address);
            ["127.", "localhost", "::1", "[::1]"].iter().any(|local| host.starts_with(local))
        };
        let (flags, env): (&[&str], _) = match listener.setting {
            MoveSetting::Host(flags) | MoveSetting::Bind(flags) => (flags, None),
            MoveSetting::HostOrEnv(flags, env) => (flags, Some(env)),
            MoveSetting::HostEnv(env) | MoveSetting::BindEnv(env, _) => (&[], Some(env)),
            MoveSetting::Port(_) | MoveSetting::Along(_) => return false,
        };
        let mut values = self.values(flags).map(|(_, _, value)| value).peekable();
        if values.peek().is_some() {
            return values.all(is_loopback);
        }
        let entry = |name: &str| list(container, &["env"]).iter().rfind(|entry| text(entry, &["name"]) == Some(name));
        if let Some(entry) = env.and_then(entry) {
            return text(entry, &["value"]).is_some_and(is_loopback);
        }
        // Elsewhere it may be set by a file, by a variable of the image, or by that of the port.
        let is_unseen = self.values(UNSEEN_SETTINGS).next().is_some()
            || UNSEEN_VARIABLES.iter().any(|name| entry(name).is_some())
            || listener.port_env.is_some_and(|name| entry(name).is_some());
        self.recipe.is_local && !is_unseen
    }

    /// The flags of all listeners.
    fn flags(&self) -> impl Iterator<Item = &'static str> {
        self.recipe.listeners.iter().flat_map(|listener| {
            let set: &[&str] = match listener.setting {
                MoveSetting::Host(flags)
                | MoveSetting::HostOrEnv(flags, _)
                | MoveSetting::Bind(flags)
                | MoveSetting::Port(flags)
                | MoveSetting::Along(flags) => flags,
                MoveSetting::HostEnv(_) | MoveSetting::BindEnv(..) => &[],
            };
            set.iter().chain(listener.port_flags).copied()
        })
    }

    /// Returns `true` where a variable in place of arguments has such a flag, or may have one: in a
    /// shell's text it becomes several words, and the last of a flag counts.
    fn has_hidden_flags(&self, container: &Value) -> bool {
        let words = self.words.iter().enumerate().skip(self.flags_at);
        words.filter(|(_, word)| word.text.starts_with('$')).any(|(index, word)| {
            let before = index.checked_sub(1).and_then(|at| self.words.get(at)).map_or("", |word| word.text.as_str());
            // The value of a flag, or the first argument, such as a model.
            if index == self.flags_at || before.starts_with('-') && !before.contains('=') {
                return false;
            }
            let name = word.text.trim_matches(|char| matches!(char, '$' | '{' | '}' | '(' | ')'));
            let entry = list(container, &["env"]).iter().rfind(|entry| text(entry, &["name"]) == Some(name));
            match entry.and_then(|entry| text(entry, &["value"])) {
                Some(value) => value.split_whitespace().any(|part| self.flags().any(|flag| part.starts_with(flag))),
                None => word.place.span.is_some(),
            }
        })
    }

    /// Returns `true` where a command line sets a variable of the server: before the server, or in
    /// the text of a shell.
    fn assigns(&self, container: &Value) -> bool {
        let names = self.recipe.listeners.iter().flat_map(|listener| {
            let set = match listener.setting {
                MoveSetting::HostOrEnv(_, name) | MoveSetting::HostEnv(name) | MoveSetting::BindEnv(name, _) => {
                    Some(name)
                }
                _ => None,
            };
            set.into_iter().chain(listener.port_env)
        });
        let names: Vec<&str> = names.collect();
        let all = command::commands(container);
        let is_set = |word: &CommandWord| word.text.split_once('=').is_some_and(|(name, _)| names.contains(&name));
        all.iter().flatten().any(is_set)
    }

    /// Returns `true` where the container sets what the recipe needs.
    fn has_needed(&self, container: &Value) -> bool {
        match self.recipe.needs {
            RecipeNeed::Nothing => true,
            RecipeNeed::Flag(flag, wanted) => self.values(&[flag]).any(|(_, _, value)| value == wanted),
            RecipeNeed::Variable(names) => list(container, &["env"])
                .iter()
                .any(|entry| text(entry, &["name"]).is_some_and(|name| names.contains(&name))),
        }
    }

    /// Returns `true` where every setting can be written: a flag needs a command or arguments that
    /// are known, since those of the image would no longer count.
    fn is_settable(&self, container: &Value) -> bool {
        let flags = self.recipe.listeners.iter().any(|listener| {
            matches!(listener.setting, MoveSetting::Host(_) | MoveSetting::Bind(_) | MoveSetting::Port(_))
        });
        !flags || self.recipe.takes_arguments || has_command(container)
    }

    /// The values of a flag, each with the index of its word and the part of the word before it.
    fn values<'a>(&'a self, flags: &'a [&str]) -> impl Iterator<Item = (usize, &'a str, &'a str)> + 'a {
        let words = self.words.iter().enumerate().skip(self.flags_at);
        words.filter_map(move |(index, word)| {
            flags.iter().find_map(|flag| {
                let rest = word.text.strip_prefix(flag)?;
                if rest.is_empty() {
                    return self.words.get(index + 1).map(|value| (index + 1, "", value.text.as_str()));
                }
                // `-b0.0.0.0:8000`, as a flag of one letter takes it too.
                let inline = rest.strip_prefix('=').or_else(|| Some(rest).filter(|_| flag.len() == 2))?;
                Some((index, word.text.get(..word.text.len() - inline.len())?, inline))
            })
        })
    }

    /// The numbers on which a listener listens, as far as the container declares them; several for a
    /// flag that may be repeated.
    fn numbers(&self, listener: &ServerListener, container: &Value) -> Option<Vec<u16>> {
        let variable = |name: &str| {
            let entry = list(container, &["env"]).iter().rfind(|entry| text(entry, &["name"]) == Some(name))?;
            // One that refers to something else has a value that is not known here.
            Some(text(entry, &["value"]).unwrap_or_default())
        };
        let mut declared = ports::of_container(container).map(|port| port.number);
        let only = declared.next().filter(|_| declared.next().is_none());
        let resolve = |given: &str| resolved(given, variable).or(only);
        let of_address = |address: &str| match port_of(address) {
            _ if address.is_empty() => only,
            _ if address.starts_with("unix:") || address.starts_with("fd:") => None,
            Some(port) => resolve(port),
            None => Some(listener.port),
        };
        if let MoveSetting::Bind(flags) = listener.setting {
            let bound: Option<Vec<u16>> = self.values(flags).map(|(_, _, value)| of_address(value)).collect();
            let bound = bound?;
            let is_unseen = self.values(UNSEEN_SETTINGS).next().is_some()
                || UNSEEN_VARIABLES.iter().any(|name| variable(name).is_some());
            if bound.is_empty() && is_unseen && ports::of_container(container).count() > 1 {
                return None;
            }
            // `PORT`, as gunicorn reads it, is behind what a file of settings may say, which is what is declared.
            let unbound = || only.or_else(|| listener.port_env.and_then(variable).map_or(Some(listener.port), resolve));
            return if bound.is_empty() { unbound().map(|number| vec![number]) } else { Some(bound) };
        }
        let given = match listener.setting {
            MoveSetting::BindEnv(name, _) => variable(name).map(of_address),
            _ => {
                let flag = self.values(listener.port_flags).map(|(_, _, value)| value).last();
                flag.or_else(|| listener.port_env.and_then(variable)).map(resolve)
            }
        };
        if given.is_none() && listener.port == ON_REQUEST {
            return Some(Vec::new());
        }
        // A port that is set where it cannot be seen is the one that is declared.
        let own = self.recipe.listeners.iter().filter(|each| !matches!(each.setting, MoveSetting::Along(_))).count();
        let is_only = own == 1 && !matches!(listener.setting, MoveSetting::Along(_));
        let unseen = || only.filter(|_| is_only).unwrap_or(listener.port);
        given.unwrap_or_else(|| Some(unseen())).map(|number| vec![number])
    }

    /// The changes that move captured listeners; `application` is the number at which the
    /// application listens in place of a captured one, and `None` for one that is not captured.
    pub(super) fn edits(&self, container: &Value, application: impl Fn(u16) -> Option<u16>) -> Vec<ContainerEdit> {
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

/// The changes in the making.
struct EditDraft<'a> {
    matched: &'a RecipeMatch,
    container: &'a Value,
    /// Words in the place of others: the place, and the word with the part of it that stays.
    items: Vec<(WordPlace, String)>,
    edits: Vec<ContainerEdit>,
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
        let entry = list(self.container, &["env"]).iter().rfind(|entry| text(entry, &["name"]) == Some(name))?;
        Some(format!("{}//", text(entry, &["value"])?.split_once("//")?.0))
    }

    fn variable(&mut self, name: &str, value: String) {
        let entry = list(self.container, &["env"]).iter().rfind(|entry| text(entry, &["name"]) == Some(name));
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

/// Returns `true` for a container that declares a command or arguments.
fn has_command(container: &Value) -> bool {
    !list(container, &["command"]).is_empty() || !list(container, &["args"]).is_empty()
}

/// The port of an address, as it is written: `0.0.0.0:8000`, `[::]:$(PORT)`, `http://0.0.0.0:8080`.
fn port_of(address: &str) -> Option<&str> {
    let address = address.rsplit_once("//").map_or(address, |(_, address)| address);
    if let Some((_, port)) = address.split_once(":$") {
        return address.get(address.len() - port.len() - 1..);
    }
    let (host, port) = address.rsplit_once(':')?;
    // An IPv6 address without brackets has no port.
    (!host.contains(':') || host.ends_with(']')).then_some(port)
}

/// A loopback address with this port that no earlier one is: two binds of one server, such as those of two
/// families, must not become the same, or the server does not start.
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

/// The number that a text is, or the variable that it names.
fn resolved<'a>(text: &str, variable: impl Fn(&str) -> Option<&'a str>) -> Option<u16> {
    let number = |text: &str| text.parse::<u16>().ok().filter(|number| *number > 0);
    if let Some(number) = number(text) {
        return Some(number);
    }
    let inner = text.strip_prefix("$(").and_then(|rest| rest.strip_suffix(')'));
    let inner = inner.or_else(|| text.strip_prefix("${").and_then(|rest| rest.strip_suffix('}')));
    let inner = inner.or_else(|| text.strip_prefix('$'))?;
    let (name, default) = inner.split_once(":-").map_or((inner, None), |(name, default)| (name, Some(default)));
    variable(name).or(default).and_then(number)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(container: &Value) -> Value {
        let mut container = container.clone();
        container["name"] = json!("app");
        json!({"spec": {"containers": [container]}})
    }

    #[test]
    fn callers_are_believed_no_more_than_before() {
        let edits = |container: Value| {
            let pod = pod(&container);
            let found = find(&pod, None).into_iter().next().unwrap();
            found.edits(&pod["spec"]["containers"][0], Some)
        };
        let none = ContainerEdit::Variable("FORWARDED_ALLOW_IPS".into(), "192.0.2.0".into());
        let command = json!(["uvicorn", "a:a", "--host", "0.0.0.0"]);
        assert!(edits(json!({"command": command})).contains(&none));
        let own = json!([{"name": "FORWARDED_ALLOW_IPS", "value": "*"}]);
        assert!(!edits(json!({"command": command, "env": own})).contains(&none));
        assert!(!edits(json!({"command": command, "envFrom": [{}]})).contains(&none));
        assert!(!edits(json!({"command": ["vllm", "serve", "m"]})).contains(&none));
    }

    /// The recipe's name, the numbers that it moves, and the container's own part after it.
    fn moved(container: &Value) -> Option<(&'static str, Vec<u16>, Vec<ContainerEdit>)> {
        let pod = pod(container);
        let found = find(&pod, None).into_iter().next()?;
        let numbers: Vec<u16> = found.listeners.iter().map(|(_, number)| *number).collect();
        let to =
            |number: u16| Some(if found.moves(number) == Some(MoveKind::Number) { number + 10_000 } else { number });
        let mut edits = found.edits(&pod["spec"]["containers"][0], to);
        // Of every server of a kind the same.
        edits.retain(|edit| !matches!(edit, ContainerEdit::Variable(name, _) if name == FORWARDED_IPS.0));
        Some((found.name(), numbers, edits))
    }

    fn item(list: &'static str, index: usize, set: &str) -> ContainerEdit {
        ContainerEdit::Item { list, index, set: set.to_owned() }
    }

    fn append(words: &[&str]) -> ContainerEdit {
        ContainerEdit::Append(words.iter().map(|word| (*word).to_owned()).collect())
    }

    #[test]
    fn a_host_flag_is_set_where_it_stands_and_added_where_it_does_not() {
        let there = json!({"command": ["uvicorn", "app:app", "--host", "0.0.0.0", "--port=8080"]});
        assert_eq!(moved(&there), Some(("uvicorn", vec![8080], vec![item("command", 3, "127.0.0.1")])));
        let inline = json!({"command": ["python", "-u", "-m", "uvicorn"], "args": ["a:b", "--host=::"]});
        assert_eq!(moved(&inline), Some(("uvicorn", vec![8000], vec![item("args", 1, "--host=127.0.0.1")])));
        let absent = json!({"image": "vllm/vllm-openai:v0.11.0", "args": ["--model", "m"]});
        assert_eq!(moved(&absent), Some(("vllm", vec![8000], vec![append(&["--host=127.0.0.1"])])));
        let two_words = json!({"command": ["llama-server"], "args": ["-m", "m"]});
        assert_eq!(moved(&two_words).unwrap().2, [append(&["--host", "127.0.0.1"])]);
        let there_already = json!({"command": ["llama-server", "--host", "127.0.0.1"]});
        assert_eq!(moved(&there_already), Some(("llama.cpp", vec![8080], vec![])));
    }

    #[test]
    fn a_bind_flag_keeps_its_port_and_may_stand_several_times() {
        let several = json!({"args": ["/opt/venv/bin/gunicorn", "-b", "0.0.0.0:8000", "--bind=[::]:$(PORT)", "app"],
            "env": [{"name": "PORT", "value": "9000"}]});
        let edits = [item("args", 2, "127.0.0.1:8000"), item("args", 3, "--bind=127.0.0.1:$(PORT)")];
        let (name, numbers, got) = moved(&several).unwrap();
        assert_eq!((name, numbers), ("gunicorn", vec![8000, 9000]));
        assert!(edits.iter().all(|edit| got.contains(edit)) && got.len() == 2, "{got:?}");
        let absent = json!({"command": ["gunicorn", "app:app"], "ports": [{"containerPort": 5000}]});
        assert_eq!(moved(&absent), Some(("gunicorn", vec![5000], vec![append(&["--bind=127.0.0.1:5000"])])));
        assert_eq!(moved(&json!({"command": ["gunicorn", "-b", "unix:/tmp/x", "app:app"]})), None);
        let families = json!({"command": ["hypercorn", "-b", "0.0.0.0:8000", "-b", "[::]:8000", "app:app"]});
        let edits = vec![item("command", 2, "127.0.0.1:8000"), item("command", 4, "127.0.0.2:8000")];
        assert_eq!(moved(&families), Some(("hypercorn", vec![8000, 8000], edits)));
    }

    #[test]
    fn a_listener_that_is_asked_for_moves_with_the_address_of_the_server() {
        let plain = json!({"command": ["litellm", "--config", "c"], "ports": [{"containerPort": 8080}]});
        let edits = vec![append(&["--host=127.0.0.1"])];
        assert_eq!(moved(&plain), Some(("litellm", vec![8080], edits.clone())));
        let metrics = json!({"command": ["litellm", "--config", "c", "--prometheus_metrics_port", "9100"]});
        assert_eq!(moved(&metrics), Some(("litellm", vec![4000, 9100], edits)));
    }

    #[test]
    fn gunicorn_listens_on_the_variable_port_where_it_has_no_bind() {
        let set = json!({"command": ["gunicorn", "app:app"], "env": [{"name": "PORT", "value": "5000"}]});
        assert_eq!(moved(&set), Some(("gunicorn", vec![5000], vec![append(&["--bind=127.0.0.1:5000"])])));
        let unseen = json!({"command": ["gunicorn", "app:app"], "env": [{"name": "PORT", "valueFrom": {}}]});
        assert_eq!(moved(&unseen), None);
    }

    #[test]
    fn a_shells_text_is_changed_in_place() {
        let text = "pip list\nexec vllm serve m --port ${PORT:-8001}";
        let vllm = json!({"command": ["/bin/sh", "-c"], "args": [text]});
        let set = "pip list\nexec vllm serve --host=127.0.0.1 m --port ${PORT:-8001}";
        assert_eq!(moved(&vllm), Some(("vllm", vec![8001], vec![item("args", 0, set)])));
        let both = json!({"command": ["bash", "-lc", "tritonserver --http-address '0.0.0.0' --model-repository=/m"]});
        let set = "tritonserver --grpc-address=127.0.0.1 --http-address 127.0.0.1 --model-repository=/m";
        assert_eq!(moved(&both), Some(("triton", vec![8000, 8001, 8002], vec![item("command", 2, set)])));
        let two = json!({"command": ["sh", "-c", "uvicorn a:a --port 1 & uvicorn b:b --port 2"]});
        assert_eq!(moved(&two), None);
    }

    #[test]
    fn a_server_without_an_address_of_its_own_moves_to_another_port() {
        let kserve = json!({"image": "kserve/sklearnserver:v0.15.2", "args": ["--model_name=m", "--http_port=8080"]});
        let edits = vec![item("args", 1, "--http_port=18080"), append(&["--grpc_port=18081"])];
        assert_eq!(moved(&kserve), Some(("kserve", vec![8080, 8081], edits)));
    }

    #[test]
    fn variables_are_set_where_the_server_has_them() {
        let mlserver =
            json!({"image": "seldonio/mlserver:1.6.1", "env": [{"name": "MLSERVER_HTTP_PORT", "value": "9000"}]});
        let edits = vec![ContainerEdit::Variable("MLSERVER_HOST".into(), "127.0.0.1".into())];
        assert_eq!(moved(&mlserver), Some(("mlserver", vec![9000, 8081, 8082], edits)));
        let ollama = json!({"image": "ollama/ollama", "env": [{"name": "OLLAMA_HOST", "value": "0.0.0.0:8080"}]});
        let edits = vec![ContainerEdit::Variable("OLLAMA_HOST".into(), "127.0.0.1:8080".into())];
        assert_eq!(moved(&ollama), Some(("ollama", vec![8080], edits)));
    }

    #[test]
    fn only_captured_listeners_move_and_what_shares_their_setting() {
        let edits = |container: &Value, captured: &[u16]| {
            let pod = pod(container);
            let found = find(&pod, None).into_iter().next().unwrap();
            let is_captured = |number: u16| captured.contains(&number);
            let edits = found.edits(&pod["spec"]["containers"][0], |number| is_captured(number).then_some(number));
            (edits, found.along(is_captured))
        };
        let triton = json!({"command": ["tritonserver", "--metrics-address=0.0.0.0"]});
        let http = vec![item("command", 1, "--metrics-address=127.0.0.1"), append(&["--http-address=127.0.0.1"])];
        assert_eq!(edits(&triton, &[8000]), (http, vec![8002]));
        assert_eq!(edits(&triton, &[8001]), (vec![append(&["--grpc-address=127.0.0.1"])], vec![]));
        let mlserver = json!({"image": "seldonio/mlserver:1.6.1"});
        let host = vec![ContainerEdit::Variable("MLSERVER_HOST".into(), "127.0.0.1".into())];
        assert_eq!(edits(&mlserver, &[8081]), (host, vec![8080, 8082]));
    }

    #[test]
    fn a_variable_takes_the_place_of_a_flag_where_arguments_are_the_images() {
        let tei = json!({"image": "ghcr.io/huggingface/text-embeddings-inference:1.8", "env": [{"name": "MODEL_ID"}]});
        let edits = vec![ContainerEdit::Variable("HOSTNAME".into(), "127.0.0.1".into())];
        assert_eq!(moved(&tei), Some(("tei", vec![80, 9000], edits)));
        let flag = json!({"image": "ghcr.io/huggingface/text-embeddings-inference:1.8", "args": ["--model-id", "m"]});
        assert_eq!(moved(&flag).unwrap().2, [append(&["--hostname=127.0.0.1"])]);
        let serving = json!({"image": "tensorflow/serving"});
        assert_eq!(moved(&serving).unwrap().2, [append(&["--rest_api_port=18501"]), append(&["--port=18500"])]);
    }

    #[test]
    fn a_setting_that_would_not_count_is_not_made() {
        let torchserve = |env: &Value| json!({"image": "pytorch/torchserve", "env": env});
        assert_eq!(moved(&torchserve(&json!([]))), None);
        assert!(
            moved(&torchserve(&json!([{"name": "TS_INFERENCE_ADDRESS", "value": "http://0.0.0.0:8080"}]))).is_some()
        );
        assert_eq!(moved(&json!({"command": ["serve", "start"]})), None);
        assert!(moved(&json!({"command": ["serve", "start", "--proxy-location=HeadOnly"]})).is_some());
        let prefill = ["sglang", "serve", "--disaggregation-mode", "prefill"];
        assert_eq!(moved(&json!({"command": prefill})), None);
        assert_eq!(moved(&json!({"command": prefill[..2]})).unwrap().0, "sglang");
    }

    #[test]
    fn what_is_on_loopback_as_it_is_is_known() {
        let local = |container: &Value, number: u16| {
            let pod = pod(container);
            find(&pod, None).first().unwrap().is_local(number, &pod["spec"]["containers"][0])
        };
        assert!(local(&json!({"command": ["uvicorn", "a:a"]}), 8000));
        assert!(local(&json!({"command": ["vllm", "serve", "m", "--host=localhost"]}), 8000));
        assert!(!local(&json!({"command": ["uvicorn", "a:a", "--host", "0.0.0.0"]}), 8000));
        assert!(!local(&json!({"command": ["vllm", "serve", "m"]}), 8000));
        assert!(!local(&json!({"command": ["gunicorn", "-c", "conf.py", "a:a"]}), 8000));
        let torchserve = json!({"image": "pytorch/torchserve",
            "env": [{"name": "TS_INFERENCE_ADDRESS", "value": "http://0.0.0.0:8080"}]});
        assert!(!local(&torchserve, 8080) && local(&torchserve, 8081));
    }

    #[test]
    fn what_is_not_sure_has_no_recipe() {
        for container in [
            json!({"command": ["sh", "-c", "OLLAMA_HOST=0.0.0.0 ollama serve"]}),
            json!({"command": ["sh", "-c", "export MLSERVER_HOST=0.0.0.0; mlserver start ."]}),
            json!({"command": ["env", "OLLAMA_HOST=0.0.0.0", "ollama", "serve"]}),
            json!({"command": ["sh", "-c", "vllm serve m $ARGS"], "env": [{"name": "ARGS", "value": "--host 0.0.0.0"}]}),
            json!({"command": ["sh", "-c", "vllm serve $MODEL $UNSEEN"]}),
            json!({"command": ["sh", "-c", "if a; then uvicorn b:b\nelse\npython c.py\nfi"]}),
            json!({"command": ["gunicorn", "-c", "conf.py", "a:a"], "ports": [{"containerPort": 1}, {"containerPort": 2}]}),
            json!({"command": ["python", "app.py"]}),
            json!({"command": ["vllm", "bench"]}),
            json!({"command": ["uvicorn", "a:a", "--uds", "/tmp/x"]}),
            json!({"command": ["uvicorn", "a:a", "--port", "$(PORT)"]}),
            json!({"image": "vllm/vllm-openai"}),
            json!({"image": "ollama/ollama", "env": [{"name": "OLLAMA_HOST", "valueFrom": {}}]}),
            json!({"command": ["llama-server"], "env": [{"name": "LLAMA_ARG_PORT", "valueFrom": {}}]}),
            json!({"image": "example.com/not-vllm/vllm-openai-like", "args": ["--model", "m"]}),
            json!({"image": "vllm/vllm-openai", "command": ["my-launcher"], "args": ["--model", "m"]}),
        ] {
            assert_eq!(moved(&container), None, "{container}");
        }
    }

    #[test]
    fn every_recipe_has_a_source_and_a_way_to_be_recognised() {
        for recipe in RECIPES {
            assert!(recipe.source.starts_with("https://"), "{}", recipe.name);
            assert!(!(recipe.programs.is_empty() && recipe.modules.is_empty()), "{}", recipe.name);
            assert!(!recipe.listeners.is_empty() && !recipe.merges.is_empty(), "{}", recipe.name);
        }
        let mut names: Vec<_> = names().collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), RECIPES.len());
    }
}
