//! Reads YAML as `kubectl` does, and writes YAML that every parser reads alike.
//!
//! `kubectl` reads YAML 1.1 (`sigs.k8s.io/yaml`, a fork of go-yaml v2): `yes`, `on` and `0755` are
//! not strings there, and a value that was read in another way would be changed by writing it. The
//! syntax is parsed by `granit-parser`, on which serde-saphyr is built; plain scalars are resolved
//! in [`scalar`]. A text without changed objects is returned as it was written, with its comments.

mod position;
mod scalar;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use granit_parser::{Event, Parser, ScalarStyle, Span};
use serde_json::{Map, Value};

pub(super) use self::position::line_of;

/// Maximum size of a text. A manifest of a large chart has a few megabytes.
const BYTES_MAX: usize = 64 << 20;
/// Maximum nesting depth. Kubernetes objects, including CRDs with their nested schemas, are some 40
/// levels deep.
const DEPTH_MAX: usize = 200;
/// Maximum number of values after the expansion of aliases: a small text could otherwise expand to
/// any size.
const NODES_MAX: usize = 5_000_000;

/// One document of a YAML stream.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct YamlDocument {
    /// The value; null for an empty document.
    pub(super) value: Value,
    /// Byte range of its text, including the marker before it.
    pub(super) text: Range<usize>,
    /// `true` if `---` precedes the document.
    pub(super) marked: bool,
    /// Number of its first line, from 1.
    pub(super) line: usize,
}

/// Error of reading a text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}")]
pub(super) struct YamlError {
    pub(super) line: usize,
    pub(super) message: String,
}

/// A collection that is being read.
enum OpenCollection {
    List {
        items: Vec<Value>,
        anchor: usize,
    },
    /// `own` has the keys that the map itself contains, without merged ones.
    Map {
        map: Map<String, Value>,
        own: BTreeSet<String>,
        key: Option<MapKey>,
        anchor: usize,
    },
}

/// Key of a map.
enum MapKey {
    Named(String),
    /// The merge key `<<`.
    Merge,
}

struct DocumentReader {
    documents: Vec<YamlDocument>,
    open: Vec<OpenCollection>,
    anchors: BTreeMap<usize, (Value, usize)>,
    root: Option<Value>,
    start: (usize, usize, bool),
    /// `true` once a document has begun.
    begun: bool,
    nodes: usize,
}

/// Reads every document of a text: YAML, or JSON, also several JSON objects in a row.
///
/// # Errors
/// The first place that cannot be read, or that has another meaning for `kubectl`.
pub(super) fn documents(text: &str) -> Result<Vec<YamlDocument>, YamlError> {
    if text.len() > BYTES_MAX {
        return Err(YamlError { line: 1, message: format!("it has {} bytes; the limit is {BYTES_MAX}", text.len()) });
    }
    if let Some(found) = json(text) {
        return Ok(found);
    }
    let mut reader = DocumentReader {
        documents: Vec::new(),
        open: Vec::new(),
        anchors: BTreeMap::new(),
        root: None,
        start: (0, 1, false),
        begun: false,
        nodes: 0,
    };
    for next in Parser::new_from_str(text) {
        let (event, span) = next.map_err(|error| {
            let line = error.marker().line();
            YamlError { line, message: format!("invalid YAML: {error}") }
        })?;
        reader.event(event, span, text.len())?;
    }
    reader.end(text.len());
    Ok(reader.documents)
}

/// Writes a value so that parsers of YAML 1.1 and 1.2 agree on it.
///
/// # Errors
/// The error of the serializer; none is known for JSON values.
pub(super) fn write(value: &Value) -> Result<String, String> {
    let options = serde_saphyr::ser_options! { prefer_block_scalars: true, folded_wrap_chars: usize::MAX };
    let mut text = serde_saphyr::to_string_with_options(value, options).map_err(|error| error.to_string())?;
    if !text.ends_with('\n') {
        text.push('\n');
    }
    Ok(text)
}

/// Reads a stream of JSON objects, which is invalid YAML if it has several.
fn json(text: &str) -> Option<Vec<YamlDocument>> {
    if !text.trim_start().starts_with('{') {
        return None;
    }
    let mut stream = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    let (mut found, mut from) = (Vec::new(), 0);
    while let Some(value) = stream.next() {
        let to = stream.byte_offset();
        let line = 1 + text.get(..from)?.matches('\n').count();
        found.push(YamlDocument { value: value.ok()?, text: from..to, marked: false, line });
        from = to;
    }
    Some(found)
}

// === impl DocumentReader ===

