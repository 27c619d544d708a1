//! A JSON reader for comparisons. It keeps the spelling of every string and number, keeps duplicate
//! members, finds the end of a document inside a longer text, and accepts the words `NaN` and
//! `Infinity` of Python. It shares no code with the scanner under test.

/// A JSON value. Scalars and member names are raw spellings, including quotes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Json {
    /// Members in order, including duplicates.
    Object(Vec<(Vec<u8>, Self)>),
    /// Elements in order.
    Array(Vec<Self>),
    /// A string, a number, or a word such as `true` or `NaN`.
    Scalar(Vec<u8>),
}

/// Maximum nesting of a document. Deeper ones are an error, because the reader recurses.
const DEPTH_MAX: usize = 400;

/// Parses a text that consists of exactly one document.
pub(crate) fn parse(text: &[u8]) -> Result<Json, String> {
    let (value, end) = parse_prefix(text)?;
    let rest = text.get(end..).unwrap_or_default();
    match rest.iter().position(|b| !is_space(*b)) {
        None => Ok(value),
        Some(at) => Err(format!("more text after the document, at byte {}", end + at)),
    }
}

/// Parses the document at the beginning of a text and returns it with the offset of its end.
pub(crate) fn parse_prefix(text: &[u8]) -> Result<(Json, usize), String> {
    let mut reader = Reader { text, at: 0 };
    let value = reader.value(0)?;
    Ok((value, reader.at))
}

const fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n')
}

struct Reader<'a> {
    text: &'a [u8],
    at: usize,
}

// === impl Reader ===

impl Reader<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn space(&mut self) {
        while self.peek().is_some_and(is_space) {
            self.at += 1;
        }
    }

    fn wrong<T>(&self, what: &str) -> Result<T, String> {
        Err(format!("not JSON at byte {}: {what}", self.at))
    }

    fn value(&mut self, depth: usize) -> Result<Json, String> {
        if depth > DEPTH_MAX {
            return self.wrong("too deep");
        }
        self.space();
        let start = self.at;
        match self.peek() {
            Some(b'{') => self.object(depth),
            Some(b'[') => self.array(depth),
            Some(b'"') => Ok(Json::Scalar(self.string()?)),
            Some(_) => {
                while self.peek().is_some_and(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.')) {
                    self.at += 1;
                }
                let raw = self.text.get(start..self.at).unwrap_or_default();
                if is_word(raw) || is_number(raw) {
                    Ok(Json::Scalar(raw.to_vec()))
                } else {
                    self.at = start;
                    self.wrong("expected a value")
                }
            }
            None => self.wrong("ended early"),
        }
    }

    fn object(&mut self, depth: usize) -> Result<Json, String> {
        let mut members = Vec::new();
        self.at += 1;
        self.space();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(Json::Object(members));
        }
        loop {
            self.space();
            let key = self.string()?;
            self.space();
            if self.peek() != Some(b':') {
                return self.wrong("expected a colon");
            }
            self.at += 1;
            members.push((key, self.value(depth + 1)?));
            if self.closes(b'}')? {
                return Ok(Json::Object(members));
            }
        }
    }

    fn array(&mut self, depth: usize) -> Result<Json, String> {
        let mut elements = Vec::new();
        self.at += 1;
        self.space();
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(Json::Array(elements));
        }
        loop {
            elements.push(self.value(depth + 1)?);
            if self.closes(b']')? {
                return Ok(Json::Array(elements));
            }
        }
    }

    /// Consumes the separator after a member or an element. Returns `true` at the end of the
    /// container and `false` at a comma.
    fn closes(&mut self, end: u8) -> Result<bool, String> {
        self.space();
        let Some(byte) = self.peek() else { return self.wrong("ended early") };
        if byte != end && byte != b',' {
            return self.wrong("expected a comma or the end");
        }
        self.at += 1;
        Ok(byte == end)
    }

    /// Reads a string with its quotes. Bytes that are not UTF-8 are kept, because servers send
    /// them.
    fn string(&mut self) -> Result<Vec<u8>, String> {
        let start = self.at;
        if self.peek() != Some(b'"') {
            return self.wrong("expected a string");
        }
        self.at += 1;
        loop {
            match self.peek() {
                Some(b'"') => break,
                Some(b'\\') => {
                    self.at += 1;
                    match self.peek() {
                        Some(b'u') => {
                            let hex = self.text.get(self.at + 1..self.at + 5).unwrap_or_default();
                            if hex.len() != 4 || !hex.iter().all(u8::is_ascii_hexdigit) {
                                return self.wrong("bad escape");
                            }
                            self.at += 5;
                        }
                        Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 1,
                        _ => return self.wrong("bad escape"),
                    }
                }
                Some(byte) if byte >= 0x20 => self.at += 1,
                _ => return self.wrong("string without an end"),
            }
        }
        self.at += 1;
        Ok(self.text.get(start..self.at).unwrap_or_default().to_vec())
    }
}

