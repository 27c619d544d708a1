//! Recipes: rules that move known model servers off their ports, so that the sidecar can listen
//! there.
//!
//! A server is recognized by what its container declares: command, arguments, environment, and the
//! name of the image if there is no command. A recipe moves the server to loopback by its own flag
//! or variable or, if it has none for the address, to another port. References to the port keep its
//! number. No recipe matches if the command line is ambiguous.

mod choice;
mod command;
mod edit;
mod recipe_match;
mod listener_ports;
mod safety;
mod table;
#[cfg(test)]
mod tests;

use serde_json::Value;

pub(super) use self::choice::RecipeChoice;
pub(super) use self::command::is_shell;
use self::command::{CommandWord, base_name};
pub(super) use self::edit::ContainerEdit;
pub(super) use self::recipe_match::{MoveKind, RecipeMatch};
use self::table::{RECIPES, Recipe};
use super::access::{list, text};
use super::ports;

/// Python options that take no value.
const PYTHON_OPTIONS: [&str; 5] = ["-u", "-O", "-B", "-I", "-E"];

/// Returns the recipes that match the application's containers. `name` restricts the result to
/// the recipe of this name.
pub(super) fn find_matches(pod: &Value, name: Option<&str>) -> Vec<RecipeMatch> {
    let is_alone = list(pod, &["spec", "containers"]).len() == 1;
    let found = ports::application_containers(pod).filter_map(|container| match_container(container, name));
    found.map(|found| RecipeMatch { is_alone, ..found }).collect()
}

/// Returns one line for each known server in a captured container, with the calls that are merged.
#[must_use]
pub fn merged_calls(pod: &Value, is_captured: impl Fn(&str) -> bool) -> Vec<String> {
    find_matches(pod, None)
        .iter()
        .filter(|found| is_captured(&found.container))
        .map(|found| format!("container {}: {}: {}", found.container, found.name(), found.merges()))
        .collect()
}

/// Returns the known server that occurs in a container's command, even if it is one of several or
/// in a script that cannot be parsed.
pub(super) fn named_server(container: &Value) -> Option<&'static str> {
    let items = ["command", "args"].into_iter().flat_map(|key| list(container, &[key]));
    let texts: Vec<&str> = items.filter_map(Value::as_str).collect();
    let words =
        texts.iter().flat_map(|text| text.split(|char: char| char.is_whitespace() || "\"';&|()".contains(char)));
    let mut names = words.filter_map(|word| {
        let is_it = |recipe: &&Recipe| recipe.programs.contains(&base_name(word)) || recipe.modules.contains(&word);
        RECIPES.iter().find(is_it).map(|recipe| recipe.name)
    });
    names.next()
}

fn match_container(container: &Value, requested: Option<&str>) -> Option<RecipeMatch> {
    let recipes = || RECIPES.iter().filter(|recipe| requested.is_none_or(|name| recipe.name == name));
    let commands = command::commands(container);
    // A server that runs only under a condition is ambiguous: another one may own the port.
    let is_server = |words| RECIPES.iter().any(|recipe| recipe.program_words(command::strip_wrappers(words)).is_some());
    if commands.iter().filter_map(|words| command::conditional_command(words)).any(is_server) {
        return None;
    }
    let mut found = commands.iter().flat_map(|words| {
        let rest = command::strip_wrappers(words);
        let skipped = words.len() - rest.len();
        recipes().filter_map(move |recipe| {
            let flags_at = skipped + recipe.program_words(rest)?;
            RecipeMatch::new(recipe, container, words.clone(), flags_at)
        })
    });
    match (found.next(), found.next()) {
        (Some(one), None) => return Some(one),
        // Two servers in one script are ambiguous: the owner of each port is unknown.
        (Some(_), Some(_)) => return None,
        (None, _) => {}
    }
    if !list(container, &["command"]).is_empty() {
        return None;
    }
    let words: Vec<CommandWord> = commands.into_iter().flatten().collect();
    let image = text(container, &["image"]).map(repository).unwrap_or_default();
    let mut recipes = recipes().filter(|recipe| recipe.images.iter().any(|end| is_repository(image, end)));
    RecipeMatch::new(recipes.next()?, container, words, 0)
}

/// Returns an image's repository, without tag and digest.
fn repository(image: &str) -> &str {
    let image = image.split('@').next().unwrap_or_default();
    match image.rsplit_once(':') {
        Some((repository, tag)) if !tag.contains('/') => repository,
        _ => image,
    }
}

/// Returns `true` for a repository of this name in any registry.
fn is_repository(repository: &str, name: &str) -> bool {
    repository.strip_suffix(name).is_some_and(|before| before.is_empty() || before.ends_with('/'))
}

// === impl Recipe ===

impl Recipe {
    /// Returns the number of words that start the server, if the command starts it.
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
            // The script of the program, given to Python by its path.
            start + 1
        } else {
            return None;
        };
        // A module inside a package is the server itself and takes no subcommand.
        if self.verbs.is_empty() || at(count - 1).contains('.') && !is_program(count - 1) {
            return Some(count);
        }
        let matches_verb = |verb: &&&str| verb.split(' ').enumerate().all(|(offset, part)| at(count + offset) == part);
        self.verbs.iter().find(matches_verb).map(|verb| count + verb.split(' ').count())
    }
}
