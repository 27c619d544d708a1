//! How servers that speak a batched route and take one item a call answer a list.

use std::str::FromStr;

/// An answer to a list of items where lone items are answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListRefusal {
    /// This status, with an error in JSON.
    Status(u16),
    /// The connection ends without an answer.
    Reset,
    /// 200 with the first result only.
    First,
    /// 200 with text that is not JSON.
    NotJson,
    /// None, ever.
    Silence,
}

// === impl ListRefusal ===

impl ListRefusal {
    /// All that are answered, or end with the connection; [`Self::Silence`] needs a timeout to end.
    pub const ANSWERED: [Self; 9] = [
        Self::Status(400),
        Self::Status(404),
        Self::Status(413),
        Self::Status(422),
        Self::Status(500),
        Self::Status(501),
        Self::Reset,
        Self::First,
        Self::NotJson,
    ];

    /// Its word on a command line; statuses are numbers there.
    #[must_use]
    pub fn word(self) -> String {
        match self {
            Self::Status(status) => status.to_string(),
            Self::Reset => "reset".to_owned(),
            Self::First => "first".to_owned(),
            Self::NotJson => "not-json".to_owned(),
            Self::Silence => "silence".to_owned(),
        }
    }
}

impl FromStr for ListRefusal {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        match word {
            "reset" => Ok(Self::Reset),
            "first" => Ok(Self::First),
            "not-json" => Ok(Self::NotJson),
            "silence" => Ok(Self::Silence),
            _ => match word.parse() {
                Ok(status @ 400..=599) => Ok(Self::Status(status)),
                _ => Err("a status from 400 to 599, or reset, first, not-json, silence".to_owned()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_read_back_from_its_word_and_a_success_is_none() {
        for refusal in ListRefusal::ANSWERED.into_iter().chain([ListRefusal::Silence]) {
            assert_eq!(refusal.word().parse(), Ok(refusal));
        }
        assert!("200".parse::<ListRefusal>().is_err());
    }
}
