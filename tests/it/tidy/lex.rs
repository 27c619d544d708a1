//! Splits Rust source into tokens, so that rules about code ignore comments and strings.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TokenKind {
    /// An identifier, a keyword or a number.
    Word,
    /// The contents of a string, without prefix and quotes.
    Text,
    /// `::`, or one byte of punctuation.
    Mark,
}

/// One token and the line on which it starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Token<'a> {
    pub(super) kind: TokenKind,
    pub(super) text: &'a str,
    pub(super) line: usize,
}

// === impl Token ===

impl Token<'_> {
    pub(super) fn is(&self, text: &str) -> bool {
        self.kind != TokenKind::Text && self.text == text
    }
}

/// Returns the tokens of a source, without comments, character literals and lifetimes.
pub(super) fn lex(source: &str) -> Vec<Token<'_>> {
    let bytes = source.as_bytes();
    let mut tokens = Vec::new();
    let (mut pos, mut line) = (0, 1);
    while let Some(rest) = bytes.get(pos..).filter(|rest| !rest.is_empty()) {
        let (kind, len) = next(rest);
        let text = source.get(pos..pos + len).unwrap_or_default();
        if let Some(kind) = kind {
            let text = if kind == TokenKind::Text { inside(text) } else { text };
            tokens.push(Token { kind, text, line });
        }
        line += text.bytes().filter(|byte| *byte == b'\n').count();
        pos += len;
    }
    tokens
}

fn next(rest: &[u8]) -> (Option<TokenKind>, usize) {
    if rest.starts_with(b"//") {
        return (None, rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len()));
    }
    if rest.starts_with(b"/*") {
        return (None, block_comment(rest));
    }
    if let Some(len) = string(rest) {
        return (Some(TokenKind::Text), len);
    }
    if rest.starts_with(b"'") || rest.starts_with(b"b'") {
        return (None, character(rest));
    }
    if is_word(rest[0]) {
        return (Some(TokenKind::Word), rest.iter().position(|byte| !is_word(*byte)).unwrap_or(rest.len()));
    }
    if rest.starts_with(b"::") {
        return (Some(TokenKind::Mark), 2);
    }
    if rest[0].is_ascii_whitespace() { (None, 1) } else { (Some(TokenKind::Mark), 1) }
}

/// Returns `true` for a byte of an identifier or a number. In code, bytes past ASCII occur in
/// identifiers only, and a token must not end inside a character.
fn is_word(byte: u8) -> bool {
    byte == b'_' || byte.is_ascii_alphanumeric() || !byte.is_ascii()
}

fn block_comment(rest: &[u8]) -> usize {
    let (mut depth, mut pos) = (0_usize, 0);
    while pos < rest.len() {
        if rest[pos..].starts_with(b"/*") {
            (depth, pos) = (depth + 1, pos + 2);
        } else if rest[pos..].starts_with(b"*/") {
            (depth, pos) = (depth - 1, pos + 2);
            if depth == 0 {
                break;
            }
        } else {
            pos += 1;
        }
    }
    pos
}

/// Returns the length of a string literal with prefix, hashes and quotes, or `None` if there is
/// none.
fn string(rest: &[u8]) -> Option<usize> {
    let prefix = usize::from(matches!(rest[0], b'b' | b'c'));
    let raw = rest.get(prefix) == Some(&b'r');
    let mut pos = prefix + usize::from(raw);
    let hashes = if raw { rest.get(pos..)?.iter().take_while(|byte| **byte == b'#').count() } else { 0 };
    pos += hashes;
    if rest.get(pos) != Some(&b'"') {
        return None;
    }
    pos += 1;
    while let Some(byte) = rest.get(pos) {
        pos += 1;
        match byte {
            b'\\' if !raw => pos += 1,
            b'"' if rest.get(pos..pos + hashes).is_some_and(|end| end.iter().all(|byte| *byte == b'#')) => {
                return Some(pos + hashes);
            }
            _ => {}
        }
    }
    Some(rest.len())
}

fn inside(literal: &str) -> &str {
    let from = literal.find('"').map_or(0, |quote| quote + 1);
    let to = literal.rfind('"').unwrap_or(literal.len()).max(from);
    literal.get(from..to).unwrap_or_default()
}

/// Returns the length of a character literal, or of the quote of a lifetime.
fn character(rest: &[u8]) -> usize {
    let open = 1 + usize::from(rest[0] == b'b');
    let first = if rest.get(open) == Some(&b'\\') { open + 1 } else { open };
    // A character has at most four bytes, and an escape such as `\u{10ffff}` nine after the
    // backslash. A lifetime has no quote this close, except before another lifetime or character.
    let close = rest.iter().skip(first + 1).take(9).position(|byte| *byte == b'\'').map(|at| first + 1 + at);
    match close {
        Some(close)
            if first > open || std::str::from_utf8(&rest[open..close]).is_ok_and(|c| c.chars().count() == 1) =>
        {
            close + 1
        }
        _ => open,
    }
}

#[test]
fn a_rule_sees_code_and_neither_comments_nor_strings_nor_lifetimes() {
    let source = "use crate::a; // crate::b\n/* crate::c /* x */ */ fn f<'a>(x: &'a str) { g(\"crate::d\\\"\", r#\"crate\"e\"#, 'c', '\\'', b'\\n', '→') }";
    let words: Vec<&str> =
        lex(source).into_iter().filter(|token| token.kind == TokenKind::Word).map(|token| token.text).collect();
    assert_eq!(words, ["use", "crate", "a", "fn", "f", "a", "x", "a", "str", "g"]);
    let texts: Vec<_> = lex(source)
        .into_iter()
        .filter(|token| token.kind == TokenKind::Text)
        .map(|token| (token.text, token.line))
        .collect();
    assert_eq!(texts, [("crate::d\\\"", 2), ("crate\"e", 2)]);
}
