//! Who answers: what a model server says of itself, so that what was learned of one is not believed of another.
//!
//! It leaves out what follows from another name (`cli::keep`), and a server that changes without saying so: that is seen by what its batches take.

use http::HeaderMap;
use http::header::SERVER;
use tokio::sync::watch;

/// Bytes of a name that are told apart: more than any has, and a bound on what is kept.
const NAME_MAX: usize = 256;

/// What a server said of itself last.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Identity {
    /// Its `Server` header: a program, often with its version.
    pub server: Option<String>,
    /// The model and its revision, where the server publishes them.
    pub model: Option<String>,
}

/// The one that answered last, for whoever waits for it.
#[derive(Debug)]
pub(super) struct Heard(watch::Sender<Identity>);

// === impl Identity ===

impl Identity {
    /// What both say, and say differently: the name now, and the one before.
    #[must_use]
    pub fn differs_from<'a>(&'a self, before: &'a Self) -> Option<(&'a str, &'a str)> {
        [(&self.server, &before.server), (&self.model, &before.model)].into_iter().find_map(|pair| match pair {
            (Some(now), Some(before)) if now != before => Some((now.as_str(), before.as_str())),
            _ => None,
        })
    }

    /// What it says, and where it says nothing what the other one says.
    #[must_use]
    pub fn or(self, other: &Self) -> Self {
        Self { server: self.server.or_else(|| other.server.clone()), model: self.model.or_else(|| other.model.clone()) }
    }

    /// It says at least what the other one says.
    #[must_use]
    pub const fn tells_as_much_as(&self, other: &Self) -> bool {
        (self.server.is_some() || other.server.is_none()) && (self.model.is_some() || other.model.is_none())
    }
}

// === impl Heard ===

impl Default for Heard {
    fn default() -> Self {
        Self(watch::Sender::new(Identity::default()))
    }
}

impl Heard {
    pub(super) fn subscribe(&self) -> watch::Receiver<Identity> {
        self.0.subscribe()
    }

    /// Remembers who answered with these headers.
    pub(super) fn answered(&self, headers: &HeaderMap) {
        let Some(name) = headers.get(SERVER).and_then(|name| name.to_str().ok()).map(cut) else { return };
        // Nearly always the same one, and to read it keeps no other answer waiting.
        if self.0.borrow().server.as_deref() != Some(name) {
            self.0.send_modify(|known| known.server = Some(name.to_owned()));
        }
    }

    /// Remembers which model it published.
    pub(super) fn published(&self, model: &str) {
        let name = cut(model);
        if self.0.borrow().model.as_deref() != Some(name) {
            self.0.send_modify(|known| known.model = Some(name.to_owned()));
        }
    }
}

fn cut(name: &str) -> &str {
    name.get(..name.floor_char_boundary(NAME_MAX)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(server: Option<&str>, model: Option<&str>) -> Identity {
        Identity { server: server.map(str::to_owned), model: model.map(str::to_owned) }
    }

    #[test]
    fn only_what_both_say_can_differ() {
        let before = identity(Some("tei/1.8"), Some("bge a1"));
        assert_eq!(identity(Some("tei/1.9"), None).or(&before), identity(Some("tei/1.9"), Some("bge a1")));
        assert_eq!(identity(None, None).or(&before), before);
        assert_eq!(identity(None, Some("bge a1")).differs_from(&before), None);
        assert_eq!(identity(Some("tei/1.8"), Some("bge a2")).differs_from(&before), Some(("bge a2", "bge a1")));
        assert_eq!(identity(Some("tei/1.9"), None).differs_from(&before), Some(("tei/1.9", "tei/1.8")));
        assert_eq!(before.differs_from(&identity(None, None)), None);
        assert!(!identity(Some("tei/1.8"), None).tells_as_much_as(&before));
        assert!(before.tells_as_much_as(&before) && before.tells_as_much_as(&identity(None, Some("other"))));
    }

    #[test]
    fn a_name_is_heard_once_and_cut_where_it_is_long() {
        let heard = Heard::default();
        let mut waits = heard.subscribe();
        heard.published("m");
        assert!(waits.has_changed().unwrap() && waits.borrow_and_update().model.as_deref() == Some("m"));
        heard.published("m");
        assert!(!waits.has_changed().unwrap());
        heard.published(&"é".repeat(NAME_MAX));
        assert_eq!(waits.borrow().model.as_deref().map(str::len), Some(NAME_MAX));
    }
}
