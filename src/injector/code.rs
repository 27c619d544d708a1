//! Stable codes of injection errors.

use std::fmt;

/// Code of an injection error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum InjectionErrorCode {
    /// An annotation with an invalid value.
    BadValue,
    /// An unknown annotation with the prefix of Groupage.
    UnknownKey,
    /// A file that contains no valid YAML, or no Kubernetes objects.
    Unreadable,
}

// === impl InjectionErrorCode ===

impl InjectionErrorCode {
    /// Every code.
    pub const ALL: [Self; 3] = [Self::BadValue, Self::UnknownKey, Self::Unreadable];

    /// Returns the code as text, such as `GRP2101`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::BadValue => "GRP2101",
            Self::UnknownKey => "GRP2102",
            Self::Unreadable => "GRP2103",
        }
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
    pub const fn why(self) -> &'static str {
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

impl fmt::Display for InjectionErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