impl DocumentReader {
    fn event(&mut self, event: Event<'_>, span: Span, len: usize) -> Result<(), YamlError> {
        let line = span.start.line();
        let fail = |message: String| YamlError { line, message };
        match event {
            Event::DocumentStart(marked, _) => {
                let from = if marked { span.start.byte_offset().unwrap_or(len) } else { 0 };
                self.begin(from, line, marked)?;
            }
            Event::Scalar(text, style, anchor, tag) => {
                let tag = tag.as_ref().map(|tag| tag.core_suffix().map(str::to_owned).ok_or_else(|| tag.to_string()));
                let tag = tag.transpose().map_err(|tag| fail(format!("the tag {tag} has no equivalent in JSON")))?;
                let plain = style == ScalarStyle::Plain;
                if self.wants_key() {
                    return self.key(&text, plain && tag.is_none(), line);
                }
                let value = resolve_scalar(&text, tag.as_deref(), plain).map_err(fail)?;
                self.node(value, anchor, line)?;
            }
            Event::Alias(id) => {
                let Some((value, nodes)) = self.anchors.get(&id).cloned() else {
                    return Err(fail("an alias is inside the value that it refers to".to_owned()));
                };
                if self.wants_key() {
                    return Err(fail("a key cannot be an alias here".to_owned()));
                }
                self.nodes += nodes;
                self.node(value, 0, line)?;
            }
            Event::SequenceStart(_, anchor, _) | Event::MappingStart(_, anchor, _) if self.open.len() >= DEPTH_MAX => {
                let _ = anchor;
                return Err(fail(format!("it is nested more than {DEPTH_MAX} levels deep")));
            }
            Event::SequenceStart(..) | Event::MappingStart(..) if self.wants_key() => {
                return Err(fail("a list or map cannot be a key".to_owned()));
            }
            Event::SequenceStart(_, anchor, _) => self.open.push(OpenCollection::List { items: Vec::new(), anchor }),
            Event::MappingStart(_, anchor, _) => {
                self.open.push(OpenCollection::Map { map: Map::new(), own: BTreeSet::new(), key: None, anchor });
            }
            Event::SequenceEnd | Event::MappingEnd => match self.open.pop() {
                Some(OpenCollection::List { items, anchor }) => self.node(Value::Array(items), anchor, line)?,
                Some(OpenCollection::Map { map, anchor, .. }) => self.node(Value::Object(map), anchor, line)?,
                None => {}
            },
            Event::UnresolvedAlias(name) => return Err(fail(format!("unknown anchor {name}"))),
            _ => {}
        }
        Ok(())
    }

    fn wants_key(&self) -> bool {
        matches!(self.open.last(), Some(OpenCollection::Map { key: None, .. }))
    }

    fn key(&mut self, text: &str, plain: bool, line: usize) -> Result<(), YamlError> {
        let Some(OpenCollection::Map { own, key, .. }) = self.open.last_mut() else { return Ok(()) };
        if plain && text == "<<" {
            *key = Some(MapKey::Merge);
            return Ok(());
        }
        let fail = |message: String| YamlError { line, message };
        let name = if plain { scalar::resolve_key(text).map_err(fail)? } else { text.to_owned() };
        if !own.insert(name.clone()) {
            return Err(fail(format!("the key {name} is set twice")));
        }
        *key = Some(MapKey::Named(name));
        Ok(())
    }

    /// Adds a finished value to the innermost open collection.
    fn node(&mut self, value: Value, anchor: usize, line: usize) -> Result<(), YamlError> {
        self.nodes += 1;
        if self.nodes > NODES_MAX {
            return Err(YamlError { line, message: format!("it has more than {NODES_MAX} values") });
        }
        if anchor > 0 {
            let size = count(&value);
            self.anchors.insert(anchor, (value.clone(), size));
        }
        match self.open.last_mut() {
            Some(OpenCollection::List { items, .. }) => items.push(value),
            Some(OpenCollection::Map { map, key, .. }) => match key.take() {
                Some(MapKey::Named(name)) => drop(map.insert(name, value)),
                Some(MapKey::Merge) => merge(map, value).map_err(|message| YamlError { line, message })?,
                None => {}
            },
            None => self.root = Some(value),
        }
        Ok(())
    }

    /// Begins a document at a byte offset, and ends the one before it.
    fn begin(&mut self, from: usize, line: usize, marked: bool) -> Result<(), YamlError> {
        if self.begun && !marked {
            let explanation = "a document begins after ... without ---, and kubectl ignores it: write --- before it";
            return Err(YamlError { line, message: explanation.to_owned() });
        }
        self.begun = true;
        self.end(from);
        // Comments and directives before the first marker belong to the first document.
        let from = if self.documents.is_empty() { 0 } else { from };
        self.start = (from, line, marked);
        self.anchors.clear();
        Ok(())
    }

    /// Ends the current document at a byte offset, if one has begun.
    fn end(&mut self, to: usize) {
        let (from, line, marked) = self.start;
        if let Some(value) = self.root.take() {
            self.documents.push(YamlDocument { value, text: from..to, marked, line });
            self.start.0 = to;
        }
    }
}

fn resolve_scalar(text: &str, tag: Option<&str>, plain: bool) -> Result<Value, String> {
    match (tag, plain) {
        (None, true) => scalar::resolve(text),
        (None | Some("str"), _) => Ok(Value::String(text.to_owned())),
        (Some(tag), _) => scalar::resolve_tagged(tag, text),
    }
}

fn count(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(count).sum::<usize>(),
        Value::Object(map) => 1 + map.values().map(count).sum::<usize>(),
        _ => 1,
    }
}

/// Inserts the content of a merge key (`<<`) into a map and overrides earlier keys, as go-yaml v2
/// does (`decode.go`, `merge`). By the YAML specification a map's own keys win at any position, but
/// the result must be the one that `kubectl` applies. Of several maps the first one wins.
fn merge(map: &mut Map<String, Value>, named: Value) -> Result<(), String> {
    let sources = match named {
        Value::Array(sources) => sources,
        source => vec![source],
    };
    for source in sources.into_iter().rev() {
        let Value::Object(source) = source else { return Err("<< accepts a map or a list of maps".to_owned()) };
        map.extend(source);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
