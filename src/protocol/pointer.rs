//! JSON Pointer (RFC 6901): how a policy names a place in a document.

use std::fmt;

/// A place in a JSON document, `/inputs/x`; the empty pointer is the whole document.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Pointer {
    tokens: Vec<String>,
}

// === impl Pointer ===

impl Pointer {
    /// Reads a pointer as it stands in a policy.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Ok(Self { tokens: Vec::new() });
        }
        let Some(path) = text.strip_prefix('/') else {
            return Err(format!("a JSON Pointer starts with '/' or is empty: {text:?}"));
        };
        path.split('/')
            .map(unescape)
            .collect::<Option<Vec<_>>>()
            .map(|tokens| Self { tokens })
            .ok_or_else(|| format!("'~' in a JSON Pointer is followed by 0 or 1: {text:?}"))
    }

    /// Reads a pointer, or a bare field name, which is a pointer of one step.
    ///
    /// # Errors
    /// As [`Pointer::parse`].
    pub fn parse_field(text: &str) -> Result<Self, String> {
        if text.is_empty() || text.starts_with('/') {
            Self::parse(text)
        } else {
            Ok(Self { tokens: vec![text.to_owned()] })
        }
    }

    /// The steps, unescaped.
    #[must_use]
    pub fn tokens(&self) -> &[String] {
        &self.tokens
    }

    /// The last step: the name of the member that it leads to.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.tokens.last().map(String::as_str)
    }

    /// Whether both lead to members of one object.
    #[must_use]
    pub fn is_sibling(&self, other: &Self) -> bool {
        let parent = |pointer: &Self| pointer.tokens.split_last().map(|(_, parent)| parent.to_vec());
        parent(self).is_some() && parent(self) == parent(other)
    }

    /// The member of this name beside the one that this pointer leads to; `None` for the root.
    #[must_use]
    pub(crate) fn sibling(&self, name: &str) -> Option<Self> {
        let (_, parent) = self.tokens.split_last()?;
        Some(Self { tokens: parent.iter().cloned().chain([name.to_owned()]).collect() })
    }

    /// Whether `other` is this place or one below it.
    #[must_use]
    pub fn holds(&self, other: &Self) -> bool {
        other.tokens.starts_with(&self.tokens)
    }

    /// A pointer of the protocol reference, known to be well formed.
    pub(crate) fn known(text: &str) -> Self {
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
    fn what_is_no_pointer_is_refused() {
        for text in ["a", "a/b", "/~", "/~2", "#/a"] {
            assert!(Pointer::parse(text).is_err(), "{text}");
        }
        assert_eq!(Pointer::parse_field("id").unwrap(), Pointer::parse("/id").unwrap());
    }

    #[test]
    fn siblings_hang_on_one_object() {
        let [a, b, c] = ["/x/a", "/x/b", "/a"].map(|text| Pointer::parse(text).unwrap());
        assert!(a.is_sibling(&b));
        assert!(!a.is_sibling(&c));
        assert!(!Pointer::parse("").unwrap().is_sibling(&c));
    }
}
