//! Item classes: the type and shape that a server would give an item when it builds arrays or data
//! frames.
//!
//! A row of integers beside a row of floats becomes floats, and a row of a different length makes
//! the call fail. A neighbour must neither change nor fail a response, so only items of one class
//! share a batch. A class is encoded as bytes that are equal exactly if the classes are equal.
//! Scalars are letters: `i` (integer), `I` (wider than 64 bits), `f`, `s`, `b` (boolean), `B`
//! (base64 bytes), `n`. Lists are runs (`[f4,]`), and objects are keys, each with the class of its
//! value, in the order in which they are written: a data frame takes its columns from its first
//! record, and a model that reads columns by position depends on their order.

use super::{DuplicateKey, Elements, JsonType, Members, Span, is_integer, kind, unescape};

/// Interpretation of the object `{"b64": ..}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Base64Form {
    /// An ordinary object.
    Plain,
    /// A scalar of a type of its own (KServe V1).
    Bytes,
    /// A string (TF Serving, where both forms denote one type).
    Strings,
}

/// Appends the class of the value at `span`.
///
/// # Errors
/// A key occurs twice in an object.
pub(crate) fn write_class(doc: &[u8], span: Span, scalars: Base64Form, out: &mut Vec<u8>) -> Result<(), DuplicateKey> {
    match scalar_class(doc, span) {
        Some(letter) => out.push(letter),
        None if kind(doc, span.start) == JsonType::Array => list(doc, span, scalars, out)?,
        None => object(doc, span, scalars, out)?,
    }
    Ok(())
}

/// Returns the class of a scalar, or `None` for an array or object.
pub(crate) fn scalar_class(doc: &[u8], span: Span) -> Option<u8> {
    match kind(doc, span.start) {
        JsonType::Null => Some(b'n'),
        JsonType::Bool => Some(b'b'),
        JsonType::String => Some(b's'),
        JsonType::Number if !is_integer(span.of(doc)) => Some(b'f'),
        JsonType::Number if is_wide(span.of(doc)) => Some(b'I'),
        JsonType::Number => Some(b'i'),
        JsonType::Array | JsonType::Object => None,
    }
}

/// Returns `true` for an integer that does not fit into a signed 64-bit value. Array libraries give
/// it a different type, and beside a smaller integer both become floating point, so the neighbour
/// would change the response.
fn is_wide(number: &[u8]) -> bool {
    // Integers of up to 18 digits always fit, and nearly all integers are that short.
    number.len() > 18 && std::str::from_utf8(number).is_ok_and(|digits| digits.parse::<i64>().is_err())
}

/// Appends the class of an object, made of its sorted keys alone, for routes that carry text.
///
/// # Errors
/// A key occurs twice.
pub(crate) fn write_keys_class(doc: &[u8], span: Span, out: &mut Vec<u8>) -> Result<(), DuplicateKey> {
    let mut members = read_members(doc, span)?;
    members.sort_by(|a, b| a.0.cmp(&b.0));
    out.push(b'{');
    for (key, _) in members {
        put_key(&key, out);
    }
    out.push(b'}');
    Ok(())
}

/// Appends the layout of a row: a letter for its type, and the keys of an object in document order.
/// Numbers, booleans and null have the same layout.
pub(crate) fn write_layout(doc: &[u8], span: Span, out: &mut Vec<u8>) {
    match kind(doc, span.start) {
        JsonType::Object => {
            out.push(b'{');
            for member in Members::new(doc, span) {
                put_key(&unescape(member.key.inner_bytes(doc)), out);
            }
        }
        JsonType::Array => out.push(b'['),
        JsonType::String => out.push(b's'),
        JsonType::Number | JsonType::Bool | JsonType::Null => out.push(b'v'),
    }
}

fn list(doc: &[u8], span: Span, scalars: Base64Form, out: &mut Vec<u8>) -> Result<(), DuplicateKey> {
    out.push(b'[');
    let mut run = out.len()..out.len();
    let mut count = 0_u64;
    for element in Elements::new(doc, span) {
        // Fast path: the elements of most arrays are numbers of one class.
        if count > 0 && run.len() == 1 && scalar_class(doc, element) == out.get(run.start).copied() {
            count += 1;
            continue;
        }
        let start = out.len();
        write_class(doc, element, scalars, out)?;
        if count > 0 && out.get(run.clone()) == out.get(start..) {
            out.truncate(start);
            count += 1;
            continue;
        }
        let len = out.len() - start;
        if count > 0 {
            // The length of the previous run belongs in front of the class that was just written.
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

fn object(doc: &[u8], span: Span, scalars: Base64Form, out: &mut Vec<u8>) -> Result<(), DuplicateKey> {
    let members = read_members(doc, span)?;
    if scalars != Base64Form::Plain
        && let [(key, value)] = members.as_slice()
        && **key == *b"b64"
        && kind(doc, value.start) == JsonType::String
    {
        out.push(if scalars == Base64Form::Strings { b's' } else { b'B' });
        return Ok(());
    }
    out.push(b'{');
    for (key, value) in members {
        put_key(&key, out);
        write_class(doc, value, scalars, out)?;
    }
    out.push(b'}');
    Ok(())
}

type KeyedValue<'a> = (std::borrow::Cow<'a, [u8]>, Span);

/// Returns the members of an object, in document order.
///
/// # Errors
/// A key occurs twice.
fn read_members(doc: &[u8], span: Span) -> Result<Vec<KeyedValue<'_>>, DuplicateKey> {
    let members: Vec<KeyedValue<'_>> =
        Members::new(doc, span).map(|member| (unescape(member.key.inner_bytes(doc)), member.value)).collect();
    let mut keys: Vec<&[u8]> = members.iter().map(|(key, _)| &**key).collect();
    keys.sort_unstable();
    if keys.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(DuplicateKey);
    }
    Ok(members)
}

fn put_key(key: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(format!("{}:", key.len()).as_bytes());
    out.extend_from_slice(key);
}
