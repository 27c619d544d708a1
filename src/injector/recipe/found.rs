//! A recipe that fits a container: its listeners, their numbers, and what moves with what.

use serde_json::Value;

use super::command::CommandWord;
use super::table::{MoveSetting, Recipe, ServerListener};
use crate::injector::access::text;

/// A recipe that fits a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::injector) struct RecipeMatch {
    pub(super) recipe: &'static Recipe,
    pub(in crate::injector) container: String,
    /// The words of the command, with the place of each; empty where the image starts the server.
    pub(super) words: Vec<CommandWord>,
    /// The first word after the program and its subcommand.
    pub(super) flags_at: usize,
    /// It is the only container: what calls it over loopback is the sidecar alone.
    pub(super) is_alone: bool,
    /// Listeners with the number that each has.
    pub(super) listeners: Vec<(&'static ServerListener, u16)>,
}

/// The way in which a listener is moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::injector) enum MoveKind {
    /// To loopback, with its number.
    Loopback,
    /// To another number.
    Number,
}

// === impl RecipeMatch ===

impl RecipeMatch {
    pub(super) fn new(
        recipe: &'static Recipe,
        container: &Value,
        words: Vec<CommandWord>,
        flags_at: usize,
    ) -> Option<Self> {
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
    pub(in crate::injector) const fn name(&self) -> &'static str {
        self.recipe.name
    }

    /// The documentation of the server.
    pub(in crate::injector) const fn source(&self) -> &'static str {
        self.recipe.source
    }

    /// The calls that are merged without a route of a policy.
    pub(in crate::injector) const fn merges(&self) -> &'static str {
        self.recipe.merges
    }

    /// The way in which a port of its container is moved; `None`: it is none of the server's.
    pub(in crate::injector) fn moves(&self, number: u16) -> Option<MoveKind> {
        let (listener, _) = self.listeners.iter().find(|(_, own)| *own == number)?;
        Some(match listener.setting {
            MoveSetting::Port(_) => MoveKind::Number,
            _ => MoveKind::Loopback,
        })
    }

    /// Numbers that are not captured and move to loopback all the same, since one setting moves
    /// them with those that are.
    pub(in crate::injector) fn along(&self, captured: impl Fn(u16) -> bool) -> Vec<u16> {
        let moves = |(listener, number): &&(&ServerListener, u16)| {
            !matches!(listener.setting, MoveSetting::Port(_))
                && !captured(*number)
                && self.is_moved(listener, &captured)
        };
        self.listeners.iter().filter(moves).map(|(_, number)| *number).collect()
    }

    /// Returns `true` for a listener whose setting is changed: it, or another that the setting
    /// moves too, is captured.
    pub(super) fn is_moved(&self, listener: &ServerListener, captured: impl Fn(u16) -> bool) -> bool {
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
    pub(in crate::injector) fn numbers_of_all(&self) -> impl Iterator<Item = u16> + '_ {
        self.listeners.iter().map(|(_, number)| *number)
    }

    /// The values of a flag, each with the index of its word and the part of the word before it.
    pub(super) fn values<'a>(&'a self, flags: &'a [&str]) -> impl Iterator<Item = (usize, &'a str, &'a str)> + 'a {
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
}
