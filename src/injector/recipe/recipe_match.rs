//! A recipe that matches a container: its listeners, their port numbers, and the listeners that
//! move together.

use serde_json::Value;

use super::command::CommandWord;
use super::table::{MoveSetting, Recipe, ServerListener};
use crate::access::text;

/// A recipe that matches a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RecipeMatch {
    pub(super) recipe: &'static Recipe,
    pub(crate) container: String,
    /// Words of the command with their positions; empty if the image starts the server.
    pub(super) words: Vec<CommandWord>,
    /// Index of the first word after the program and its subcommand.
    pub(super) flags_at: usize,
    /// `true` if this is the only container, so only the sidecar connects to it over loopback.
    pub(super) is_alone: bool,
    /// Listeners with their port numbers.
    pub(super) listeners: Vec<(&'static ServerListener, u16)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MoveKind {
    /// Moves to loopback and keeps its port number.
    Loopback,
    /// Moves to another port number.
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
        let elsewhere = recipe.unmovable_flags.iter().any(|flag| found.flag_values(&[flag]).next().is_some());
        let is_unsure = elsewhere || found.has_hidden_flags(container) || found.has_assignment(container);
        if is_unsure || !found.has_required_setting(container) || !found.is_settable(container) {
            return None;
        }
        for listener in recipe.listeners {
            let numbers = found.numbers(listener, container)?;
            found.listeners.extend(numbers.into_iter().map(|number| (listener, number)));
        }
        Some(found)
    }

    pub(crate) const fn name(&self) -> &'static str {
        self.recipe.name
    }

    /// URL of the server's documentation.
    pub(crate) const fn source(&self) -> &'static str {
        self.recipe.source
    }

    /// Returns a description of the calls that are merged without a route of a policy.
    pub(crate) const fn merges(&self) -> &'static str {
        self.recipe.merges
    }

    /// Returns the kind of move of a port; `None` if it is not a port of this server.
    pub(crate) fn move_kind(&self, number: u16) -> Option<MoveKind> {
        let (listener, _) = self.listeners.iter().find(|(_, own)| *own == number)?;
        Some(match listener.setting {
            MoveSetting::Port(_) => MoveKind::Number,
            _ => MoveKind::Loopback,
        })
    }

    /// Returns the port numbers that are not captured but move to loopback together with captured
    /// ones, because they share a setting.
    pub(crate) fn ports_moved_along(&self, captured: impl Fn(u16) -> bool) -> Vec<u16> {
        let moves = |(listener, number): &&(&ServerListener, u16)| {
            !matches!(listener.setting, MoveSetting::Port(_))
                && !captured(*number)
                && self.is_moved(listener, &captured)
        };
        self.listeners.iter().filter(moves).map(|(_, number)| *number).collect()
    }

    /// Returns `true` if the setting of a listener is changed, because the listener, or another one
    /// that shares the setting, is captured.
    pub(super) fn is_moved(&self, listener: &ServerListener, captured: impl Fn(u16) -> bool) -> bool {
        let is_along = |other: &ServerListener| matches!(other.setting, MoveSetting::WithFirst(_));
        let leads = |other: &ServerListener| {
            self.recipe.listeners.first() == Some(other) && self.recipe.listeners.iter().any(is_along)
        };
        let is_shared = |other: &ServerListener| is_along(other) || leads(other);
        self.listeners
            .iter()
            .any(|(other, number)| (*other == listener || is_shared(listener) && is_shared(other)) && captured(*number))
    }

    /// Returns the port numbers of all listeners.
    pub(crate) fn all_ports(&self) -> impl Iterator<Item = u16> + '_ {
        self.listeners.iter().map(|(_, number)| *number)
    }

    /// Returns the values of a flag, each with the index of its word and the part of the word
    /// before it.
    pub(super) fn flag_values<'a>(&'a self, flags: &'a [&str]) -> impl Iterator<Item = (usize, &'a str, &'a str)> + 'a {
        let words = self.words.iter().enumerate().skip(self.flags_at);
        words.filter_map(move |(index, word)| {
            flags.iter().find_map(|flag| {
                let rest = word.text.strip_prefix(flag)?;
                if rest.is_empty() {
                    return self.words.get(index + 1).map(|value| (index + 1, "", value.text.as_str()));
                }
                // `-b0.0.0.0:8000`: a one-letter flag may be joined to its value.
                let inline = rest.strip_prefix('=').or_else(|| Some(rest).filter(|_| flag.len() == 2))?;
                Some((index, word.text.get(..word.text.len() - inline.len())?, inline))
            })
        })
    }
}