fn is_word(raw: &[u8]) -> bool {
    matches!(raw, b"true" | b"false" | b"null" | b"NaN" | b"Infinity" | b"-Infinity")
}

fn is_number(raw: &[u8]) -> bool {
    let digits = |text: &[u8]| text.iter().take_while(|b| b.is_ascii_digit()).count();
    let mut rest = raw.strip_prefix(b"-").unwrap_or(raw);
    let whole = digits(rest);
    if whole == 0 || (whole > 1 && rest.starts_with(b"0")) {
        return false;
    }
    rest = rest.get(whole..).unwrap_or_default();
    if let Some(fraction) = rest.strip_prefix(b".") {
        let n = digits(fraction);
        if n == 0 {
            return false;
        }
        rest = fraction.get(n..).unwrap_or_default();
    }
    if let Some(exponent) = rest.strip_prefix(b"e").or_else(|| rest.strip_prefix(b"E")) {
        let exponent = exponent.strip_prefix(b"+").or_else(|| exponent.strip_prefix(b"-")).unwrap_or(exponent);
        let n = digits(exponent);
        if n == 0 {
            return false;
        }
        rest = exponent.get(n..).unwrap_or_default();
    }
    rest.is_empty()
}

// === impl Json ===

impl Json {
    /// Returns the unescaped text of a string.
    pub(crate) fn as_str(&self) -> Option<String> {
        match self {
            Self::Scalar(raw) => serde_json::from_slice(raw).ok(),
            Self::Object(_) | Self::Array(_) => None,
        }
    }

    /// Returns the value of a non-negative integer.
    pub(crate) fn as_u64(&self) -> Option<u64> {
        match self {
            Self::Scalar(raw) => serde_json::from_slice(raw).ok(),
            Self::Object(_) | Self::Array(_) => None,
        }
    }

    /// Returns `true` for the word `true`.
    pub(crate) fn is_true(&self) -> bool {
        matches!(self, Self::Scalar(raw) if raw == b"true")
    }

    /// Returns the first member with this name.
    pub(crate) fn get(&self, name: &str) -> Option<&Self> {
        let Self::Object(members) = self else { return None };
        members.iter().find(|(key, _)| unquoted(key).as_deref() == Some(name)).map(|(_, value)| value)
    }

    /// Returns the members in order, with unescaped names.
    pub(crate) fn members(&self) -> Option<Vec<(String, &Self)>> {
        let Self::Object(members) = self else { return None };
        members.iter().map(|(key, value)| unquoted(key).map(|key| (key, value))).collect()
    }

    /// Returns the elements of an array.
    pub(crate) fn elements(&self) -> Option<&[Self]> {
        match self {
            Self::Array(elements) => Some(elements),
            Self::Object(_) | Self::Scalar(_) => None,
        }
    }

    /// Converts the value for serde. Returns `None` if serde does not support a scalar, such as
    /// `NaN`.
    pub(crate) fn value(&self) -> Option<serde_json::Value> {
        match self {
            Self::Scalar(raw) => serde_json::from_slice(raw).ok(),
            Self::Array(elements) => elements.iter().map(Self::value).collect(),
            Self::Object(_) => {
                self.members()?.into_iter().map(|(key, value)| value.value().map(|value| (key, value))).collect()
            }
        }
    }
}

fn unquoted(raw: &[u8]) -> Option<String> {
    serde_json::from_slice(raw).ok()
}
