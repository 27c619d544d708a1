//! Responses to lists of items from servers that implement a batched route but accept only one item
//! per call.

use std::str::FromStr;

/// Response to a list of items from a server that accepts single items only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListResponse {
    /// This status, with a JSON error.
    Status(u16),
    /// The connection is closed without a response.
    Reset,
    /// 200 with the result of the first item only.
    FirstResultOnly,
    /// 200 with a body that is not JSON.
    NotJson,
    /// No response at all.
    NoResponse,
}

// === impl ListResponse ===

impl ListResponse {
    /// All refusals that end with a response or a closed connection. [`Self::NoResponse`] ends only by
    /// a timeout.
    pub const TERMINATING: [Self; 9] = [
        Self::Status(400),
        Self::Status(404),
        Self::Status(413),
        Self::Status(422),
        Self::Status(500),
        Self::Status(501),
        Self::Reset,
        Self::FirstResultOnly,
        Self::NotJson,
    ];

    /// Returns the name of the refusal on a command line. A status is written as its number.
    #[must_use]
    pub fn as_arg(self) -> String {
        match self {
            Self::Status(status) => status.to_string(),
            Self::Reset => "reset".to_owned(),
            Self::FirstResultOnly => "first".to_owned(),
            Self::NotJson => "not-json".to_owned(),
            Self::NoResponse => "silence".to_owned(),
        }
    }
}

impl FromStr for ListResponse {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        match word {
            "reset" => Ok(Self::Reset),
            "first" => Ok(Self::FirstResultOnly),
            "not-json" => Ok(Self::NotJson),
            "silence" => Ok(Self::NoResponse),
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
    fn every_refusal_round_trips_and_a_success_is_not_parsed() {
        for refusal in ListResponse::TERMINATING.into_iter().chain([ListResponse::NoResponse]) {
            assert_eq!(refusal.as_arg().parse(), Ok(refusal));
        }
        assert!("200".parse::<ListResponse>().is_err());
    }
}
