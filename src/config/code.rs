//! Stable codes of configuration findings, with their meaning, cause and remedy.

use std::fmt;

/// A kind of problem. `GRP1104`, above what the upstream accepts, is reserved: only a call to the
/// upstream could find it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Code {
    /// A key that the schema does not have.
    UnknownKey,
    /// A value of a wrong type, out of range, or no value at all.
    BadValue,
    /// A key or a value that this version does not support yet.
    NotSupportedYet,
    /// Keys that exclude each other.
    Excluded,
    /// A file that a key names cannot be used. It is found at startup, because only the machine
    /// that starts has the file.
    BadFile,
}

// === impl Code ===

impl Code {
    /// All codes.
    pub const ALL: [Self; 5] = [Self::UnknownKey, Self::BadValue, Self::NotSupportedYet, Self::Excluded, Self::BadFile];

    /// Returns the code as text, such as `GRP1101`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::UnknownKey => "GRP1101",
            Self::BadValue => "GRP1102",
            Self::NotSupportedYet => "GRP1103",
            Self::Excluded => "GRP1105",
            Self::BadFile => "GRP1106",
        }
    }

    /// Returns the meaning of the code.
    #[must_use]
    pub const fn message(self) -> &'static str {
        match self {
            Self::UnknownKey => "a key that the schema does not have",
            Self::BadValue => "a value of a wrong type or out of range, a key that stands twice, or no YAML at all",
            Self::NotSupportedYet => "a key or a word that this version does not have yet",
            Self::Excluded => "keys that exclude each other",
            Self::BadFile => "a file that a key names cannot be used",
        }
    }

    /// Returns the cause of the finding.
    #[must_use]
    pub const fn why(self) -> &'static str {
        match self {
            Self::UnknownKey => {
                "it is misspelt, stands in another place, or is another batcher's; were it ignored, a default would hold that nobody chose"
            }
            Self::BadValue => "what is written there is not what the key takes; nothing is rounded or guessed",
            Self::NotSupportedYet => {
                "the schema has it already, so that a file stays right when it is built; until then it would do nothing"
            }
            Self::BadFile => {
                "it is not there, cannot be read, holds something else, or does not fit with the others: a certificate and a key of two pairs; while running, what was in use before stays in use"
            }
            Self::Excluded => "two ways of saying one thing, of which either may be meant",
        }
    }

    /// Returns the remedy.
    #[must_use]
    pub const fn advice(self) -> &'static str {
        match self {
            Self::UnknownKey => "write the key that the message names; `groupage config` lists all that are in effect",
            Self::BadValue => "write what the message allows; `groupage validate -f FILE` finds every problem at once",
            Self::NotSupportedYet => "leave it out",
            Self::Excluded => "leave one of them out",
            Self::BadFile => "the message names the key, the file, what is wrong with it and what to give",
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
