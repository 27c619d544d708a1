//! Interpretation of plain scalars as `kubectl` does it: the rules of go-yaml v2 (`resolve.go`),
//! which are those of YAML 1.1 without base-60 numbers.

use serde_json::{Number, Value};

/// Returns the value of a plain scalar.
///
/// # Errors
/// The scalar is a number that JSON cannot represent.
pub(super) fn resolve(text: &str) -> Result<Value, String> {
    Ok(to_json(interpret(text)?))
}

/// Converts a value as `kubectl` does. It converts YAML to JSON, and Go writes a float without a
/// fraction as an integer: `8e3` is the port 8000.
fn to_json(value: Value) -> Value {
    let whole = value.as_f64().filter(|float| value.is_f64() && float.fract() == 0.0 && float.abs() < WHOLE_MAX);
    whole.and_then(|float| format!("{float:.0}").parse::<i64>().ok()).map_or(value, Value::from)
}

/// 2^53, below which every whole number has an exact representation as `f64`.
const WHOLE_MAX: f64 = 9_007_199_254_740_992.0;

/// Interprets a plain scalar as go-yaml does.
fn interpret(text: &str) -> Result<Value, String> {
    Ok(match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => Value::Bool(true),
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => Value::Bool(false),
        ".nan" | ".NaN" | ".NAN" => return Err(format!("JSON cannot represent the number {text}")),
        _ if is_infinite(text) => return Err(format!("JSON cannot represent the number {text}")),
        _ => number(text).map_or_else(|| Value::String(text.to_owned()), Value::Number),
    })
}

/// Returns the value of a scalar with a tag of the core schema.
///
/// # Errors
/// The text is not a value of the tag.
pub(super) fn resolve_tagged(tag: &str, text: &str) -> Result<Value, String> {
    let value = interpret(text)?;
    let fits = match tag {
        "str" => return Ok(Value::String(text.to_owned())),
        "null" => value.is_null(),
        "bool" => value.is_boolean(),
        "int" => value.is_i64() || value.is_u64(),
        "float" => value.is_number(),
        _ => false,
    };
    if fits { Ok(to_json(value)) } else { Err(format!("{text} is not a valid {tag}")) }
}

/// Returns a plain scalar as a key. JSON has only text keys.
///
/// # Errors
/// The key would be a number with a fraction, or null.
pub(super) fn resolve_key(text: &str) -> Result<String, String> {
    match interpret(text)? {
        Value::String(text) => Ok(text),
        Value::Bool(word) => Ok(word.to_string()),
        Value::Number(number) if !number.is_f64() => Ok(number.to_string()),
        Value::Null => Err(format!("a key is empty; if {text:?} is meant, quote it")),
        _ => Err(format!("{text:?} without quotes cannot be a key")),
    }
}

fn is_infinite(text: &str) -> bool {
    matches!(text.strip_prefix(['+', '-']).unwrap_or(text), ".inf" | ".Inf" | ".INF")
}

fn number(text: &str) -> Option<Number> {
    if text.starts_with('.') {
        return float(text);
    }
    if !text.starts_with(|first: char| first.is_ascii_digit() || matches!(first, '+' | '-')) {
        return None;
    }
    let plain = text.replace('_', "");
    integer(&plain).or_else(|| is_float(&plain).then(|| float(&plain)).flatten())
}

/// Parses an integer with the prefixes that Go accepts (`strconv.ParseInt` with base 0).
fn integer(text: &str) -> Option<Number> {
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, text.get(1..)?),
        b'+' => (false, text.get(1..)?),
        _ => (false, text),
    };
    let (radix, digits) = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => (16, digits.get(2..)?),
        [b'0', b'o' | b'O', ..] => (8, digits.get(2..)?),
        [b'0', b'b' | b'B', ..] => (2, digits.get(2..)?),
        [b'0', _, ..] => (8, digits.get(1..)?),
        _ => (10, digits),
    };
    if !digits.starts_with(|first: char| first.is_ascii_alphanumeric()) {
        return None;
    }
    if negative {
        // The negative range has one value more than the positive range.
        let value = i128::from_str_radix(digits, radix).ok()?.checked_neg()?;
        return i64::try_from(value).ok().map(Number::from);
    }
    u64::from_str_radix(digits, radix).ok().map(Number::from)
}

/// Returns `true` if the text matches `^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$`.
fn is_float(text: &str) -> bool {
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let text = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (text, None),
    };
    let exponent_fits = exponent.is_none_or(|exponent| digits(exponent.strip_prefix(['+', '-']).unwrap_or(exponent)));
    exponent_fits
        && match mantissa.split_once('.') {
            Some(("", fraction)) => digits(fraction),
            Some((whole, fraction)) => digits(whole) && (fraction.is_empty() || digits(fraction)),
            None => digits(mantissa),
        }
}

fn float(text: &str) -> Option<Number> {
    if !is_float(text) {
        return None;
    }
    text.parse::<f64>().ok().and_then(Number::from_f64)
}
