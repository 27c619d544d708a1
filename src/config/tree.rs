//! A YAML document as a tree in which every key and every value knows where it stands.
//!
//! serde would stop at the first value of a wrong type and resolve words as it likes (`off`, `1_000`, `0x1F`); here a scalar is the text that was
//! written, and what it means is asked of the schema. Duplicate keys are kept for the same reason: `check` reports them beside everything else.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Location, Spanned};

/// A configuration file is a page or two; a megabyte is none.
pub(super) const FILE_BYTES_MAX: usize = 1 << 20;
/// The schema is eight levels deep.
const DEPTH_MAX: usize = 32;
/// Far above the largest policy (256 routes of some 40 keys), far below what hurts.
const NODES_MAX: usize = 100_000;

/// Where something stands in the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct Spot {
    /// From 1.
    pub(super) line: usize,
    /// From 1, in characters.
    pub(super) column: usize,
    /// In bytes.
    pub(super) offset: usize,
    /// In bytes.
    pub(super) len: usize,
}

/// A value and its place.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) at: Spot,
    pub(super) value: Value,
}

/// What a value is, before anybody asked what it means.
#[derive(Debug, Clone)]
pub(super) enum Value {
    /// Nothing, `null` or `~`.
    Null,
    /// As written; `plain` where it stood without quotes.
    Scalar {
        text: String,
        plain: bool,
    },
    List(Vec<Node>),
    /// Keys as written, in order, duplicates included.
    Map(Vec<(Node, Node)>),
}

/// Why a text is no tree.
#[derive(Debug)]
pub(super) struct Unreadable {
    pub(super) at: Spot,
    pub(super) message: String,
}

/// Reads one document.
pub(super) fn parse(text: &str) -> Result<Node, Unreadable> {
    if text.len() > FILE_BYTES_MAX {
        let message = format!("the file has {} bytes, {FILE_BYTES_MAX} are allowed", text.len());
        return Err(Unreadable { at: Spot::default(), message });
    }
    // `budget!` leaves fields behind that a crate feature of somebody else's could add.
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
    serde_saphyr::from_str_with_options::<Spanned<Raw>>(text, options).map(|raw| node(text, raw)).map_err(|error| {
        let at = error.location().map(|location| spot(text, location)).unwrap_or_default();
        let message = match error.without_snippet() {
            serde_saphyr::Error::MultipleDocuments { .. } => "a file holds one document".to_owned(),
            other => without_place(&other.to_string()),
        };
        Unreadable { at, message }
    })
}

/// What serde sees. Numbers and booleans are only told apart from text here; their text is read from the source.
enum Raw {
    Null,
    Resolved(String),
    Text(String),
    List(Vec<Spanned<Self>>),
    Map(Vec<(Spanned<Self>, Spanned<Self>)>),
}

struct RawVisitor;

/// Attaches places, and puts the written text back where a scalar was resolved.
fn node(source: &str, raw: Spanned<Raw>) -> Node {
    let at = spot(source, raw.referenced);
    let defined = spot(source, raw.defined);
    let written = source.get(defined.offset..defined.offset + defined.len).unwrap_or_default();
    let value = match raw.value {
        Raw::Null => Value::Null,
        Raw::Resolved(shown) => {
            let text = if written.is_empty() { shown } else { written.trim().to_owned() };
            Value::Scalar { text, plain: true }
        }
        Raw::Text(text) => Value::Scalar { plain: !written.starts_with(['"', '\'', '|', '>']), text },
        Raw::List(items) => Value::List(items.into_iter().map(|item| node(source, item)).collect()),
        Raw::Map(entries) => {
            Value::Map(entries.into_iter().map(|(key, value)| (node(source, key), node(source, value))).collect())
        }
    };
    Node { at, value }
}

/// A place, with byte offsets found by counting where the parser knows only characters.
fn spot(source: &str, location: Location) -> Spot {
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
    Spot {
        line: usize::try_from(location.line()).unwrap_or(usize::MAX),
        column: usize::try_from(location.column()).unwrap_or(usize::MAX),
        offset,
        len: len.min(source.len() - offset),
    }
}

/// The parser's message ends in the place, which is shown beside the snippet.
fn without_place(message: &str) -> String {
    message.rsplit_once(" at line ").map_or(message, |(text, _)| text).to_owned()
}

// === impl Node ===

impl Node {
    /// A scalar without a place, as a flag or the environment gives it.
    pub(super) fn given(text: &str) -> Self {
        Self { at: Spot::default(), value: Value::Scalar { text: text.to_owned(), plain: true } }
    }

    /// The text of a scalar.
    pub(super) fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Scalar { text, .. } => Some(text),
            Value::Null => Some("null"),
            Value::List(_) | Value::Map(_) => None,
        }
    }

    /// The entries of a map.
    pub(super) fn entries(&self) -> &[(Self, Self)] {
        match &self.value {
            Value::Map(entries) => entries,
            Value::Null | Value::Scalar { .. } | Value::List(_) => &[],
        }
    }

    /// The value of a key of a map.
    pub(super) fn get(&self, name: &str) -> Option<&Self> {
        self.entries().iter().find(|(key, _)| key.text() == Some(name)).map(|(_, value)| value)
    }
}

// === impl Raw ===

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RawVisitor)
    }
}

impl<'de> Visitor<'de> for RawVisitor {
    type Value = Raw;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_str<E>(self, text: &str) -> Result<Raw, E> {
        Ok(Raw::Text(text.to_owned()))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Raw, E> {
        Ok(Raw::Resolved(value.to_string()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Raw, E> {
        Ok(Raw::Resolved(value.to_string()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Raw, E> {
        Ok(Raw::Resolved(value.to_string()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Raw, E> {
        Ok(Raw::Resolved(value.to_string()))
    }

    fn visit_unit<E>(self) -> Result<Raw, E> {
        Ok(Raw::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Raw, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Raw::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Raw, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry::<Spanned<Raw>, Spanned<Raw>>()? {
            if matches!(entry.0.value, Raw::List(_) | Raw::Map(_)) {
                return Err(A::Error::custom("a key is a word, not a list or a map"));
            }
            entries.push(entry);
        }
        Ok(Raw::Map(entries))
    }
}
