//! JSON Pointers (RFC 6901), with which a policy refers to a position in a document.

use std::fmt;

/// A position in a JSON document, such as `/inputs/x`. The empty pointer refers to the whole
/// document.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Pointer {
    tokens: Vec<String>,
}

// === impl Pointer ===

impl Pointer {
    /// Parses a pointer as written in a policy.
    ///
    /// # Errors
    /// Returns a message that describes the syntax error.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Ok(Self { tokens: Vec::new() });
        }
        let Some(path) = text.strip_prefix('/') else {
            return Err(format!("a JSON Pointer must start with '/' or be empty: {text:?}"));
        };
        path.split('/')
            .map(unescape)
            .collect::<Option<Vec<_>>>()
            .map(|tokens| Self { tokens })
            .ok_or_else(|| format!("'~' in a JSON Pointer must be followed by 0 or 1: {text:?}"))
    }

    /// Parses a pointer, or a bare field name as a pointer with a single token.
    ///
    /// # Errors
    /// Same as [`Pointer::parse`].
    pub fn parse_field(text: &str) -> Result<Self, String> {
        if text.is_empty() || text.starts_with('/') {
            Self::parse(text)
        } else {
            Ok(Self { tokens: vec![text.to_owned()] })
        }
    }

    /// Returns the unescaped reference tokens.
    #[must_use]
    pub fn tokens(&self) -> &[String] {
        &self.tokens
    }

    /// Returns the last token: the name of the member that the pointer refers to.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.tokens.last().map(String::as_str)
    }

    /// Returns `true` if both pointers refer to members of the same object.
    #[must_use]
    pub fn is_sibling(&self, other: &Self) -> bool {
        let parent = |pointer: &Self| pointer.tokens.split_last().map(|(_, parent)| parent.to_vec());
        parent(self).is_some() && parent(self) == parent(other)
    }

    /// Returns the pointer to the member `name` of the same object, or `None` for the root.
    #[must_use]
    pub(crate) fn with_name(&self, name: &str) -> Option<Self> {
        let (_, parent) = self.tokens.split_last()?;
        Some(Self { tokens: parent.iter().cloned().chain([name.to_owned()]).collect() })
    }

    /// Returns `true` if `other` refers to this position or to one below it.
    #[must_use]
    pub fn is_prefix_of(&self, other: &Self) -> bool {
        other.tokens.starts_with(&self.tokens)
    }

    /// Parses a pointer that is known to be well formed.
    pub(crate) fn from_static(text: &str) -> Self {
        Self::parse(text).expect("pointers written in this module start with a slash and escape nothing")
    }
}

fn unescape(token: &str) -> Option<String> {
    let mut out = String::with_capacity(token.len());
    let mut chars = token.chars();
    while let Some(char) = chars.next() {
        match char {
            '~' => match chars.next()? {
                '0' => out.push('~'),
                '1' => out.push('/'),
                _ => return None,
            },
            other => out.push(other),
        }
    }
    Some(out)
}

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for token in &self.tokens {
            write!(f, "/{}", token.replace('~', "~0").replace('/', "~1"))?;
        }
        Ok(())
    }
}

impl fmt::Debug for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pointer_prints_as_it_was_written() {
        for text in ["", "/", "/a", "/a/b", "/a~1b/~0", "/0/x"] {
            assert_eq!(Pointer::parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn an_invalid_pointer_is_refused() {
        for text in ["a", "a/b", "/~", "/~2", "#/a"] {
            assert!(Pointer::parse(text).is_err(), "{text}");
        }
        assert_eq!(Pointer::parse_field("id").unwrap(), Pointer::parse("/id").unwrap());
    }

    #[test]
    fn pointers_into_one_object_are_siblings() {
        let [a, b, c] = ["/x/a", "/x/b", "/a"].map(|text| Pointer::parse(text).unwrap());
        assert!(a.is_sibling(&b));
        assert!(!a.is_sibling(&c));
        assert!(!Pointer::parse("").unwrap().is_sibling(&c));
    }
}
