//! The class of an item (G7): what a server that builds arrays or frames would make of it.
//!
//! A row of integers beside a row of floats becomes floats, a row of another length fails the call: a neighbour must not change or fail an
//! answer, so only items of one class share a batch. A class is written as bytes that are equal exactly when the classes are: `i f s b n`, lists
//! as runs (`[f4,]`), objects as sorted keys with the class of each.

use super::{Ambiguous, Elements, Kind, Members, Span, is_integer, kind, unescape};

/// How `{"b64": ..}` is to be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scalars {
    /// An object like any other.
    Plain,
    /// A scalar of its own kind (KServe V1).
    Bytes,
    /// A string (TF Serving, where both spell one type).
    Strings,
}

/// Appends the class of the value at `span`.
///
/// # Errors
/// A key stands twice in an object.
pub(crate) fn class(doc: &[u8], span: Span, scalars: Scalars, out: &mut Vec<u8>) -> Result<(), Ambiguous> {
    match letter(doc, span) {
        Some(letter) => out.push(letter),
        None if kind(doc, span.start) == Kind::Array => list(doc, span, scalars, out)?,
        None => object(doc, span, scalars, out)?,
    }
    Ok(())
}

/// The class of a scalar.
fn letter(doc: &[u8], span: Span) -> Option<u8> {
    match kind(doc, span.start) {
        Kind::Null => Some(b'n'),
        Kind::Bool => Some(b'b'),
        Kind::String => Some(b's'),
        Kind::Number if !is_integer(span.of(doc)) => Some(b'f'),
        Kind::Number if is_wide(span.of(doc)) => Some(b'I'),
        Kind::Number => Some(b'i'),
        Kind::Array | Kind::Object => None,
    }
}

/// An integer that 64 signed bits do not hold. Array libraries give it another type, and beside a smaller one both become floating point: the neighbour
/// would change the answer.
fn is_wide(number: &[u8]) -> bool {
    // 18 digits always fit, and are what nearly every integer has.
    number.len() > 18 && std::str::from_utf8(number).is_ok_and(|digits| digits.parse::<i64>().is_err())
}

/// Appends the class of an object by its keys alone, for routes of text.
///
/// # Errors
/// A key stands twice.
pub(crate) fn keys_class(doc: &[u8], span: Span, out: &mut Vec<u8>) -> Result<(), Ambiguous> {
    out.push(b'{');
    for (key, _) in sorted(doc, span)? {
        put_key(&key, out);
    }
    out.push(b'}');
    Ok(())
}

fn list(doc: &[u8], span: Span, scalars: Scalars, out: &mut Vec<u8>) -> Result<(), Ambiguous> {
    out.push(b'[');
    let mut run = out.len()..out.len();
    let mut count = 0_u64;
    for element in Elements::new(doc, span) {
        // Rows of numbers are what most bodies are made of.
        if count > 0 && run.len() == 1 && letter(doc, element) == out.get(run.start).copied() {
            count += 1;
            continue;
        }
        let start = out.len();
        class(doc, element, scalars, out)?;
        if count > 0 && out.get(run.clone()) == out.get(start..) {
            out.truncate(start);
            count += 1;
            continue;
        }
        let len = out.len() - start;
        if count > 0 {
            // The run's length belongs before the class just written.
            out.extend_from_slice(format!("{count},").as_bytes());
            if let Some(tail) = out.get_mut(start..) {
                tail.rotate_left(len);
            }
        }
        run = out.len() - len..out.len();
        count = 1;
    }
    if count > 0 {
        out.extend_from_slice(format!("{count},").as_bytes());
    }
    out.push(b']');
    Ok(())
}

fn object(doc: &[u8], span: Span, scalars: Scalars, out: &mut Vec<u8>) -> Result<(), Ambiguous> {
    let members = sorted(doc, span)?;
    if scalars != Scalars::Plain
        && let [(key, value)] = members.as_slice()
        && **key == *b"b64"
        && kind(doc, value.start) == Kind::String
    {
        out.push(if scalars == Scalars::Strings { b's' } else { b'B' });
        return Ok(());
    }
    out.push(b'{');
    for (key, value) in members {
        put_key(&key, out);
        class(doc, value, scalars, out)?;
    }
    out.push(b'}');
    Ok(())
}

type Keyed<'a> = (std::borrow::Cow<'a, [u8]>, Span);

fn sorted(doc: &[u8], span: Span) -> Result<Vec<Keyed<'_>>, Ambiguous> {
    let mut members: Vec<_> =
        Members::new(doc, span).map(|member| (unescape(member.key.inside(doc)), member.value)).collect();
    members.sort_by(|a, b| a.0.cmp(&b.0));
    if members.windows(2).any(|pair| pair[0].0 == pair[1].0) {
        return Err(Ambiguous);
    }
    Ok(members)
}

fn put_key(key: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(format!("{}:", key.len()).as_bytes());
    out.extend_from_slice(key);
}
