//! A second scanner, which follows the grammar byte by byte, for comparison with the fast one.

use proptest::prelude::*;

use super::*;

/// A value with the spans of everything in it.
#[derive(Debug, PartialEq, Eq)]
struct Tree {
    span: Span,
    /// Elements of an array, or members of an object with their keys.
    children: Vec<(Option<Span>, Self)>,
}

struct Reference<'a> {
    doc: &'a [u8],
    rules: JsonRules,
}

/// Returns the only value of a document.
fn read(doc: &[u8], rules: JsonRules) -> Result<Tree, JsonError> {
    if rules.strict && std::str::from_utf8(doc).is_err() {
        return Err(JsonError::Utf8);
    }
    let reference = Reference { doc, rules };
    let tree = reference.value(reference.blank(0), 0)?;
    if reference.blank(tree.span.end) == doc.len() { Ok(tree) } else { Err(JsonError::Syntax) }
}

/// Returns the same tree as the iterators show it.
fn traverse(doc: &[u8], span: Span) -> Tree {
    let children = match kind(doc, span.start) {
        JsonType::Array => Elements::new(doc, span).map(|element| (None, traverse(doc, element))).collect(),
        JsonType::Object => {
            Members::new(doc, span).map(|member| (Some(member.key), traverse(doc, member.value))).collect()
        }
        JsonType::String | JsonType::Number | JsonType::Bool | JsonType::Null => Vec::new(),
    };
    Tree { span, children }
}

// === impl Reference ===

impl Reference<'_> {
    fn at(&self, pos: usize) -> Option<u8> {
        self.doc.get(pos).copied()
    }

    fn blank(&self, mut pos: usize) -> usize {
        while self.at(pos).is_some_and(|byte| b" \n\r\t".contains(&byte)) {
            pos += 1;
        }
        pos
    }

    fn digits(&self, mut pos: usize) -> usize {
        while self.at(pos).is_some_and(|byte| byte.is_ascii_digit()) {
            pos += 1;
        }
        pos
    }

    fn value(&self, pos: usize, depth: usize) -> Result<Tree, JsonError> {
        let words: &[&[u8]] = if self.rules.lenient {
            &[b"true", b"false", b"null", b"NaN", b"Infinity"]
        } else {
            &[b"true", b"false", b"null"]
        };
        let scalar = |end| Tree { span: Span { start: pos, end }, children: Vec::new() };
        match self.at(pos) {
            Some(b'[') => self.list(pos, depth, b']'),
            Some(b'{') => self.list(pos, depth, b'}'),
            Some(b'"') => self.string(pos).map(scalar),
            Some(b'-' | b'0'..=b'9') => self.number(pos).map(scalar),
            _ => {
                let word = words.iter().find(|word| self.doc.get(pos..).is_some_and(|rest| rest.starts_with(word)));
                word.map(|word| scalar(pos + word.len())).ok_or(JsonError::Syntax)
            }
        }
    }

    fn list(&self, start: usize, depth: usize, close: u8) -> Result<Tree, JsonError> {
        if depth == self.rules.nesting_max {
            return Err(JsonError::Nesting);
        }
        let mut children = Vec::new();
        let mut pos = self.blank(start + 1);
        if self.at(pos) == Some(close) {
            return Ok(Tree { span: Span { start, end: pos + 1 }, children });
        }
        loop {
            let mut key = None;
            if close == b'}' {
                let span = Span { start: pos, end: self.string(pos)? };
                let colon = self.blank(span.end);
                if self.at(colon) != Some(b':') {
                    return Err(JsonError::Syntax);
                }
                pos = self.blank(colon + 1);
                key = Some(span);
            }
            let child = self.value(pos, depth + 1)?;
            let after = self.blank(child.span.end);
            children.push((key, child));
            match self.at(after) {
                Some(b',') => pos = self.blank(after + 1),
                Some(byte) if byte == close => return Ok(Tree { span: Span { start, end: after + 1 }, children }),
                _ => return Err(JsonError::Syntax),
            }
        }
    }

    fn string(&self, start: usize) -> Result<usize, JsonError> {
        if self.at(start) != Some(b'"') {
            return Err(JsonError::Syntax);
        }
        let mut pos = start + 1;
        loop {
            pos += match (self.at(pos), self.at(pos + 1)) {
                (Some(b'"'), _) => return Ok(pos + 1),
                (Some(b'\\'), Some(b'u')) => {
                    let is_hex = |place| self.at(place).is_some_and(|byte| byte.is_ascii_hexdigit());
                    if !(pos + 2..pos + 6).all(is_hex) {
                        return Err(JsonError::Syntax);
                    }
                    6
                }
                (Some(b'\\'), Some(byte)) if br#""\/bfnrt"#.contains(&byte) => 2,
                (Some(b'\\' | 0..=0x1f) | None, _) => return Err(JsonError::Syntax),
                _ => 1,
            };
        }
    }

    fn number(&self, start: usize) -> Result<usize, JsonError> {
        let some_digits = |first: usize| match self.digits(first) {
            end if end == first => Err(JsonError::Syntax),
            end => Ok(end),
        };
        if self.rules.lenient && self.doc.get(start..).is_some_and(|rest| rest.starts_with(b"-Infinity")) {
            return Ok(start + 9);
        }
        let first = start + usize::from(self.at(start) == Some(b'-'));
        let mut pos = if self.at(first) == Some(b'0') { first + 1 } else { some_digits(first)? };
        if self.at(pos) == Some(b'.') {
            pos = some_digits(pos + 1)?;
        }
        if matches!(self.at(pos), Some(b'e' | b'E')) {
            pos = some_digits(pos + 1 + usize::from(matches!(self.at(pos + 1), Some(b'+' | b'-'))))?;
        }
        let text = std::str::from_utf8(&self.doc[start..pos]).unwrap();
        if self.rules.strict && text.parse::<f64>().unwrap().is_infinite() {
            return Err(JsonError::Range);
        }
        Ok(pos)
    }
}

