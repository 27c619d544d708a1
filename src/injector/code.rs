//! Stable codes of injection errors.

use std::fmt;

/// Code of an injection error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Code {
    /// An annotation with an invalid value.
    BadValue,
    /// An unknown annotation with the prefix of Groupage.
    UnknownKey,
    /// A file that contains no valid YAML, or no Kubernetes objects.
    Unreadable,
}

// === impl Code ===

impl Code {
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
            Self::BadValue => "an annotation whose value cannot be used",
            Self::UnknownKey => "an annotation that does not exist",
            Self::Unreadable => "no YAML or JSON, or no Kubernetes objects",
        }
    }

    /// Returns the reason why the error is not ignored.
    #[must_use]
    pub const fn why(self) -> &'static str {
        match self {
            Self::BadValue => "half of what is asked for would be done otherwise, so nothing is done",
            Self::UnknownKey => {
                "it is misspelt or of another version; were it ignored, a default would hold that nobody chose"
            }
            Self::Unreadable => "what cannot be read whole cannot be written again without loss",
        }
    }

    /// Returns the remedy.
    #[must_use]
    pub const fn advice(self) -> &'static str {
        match self {
            Self::BadValue => "write what the message allows",
            Self::UnknownKey => "write the annotation that the message names, or leave it out",
            Self::Unreadable => "put right the place that the message names",
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
