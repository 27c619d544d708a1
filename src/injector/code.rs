//! The stable codes of what a user asks of an injection and cannot have.

use std::fmt;

/// A kind of problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Code {
    /// An annotation whose value cannot be read.
    BadValue,
    /// An annotation with our prefix that does not exist.
    UnknownKey,
    /// A file that is no YAML, or no Kubernetes objects.
    Unreadable,
}

// === impl Code ===

impl Code {
    /// Every code.
    pub const ALL: [Self; 3] = [Self::BadValue, Self::UnknownKey, Self::Unreadable];

    /// As it is written everywhere.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::BadValue => "GRP2101",
            Self::UnknownKey => "GRP2102",
            Self::Unreadable => "GRP2103",
        }
    }

    /// What it says.
    #[must_use]
    pub const fn message(self) -> &'static str {
        match self {
            Self::BadValue => "an annotation whose value cannot be used",
            Self::UnknownKey => "an annotation that does not exist",
            Self::Unreadable => "no YAML or JSON, or no Kubernetes objects",
        }
    }

    /// Why it is said.
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

    /// What can be done about it.
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
