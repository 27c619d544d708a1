//! Choice of recipes by name, in the annotation `groupage.dev/recipe` or in a policy.

use super::table::RECIPES;

/// The recipes that may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum RecipeChoice {
    /// Any matching recipe.
    #[default]
    Auto,
    /// No recipe.
    None,
    /// The recipe of this name.
    Named(&'static str),
}

// === impl RecipeChoice ===

impl RecipeChoice {
    /// Parses a choice, ignoring case; `None` for an unknown recipe.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if text.eq_ignore_ascii_case("Auto") {
            return Some(Self::Auto);
        }
        if text.eq_ignore_ascii_case("None") {
            return Some(Self::None);
        }
        names().find(|name| name.eq_ignore_ascii_case(text)).map(Self::Named)
    }

    /// Describes the choices for a message.
    pub(crate) fn allowed() -> String {
        format!("Auto, None or one of {}", names().collect::<Vec<_>>().join(", "))
    }
}

pub(super) fn names() -> impl Iterator<Item = &'static str> {
    RECIPES.iter().map(|recipe| recipe.name)
}
