//! A YAML document as a tree in which every key and every value has its position in the text.
//!
//! serde would stop at the first value of a wrong type and interpret words by its own rules (`off`,
//! `1_000`, `0x1F`). Here a scalar is the text that was written, and the schema determines its
//! meaning. Duplicate keys are preserved for the same reason: `check` reports them together with
//! all other problems.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Location, Spanned};

/// Maximum size of a configuration file. A real one has a page or two.
pub(super) const FILE_BYTES_MAX: usize = 1 << 20;
/// Maximum nesting depth. The schema is eight levels deep.
const DEPTH_MAX: usize = 32;
/// Maximum number of nodes: far above the largest policy (256 routes of about 40 keys), and far
/// below what is expensive.
const NODES_MAX: usize = 100_000;

/// A position in the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct Span {
    /// Line, from 1.
    pub(super) line: usize,
    /// Column, from 1, in characters.
    pub(super) column: usize,
    /// Offset in bytes.
    pub(super) offset: usize,
    /// Length in bytes.
    pub(super) len: usize,
}

/// A value and its position.
#[derive(Debug, Clone)]
pub(super) struct YamlNode {
    pub(super) at: Span,
    pub(super) value: YamlValue,
}

/// A value before it is interpreted by the schema.
#[derive(Debug, Clone)]
pub(super) enum YamlValue {
    /// No value, `null` or `~`.
    Null,
    /// Text as written.
    Scalar {
        text: String,
        /// `true` if the text is neither quoted nor a block.
        plain: bool,
    },
    List(Vec<YamlNode>),
    /// Keys as written, in order, duplicates included.
    Map(Vec<(YamlNode, YamlNode)>),
}

/// Reason that a text cannot be parsed.
#[derive(Debug)]
pub(super) struct ParseError {
    pub(super) at: Span,
    pub(super) message: String,
}

/// Parses one document.
pub(super) fn parse(text: &str) -> Result<YamlNode, ParseError> {
    if text.len() > FILE_BYTES_MAX {
        let message = format!("the file has {} bytes; the limit is {FILE_BYTES_MAX}", text.len());
        return Err(ParseError { at: Span::default(), message });
    }
    // Policies need no aliases or anchors. Their limits bound the work for a small file in which
    // aliases multiply. `budget!` keeps the defaults of fields that another crate could add to the
    // struct by enabling a feature of `serde_saphyr`.
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: DEPTH_MAX,
            flow_nesting_limit: DEPTH_MAX,
            max_nodes: NODES_MAX,
            max_events: 4 * NODES_MAX,
            max_aliases: 1_000,
            max_anchors: 1_000,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: NODES_MAX,
            max_replay_stack_depth: 8,
            max_alias_expansions_per_anchor: 1_000,
        },
        duplicate_keys: serde_saphyr::DuplicateKeyPolicy::PassThrough,
        merge_keys: serde_saphyr::MergeKeyPolicy::AsOrdinary,
        non_finite_float_policy: serde_saphyr::NonFiniteFloatPolicy::PassThrough,
        strict_booleans: true,
        with_snippet: false,
    };
    serde_saphyr::from_str_with_options::<Spanned<RawValue>>(text, options).map(|raw| build_node(text, raw)).map_err(
        |error| {
            let at = error.location().map(|location| to_span(text, location)).unwrap_or_default();
            let message = match error.without_snippet() {
                serde_saphyr::Error::MultipleDocuments { .. } => "a file can contain only one YAML document".to_owned(),
                other => strip_position(&other.to_string()),
            };
            ParseError { at, message }
        },
    )
}

/// A value as serde provides it. It only distinguishes numbers and booleans from text; their text
/// is taken from the source.
enum RawValue {
    Null,
    /// A number or boolean, as the parser interpreted it.
    Resolved(String),
    Text(String),
    List(Vec<Spanned<Self>>),
    Map(Vec<(Spanned<Self>, Spanned<Self>)>),
}

struct RawVisitor;

