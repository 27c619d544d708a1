//! The forms that the inputs of a call can have in its body, and the options of their tokenization.

use groupage_engine::Truncation;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::error::{CallError, ErrorKind};

/// Maximum number of inputs of a call, equal to that of the embeddings API of OpenAI. The limit of
/// TEI is 32 by default (`--max-client-batch-size`); here, a list that is too long for one batch is
/// executed in several.
pub(crate) const INPUTS_MAX: usize = 2048;

/// An input: a text, or token ids.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged, expecting = "expected a string or a list of token ids")]
pub(crate) enum TextInput {
    /// A text.
    Text(String),
    /// Token ids. No special tokens are added to them.
    Ids(Vec<u32>),
}

/// One input, or a list of them.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(
    untagged,
    expecting = "expected a string, a list of strings, a list of token ids, or a list of lists of token ids"
)]
pub(crate) enum TextInputs {
    /// One text or one list of token ids.
    One(TextInput),
    /// A list of inputs.
    List(Vec<TextInput>),
}

/// One text, or a list of them.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged, expecting = "expected a string or a list of strings")]
pub(crate) enum Texts {
    /// One text.
    One(String),
    /// A list of texts.
    List(Vec<String>),
}

/// Side at which tokens of a text that is too long are left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(crate) enum TruncationSide {
    /// The beginning.
    #[serde(alias = "left")]
    Left,
    /// The end.
    #[serde(alias = "right")]
    Right,
}

/// Options of tokenization that several routes accept.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct EncodeOptions {
    /// `true` to truncate an input with too many tokens, `false` to refuse it. The default is
    /// `true`, as for TEI, where `--auto-truncate` is enabled by default.
    pub(crate) truncate: Option<bool>,
    /// Side at which tokens are left out. The default is that of the model.
    pub(crate) truncation_direction: Option<TruncationSide>,
    /// Name of a prompt of the model, which is prepended to each text (`prompts` of
    /// sentence-transformers).
    pub(crate) prompt_name: Option<String>,
}

// === impl TextInput ===

impl TextInput {
    /// Returns `true` for an input without a text or token ids.
    fn is_empty(&self) -> bool {
        match self {
            Self::Text(text) => text.is_empty(),
            Self::Ids(ids) => ids.is_empty(),
        }
    }
}

// === impl TextInputs ===

impl TextInputs {
    /// Returns the inputs as a list, in which none is empty. An error names the field of the body,
    /// `field`.
    pub(crate) fn into_list(self, field: &str) -> Result<Vec<TextInput>, CallError> {
        let list = match self {
            // `[]` is parsed as a list of no token ids, and means a list of no inputs.
            Self::One(TextInput::Ids(ids)) if ids.is_empty() => Vec::new(),
            Self::One(one) if one.is_empty() => return Err(CallError::empty_input(field)),
            Self::One(one) => return Ok(vec![one]),
            Self::List(list) => list,
        };
        check_count(list.len(), field)?;
        refuse_empty(list.iter().map(TextInput::is_empty), field)?;
        Ok(list)
    }
}

// === impl Texts ===

impl Texts {
    /// Returns the texts as a list, in which none is empty. An error names the field of the body,
    /// `field`.
    pub(crate) fn into_list(self, field: &str) -> Result<Vec<String>, CallError> {
        let list = match self {
            Self::One(text) if text.is_empty() => return Err(CallError::empty_input(field)),
            Self::One(text) => return Ok(vec![text]),
            Self::List(list) => list,
        };
        check_count(list.len(), field)?;
        refuse_empty(list.iter().map(String::is_empty), field)?;
        Ok(list)
    }
}

// === impl EncodeOptions ===

impl EncodeOptions {
    /// Returns the treatment of an input that is too long.
    pub(crate) fn truncation(&self) -> Truncation {
        match (self.truncate, self.truncation_direction) {
            (Some(false), _) => Truncation::Refused,
            (None | Some(true), None) => Truncation::ModelSide,
            (None | Some(true), Some(TruncationSide::Left)) => Truncation::Left,
            (None | Some(true), Some(TruncationSide::Right)) => Truncation::Right,
        }
    }
}

/// Parses a JSON body. A body that is not JSON, and one with other fields or types, have different
/// kinds of errors.
pub(crate) fn parse_body<T: DeserializeOwned>(body: &[u8]) -> Result<T, CallError> {
    serde_json::from_slice(body).map_err(|error| {
        if error.is_data() {
            CallError::invalid(format!("the body is not accepted: {error}"))
        } else {
            CallError::new(ErrorKind::Malformed, format!("the body is not JSON: {error}"))
        }
    })
}

/// Checks that there is an input, and that there are not too many.
pub(crate) fn check_count(count: usize, field: &str) -> Result<(), CallError> {
    match count {
        0 => Err(CallError::new(ErrorKind::Empty, format!("`{field}` cannot be empty: send at least one input"))),
        1..=INPUTS_MAX => Ok(()),
        _ => {
            let message =
                format!("`{field}` has {count} inputs and a call may have at most {INPUTS_MAX}: send several calls");
            Err(CallError::new(ErrorKind::TooLarge, message))
        }
    }
}

/// Refuses a list `field` with an empty element. The iterator has `true` for such an element.
pub(crate) fn refuse_empty(mut are_empty: impl Iterator<Item = bool>, field: &str) -> Result<(), CallError> {
    match are_empty.position(|is_empty| is_empty) {
        Some(index) => Err(CallError::empty_input(format_args!("{field}[{index}]"))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(body: &str) -> Result<Vec<TextInput>, ErrorKind> {
        let parsed: Result<TextInputs, CallError> = parse_body(body.as_bytes());
        parsed.and_then(|inputs| inputs.into_list("inputs")).map_err(|error| error.kind)
    }

    fn text(text: &str) -> TextInput {
        TextInput::Text(text.to_owned())
    }

    #[test]
    fn a_list_of_numbers_is_one_input_and_a_list_of_lists_is_several() {
        assert_eq!(list(r#""a""#), Ok(vec![text("a")]));
        assert_eq!(list(r#"["a", "b"]"#), Ok(vec![text("a"), text("b")]));
        assert_eq!(list("[1, 2]"), Ok(vec![TextInput::Ids(vec![1, 2])]));
        assert_eq!(list("[[1], [2, 3]]"), Ok(vec![TextInput::Ids(vec![1]), TextInput::Ids(vec![2, 3])]));
        assert_eq!(list(r#"["a", [1]]"#), Ok(vec![text("a"), TextInput::Ids(vec![1])]), "TEI accepts both in a list");
    }

    #[test]
    fn other_forms_are_refused_by_kind() {
        assert_eq!(list("[]"), Err(ErrorKind::Empty));
        for wrong in ["1", "null", "[1.5]", "[-1]", r#"["a", null]"#, "{}", "[[[1]]]"] {
            assert_eq!(list(wrong), Err(ErrorKind::Invalid), "{wrong}");
        }
        for broken in ["", "[", "\"a", "[1] 2"] {
            assert_eq!(list(broken), Err(ErrorKind::Malformed), "{broken}");
        }
        let many = serde_json::to_string(&vec!["a"; INPUTS_MAX + 1]).unwrap();
        assert_eq!(list(&many), Err(ErrorKind::TooLarge));
    }

    #[test]
    fn an_error_names_the_forms() {
        let error = parse_body::<TextInputs>(b"7").unwrap_err();
        assert!(error.message.contains("a list of token ids"), "{}", error.message);
    }
}
