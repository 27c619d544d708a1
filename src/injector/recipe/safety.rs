//! Safety checks of a recipe: its settings take effect, and it exposes no port that was private.

use serde_json::Value;

use super::command::{self, CommandWord, env_entry};
use super::recipe_match::RecipeMatch;
use super::table::{MoveSetting, RecipeNeed};
use crate::access::{list, text};

/// Flags and variables that load settings which are invisible here: a file, or more arguments.
pub(super) const UNSEEN_SETTINGS: &[&str] = &["-c", "--config", "--ts-config"];
pub(super) const UNSEEN_VARIABLES: [&str; 3] = ["GUNICORN_CMD_ARGS", "UVICORN_HOST", "MLFLOW_HOST"];

// === impl RecipeMatch ===

impl RecipeMatch {
    /// Returns `true` if the server already listens on this port on loopback only. Capturing such a
    /// port would expose it to other pods.
    pub(crate) fn is_local(&self, number: u16, container: &Value) -> bool {
        let Some((listener, _)) = self.listeners.iter().find(|(_, own)| *own == number) else { return false };
        let is_loopback = |address: &str| {
            let host = address.rsplit_once("//").map_or(address, |(_, address)| address);
            ["127.", "localhost", "::1", "[::1]"].iter().any(|local| host.starts_with(local))
        };
        let (flags, env): (&[&str], _) = match listener.setting {
            MoveSetting::Host(flags) | MoveSetting::Bind(flags) => (flags, None),
            MoveSetting::HostOrEnv(flags, env) => (flags, Some(env)),
            MoveSetting::HostEnv(env) | MoveSetting::BindEnv(env, _) => (&[], Some(env)),
            MoveSetting::Port(_) | MoveSetting::WithFirst(_) => return false,
        };
        let mut values = self.flag_values(flags).map(|(_, _, value)| value).peekable();
        if values.peek().is_some() {
            return values.all(is_loopback);
        }
        let entry = |name: &str| env_entry(container, name);
        if let Some(entry) = env.and_then(entry) {
            return text(entry, &["value"]).is_some_and(is_loopback);
        }
        // The address may still be set by a file, by a variable of the image, or by the variable of
        // the port.
        let is_unseen = self.flag_values(UNSEEN_SETTINGS).next().is_some()
            || UNSEEN_VARIABLES.iter().any(|name| entry(name).is_some())
            || listener.port_env.is_some_and(|name| entry(name).is_some());
        self.recipe.is_local && !is_unseen
    }

    /// Returns the flags of all listeners.
    fn flags(&self) -> impl Iterator<Item = &'static str> {
        self.recipe.listeners.iter().flat_map(|listener| {
            let set: &[&str] = match listener.setting {
                MoveSetting::Host(flags)
                | MoveSetting::HostOrEnv(flags, _)
                | MoveSetting::Bind(flags)
                | MoveSetting::Port(flags)
                | MoveSetting::WithFirst(flags) => flags,
                MoveSetting::HostEnv(_) | MoveSetting::BindEnv(..) => &[],
            };
            set.iter().chain(listener.port_flags).copied()
        })
    }

    /// Returns `true` if a variable among the arguments contains such a flag, or may contain one. A
    /// shell splits an unquoted variable into several words, and the last occurrence of a flag
    /// takes effect.
    pub(super) fn has_hidden_flags(&self, container: &Value) -> bool {
        let words = self.words.iter().enumerate().skip(self.flags_at);
        words.filter(|(_, word)| word.text.starts_with('$')).any(|(index, word)| {
            let before = index.checked_sub(1).and_then(|at| self.words.get(at)).map_or("", |word| word.text.as_str());
            // The variable is the value of a flag, or the first argument, such as a model.
            if index == self.flags_at || before.starts_with('-') && !before.contains('=') {
                return false;
            }
            let name = word.text.trim_matches(|char| matches!(char, '$' | '{' | '}' | '(' | ')'));
            match env_entry(container, name).and_then(|entry| text(entry, &["value"])) {
                Some(value) => value.split_whitespace().any(|part| self.flags().any(|flag| part.starts_with(flag))),
                None => word.place.span.is_some(),
            }
        })
    }

    /// Returns `true` if the command line itself sets a variable of the server, in front of the
    /// server or in a shell script.
    pub(super) fn has_assignment(&self, container: &Value) -> bool {
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

    pub(super) fn has_required_setting(&self, container: &Value) -> bool {
        match self.recipe.needs {
            RecipeNeed::Nothing => true,
            RecipeNeed::Flag(flag, required) => self.flag_values(&[flag]).any(|(_, _, value)| value == required),
            RecipeNeed::Variable(names) => list(container, &["env"])
                .iter()
                .any(|entry| text(entry, &["name"]).is_some_and(|name| names.contains(&name))),
        }
    }

    /// Returns `true` if every setting can be written. A flag requires a known command or known
    /// arguments, because adding `args` replaces those of the image.
    pub(super) fn is_settable(&self, container: &Value) -> bool {
        let flags = self.recipe.listeners.iter().any(|listener| {
            matches!(listener.setting, MoveSetting::Host(_) | MoveSetting::Bind(_) | MoveSetting::Port(_))
        });
        !flags || self.recipe.takes_arguments || has_command(container)
    }
}

/// Returns `true` if the container declares a command or arguments.
pub(super) fn has_command(container: &Value) -> bool {
    !list(container, &["command"]).is_empty() || !list(container, &["args"]).is_empty()
}