/// Builds the tree: attaches positions, and restores the written text of a scalar that was
/// interpreted.
fn build_node(source: &str, raw: Spanned<RawValue>) -> YamlNode {
    let at = to_span(source, raw.referenced);
    let defined = to_span(source, raw.defined);
    let written = source.get(defined.offset..defined.offset + defined.len).unwrap_or_default();
    let value = match raw.value {
        RawValue::Null => YamlValue::Null,
        RawValue::Resolved(resolved) => {
            let text = if written.is_empty() { resolved } else { written.trim().to_owned() };
            YamlValue::Scalar { text, plain: true }
        }
        RawValue::Text(text) => YamlValue::Scalar { plain: !written.starts_with(['"', '\'', '|', '>']), text },
        RawValue::List(items) => YamlValue::List(items.into_iter().map(|item| build_node(source, item)).collect()),
        RawValue::Map(entries) => YamlValue::Map(
            entries.into_iter().map(|(key, value)| (build_node(source, key), build_node(source, value))).collect(),
        ),
    };
    YamlNode { at, value }
}

/// Converts a position. Where the parser provides characters only, byte offsets are found by
/// counting.
fn to_span(source: &str, location: Location) -> Span {
    let span = location.span();
    let known = span.byte_offset().zip(span.byte_len());
    let (offset, len) = known.map_or_else(
        || {
            let chars = usize::try_from(span.offset()).unwrap_or(usize::MAX);
            (source.char_indices().nth(chars).map_or(source.len(), |(offset, _)| offset), 0)
        },
        |(offset, len)| (usize::try_from(offset).unwrap_or(usize::MAX), usize::try_from(len).unwrap_or(0)),
    );
    let offset = offset.min(source.len());
    Span {
        line: usize::try_from(location.line()).unwrap_or(usize::MAX),
        column: usize::try_from(location.column()).unwrap_or(usize::MAX),
        offset,
        len: len.min(source.len() - offset),
    }
}

/// Removes the position at the end of the parser's message, because it is shown beside the snippet.
fn strip_position(message: &str) -> String {
    message.rsplit_once(" at line ").map_or(message, |(text, _)| text).to_owned()
}

// === impl YamlNode ===

impl YamlNode {
    /// Creates a scalar without a position, from a flag or the environment.
    pub(super) fn from_text(text: &str) -> Self {
        Self { at: Span::default(), value: YamlValue::Scalar { text: text.to_owned(), plain: true } }
    }

    pub(super) fn text(&self) -> Option<&str> {
        match &self.value {
            YamlValue::Scalar { text, .. } => Some(text),
            YamlValue::Null => Some("null"),
            YamlValue::List(_) | YamlValue::Map(_) => None,
        }
    }

    pub(super) fn entries(&self) -> &[(Self, Self)] {
        match &self.value {
            YamlValue::Map(entries) => entries,
            YamlValue::Null | YamlValue::Scalar { .. } | YamlValue::List(_) => &[],
        }
    }

    /// Returns the value of a key of a map.
    pub(super) fn get(&self, name: &str) -> Option<&Self> {
        self.entries().iter().find(|(key, _)| key.text() == Some(name)).map(|(_, value)| value)
    }
}

// === impl RawValue ===

impl<'de> Deserialize<'de> for RawValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RawVisitor)
    }
}

impl<'de> Visitor<'de> for RawVisitor {
    type Value = RawValue;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_str<E>(self, text: &str) -> Result<RawValue, E> {
        Ok(RawValue::Text(text.to_owned()))
    }

    fn visit_bool<E>(self, value: bool) -> Result<RawValue, E> {
        Ok(RawValue::Resolved(value.to_string()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<RawValue, E> {
        Ok(RawValue::Resolved(value.to_string()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<RawValue, E> {
        Ok(RawValue::Resolved(value.to_string()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<RawValue, E> {
        Ok(RawValue::Resolved(value.to_string()))
    }

    fn visit_unit<E>(self) -> Result<RawValue, E> {
        Ok(RawValue::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<RawValue, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(RawValue::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawValue, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry::<Spanned<RawValue>, Spanned<RawValue>>()? {
            if matches!(entry.0.value, RawValue::List(_) | RawValue::Map(_)) {
                return Err(A::Error::custom("a key cannot be a list or a map"));
            }
            entries.push(entry);
        }
        Ok(RawValue::Map(entries))
    }
}
