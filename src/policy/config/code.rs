//! Stable codes of configuration findings, with their meaning, cause and remedy.

use strum::{Display, IntoStaticStr, VariantArray};

/// A kind of problem. `GRP1104`, above what the upstream accepts, is reserved: only a call to the
/// upstream could find it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Display, IntoStaticStr, VariantArray)]
pub enum ConfigCode {
    /// A key that the schema does not have.
    #[strum(serialize = "GRP1101")]
    UnknownKey,
    /// A value of a wrong type, out of range, or no value at all.
    #[strum(serialize = "GRP1102")]
    BadValue,
    /// A key or a value that this version does not support yet.
    #[strum(serialize = "GRP1103")]
    NotSupportedYet,
    /// Keys that exclude each other.
    #[strum(serialize = "GRP1105")]
    Excluded,
    /// A file that a key names cannot be used. It is found at startup, because only the machine
    /// that starts has the file.
    #[strum(serialize = "GRP1106")]
    BadFile,
}

// === impl ConfigCode ===

impl ConfigCode {
    /// Returns the code as text, such as `GRP1101`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Returns the meaning of the code.
    #[must_use]
    pub const fn message(self) -> &'static str {
        match self {
            Self::UnknownKey => "a key that the schema does not have",
            Self::BadValue => "a value of the wrong type or out of range, a duplicate key, or invalid YAML",
            Self::NotSupportedYet => "a key or a value that this version does not support yet",
            Self::Excluded => "keys that exclude each other",
            Self::BadFile => "a file that a key names cannot be used",
        }
    }

    /// Returns the cause of the finding.
    #[must_use]
    pub const fn why(self) -> &'static str {
        match self {
            Self::UnknownKey => {
                "the key is misspelt, belongs in another section, or is a key of another batcher; if it were ignored, a default would apply unnoticed"
            }
            Self::BadValue => "the key does not accept this value; values are never rounded or guessed",
            Self::NotSupportedYet => {
                "the schema already reserves it, so that a file stays valid once it is supported; until then it would have no effect"
            }
            Self::BadFile => {
                "the file is missing, cannot be read, has other contents, or does not match the other files, such as a certificate and a key of different pairs; a running process keeps using the previous files"
            }
            Self::Excluded => "the keys set the same thing in different ways, and it is unclear which one is meant",
        }
    }

    /// Returns the remedy.
    #[must_use]
    pub const fn advice(self) -> &'static str {
        match self {
            Self::UnknownKey => "write the key that the message suggests; `groupage config` lists all keys in effect",
            Self::BadValue => {
                "write a value that the message allows; `groupage validate -f FILE` finds every problem at once"
            }
            Self::NotSupportedYet => "leave it out",
            Self::Excluded => "leave one of them out",
            Self::BadFile => "the message names the key, the file, the problem and the fix",
        }
    }
}
