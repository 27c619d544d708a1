//! Stable codes of injection errors.

use strum::{Display, IntoStaticStr, VariantArray};

/// Code of an injection error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Display, IntoStaticStr, VariantArray)]
pub enum InjectionErrorCode {
    /// An annotation with an invalid value.
    #[strum(serialize = "GRP2101")]
    BadValue,
    /// An unknown annotation with the prefix of Groupage.
    #[strum(serialize = "GRP2102")]
    UnknownKey,
    /// A file that contains no valid YAML, or no Kubernetes objects.
    #[strum(serialize = "GRP2103")]
    Unreadable,
}

// === impl InjectionErrorCode ===

impl InjectionErrorCode {
    /// Returns the code as text, such as `GRP2101`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Returns a short description.
    #[must_use]
    pub const fn message(self) -> &'static str {
        match self {
            Self::BadValue => "an annotation with an invalid value",
            Self::UnknownKey => "an unknown annotation",
            Self::Unreadable => "not YAML or JSON, or not Kubernetes objects",
        }
    }

    /// Returns the reason why the error is not ignored.
    #[must_use]
    pub const fn rationale(self) -> &'static str {
        match self {
            Self::BadValue => "a partial injection would differ from the request, so nothing is injected",
            Self::UnknownKey => {
                "it is misspelt or of another version; if it were ignored, an unintended default would apply"
            }
            Self::Unreadable => "a file that cannot be read completely cannot be written without loss",
        }
    }

    /// Returns the remedy.
    #[must_use]
    pub const fn advice(self) -> &'static str {
        match self {
            Self::BadValue => "set a value that the message allows",
            Self::UnknownKey => "use the annotation that the message suggests, or remove it",
            Self::Unreadable => "correct the line that the message shows",
        }
    }
}