/// Rows of numbers, some of which are not numbers.
fn rows() -> impl Strategy<Value = String> {
    let number = prop_oneof![
        8 => "-?(0|[1-9][0-9]{0,25})(\\.[0-9]{1,30})?([eE][+-]?[0-9]{1,3})?",
        1 => "[-+0-9.eE]{0,5}",
        1 => "(NaN|-?Infinity|null|\"1\"|\\[\\]|\\[2\\])",
    ];
    let comma = prop_oneof![6 => Just(","), 2 => Just(", "), 1 => Just(" ,"), 1 => Just(",\n "), 1 => Just(",  ")];
    let row = (prop::collection::vec((number, comma), 0..12), "[ ]{0,9}", "[,\\] ]{0,2}").prop_map(
        |(numbers, before, after)| {
            let mut text = format!("{before}[");
            numbers.iter().for_each(|(number, comma)| text.extend([number.as_str(), comma]));
            format!("{}{after}]", text.trim_end_matches([',', ' ', '\n']))
        },
    );
    (prop::collection::vec(row, 1..4), any::<bool>()).prop_map(|(rows, is_object)| {
        let rows = rows.join(",");
        if is_object { format!("{{\"a\":{rows}}}") } else { format!("[{rows}]") }
    })
}

/// Texts of short tokens, most of which are no documents.
fn tokens() -> impl Strategy<Value = String> {
    let token = prop::sample::select(vec![
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "\"a\"",
        "\"\\u00e4\"",
        "\"\\u12\"",
        "\"",
        "1",
        "-",
        "0",
        ".5",
        "e9",
        " ",
        "true",
        "null",
        "NaN",
        "Infinity",
        "-Infinity",
        "1e999",
        "\\",
        "\u{0}",
        "\u{1f}",
        "汉",
    ]);
    prop::collection::vec(token, 0..14).prop_map(|tokens| tokens.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    /// Both scanners find the same flaw, or the same spans.
    #[test]
    fn the_scanner_agrees_with_a_byte_by_byte_reference(
        text in prop_oneof![spelled(), rows(), tokens()],
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
        nesting_max in 1..6_usize,
        (lenient, strict) in any::<(bool, bool)>(),
    ) {
        let mut doc = text.into_bytes();
        for (at, byte) in changes {
            if !doc.is_empty() {
                let place = at.index(doc.len());
                doc[place] = byte;
            }
        }
        let rules = JsonRules { lenient, strict, nesting_max };
        let expected = read(&doc, rules);
        prop_assert_eq!(validate(&doc, rules), expected.as_ref().map(|_| ()).map_err(|error| *error));
        if let Ok(tree) = expected {
            prop_assert_eq!(root(&doc), tree.span);
            prop_assert_eq!(root_of_validated(&doc), tree.span);
            prop_assert_eq!(traverse(&doc, tree.span), tree);
        }
    }
}
