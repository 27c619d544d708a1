//! The forms of header values that consist of numbers: a count, a duration, a time, a quota.
//!
//! A value in another form, such as numbers with other separators, may quote a row of an input.

/// Maximum length of a measure in bytes, and of any but a time in digits.
const MEASURE_MAX: usize = 32;
const DIGITS_MAX: usize = 14;
/// Maximum number of decimal places of the seconds in a time: nanoseconds.
const TIME_PLACES_MAX: usize = 9;
/// Units of a duration in their order in it: `6m0s`, `1.5ms`.
const UNITS: [&[u8]; 7] = [b"d", b"h", b"m", b"s", b"ms", b"us", b"ns"];
/// Form of a time of day with its date (ISO 8601), where each zero stands for a digit.
const ISO_TIME: &[u8] = b"0000-00-00T00:00:00";
/// The same for a date alone, such as the version of an API.
const ISO_DATE: &[u8] = b"0000-00-00";

/// Returns `true` for a number, a duration such as `6m0s`, a time with its date, or the quota of a
/// rate limit with its windows, such as `100, 100;w=60`. Numbers with other separators may quote a
/// row of an input.
pub(super) fn is_measure(value: &[u8]) -> bool {
    let is_short = || value.iter().filter(|byte| byte.is_ascii_digit()).count() <= DIGITS_MAX;
    value.len() <= MEASURE_MAX
        && (is_iso_time(value) || is_short() && (is_number(value) || is_duration(value) || is_quota(value)))
}

/// Splits the digits at the start of a value from the rest. `None` if there are none.
fn split_digits(value: &[u8]) -> Option<(&[u8], &[u8])> {
    let count = value.iter().take_while(|byte| byte.is_ascii_digit()).count();
    value.split_at_checked(count).filter(|(digits, _)| !digits.is_empty())
}

/// Returns the rest of a value after the decimal number at its start.
fn after_number(value: &[u8]) -> Option<&[u8]> {
    let (_, rest) = split_digits(value)?;
    Some(rest.strip_prefix(b".").and_then(split_digits).map_or(rest, |(_, rest)| rest))
}

fn is_number(value: &[u8]) -> bool {
    after_number(value.strip_prefix(b"-").unwrap_or(value)).is_some_and(<[u8]>::is_empty)
}

/// Returns `true` for numbers that are each followed by a unit, a smaller one each time.
fn is_duration(mut value: &[u8]) -> bool {
    let mut units = UNITS.iter();
    while let Some(rest) = after_number(value) {
        let letters = rest.iter().take_while(|byte| byte.is_ascii_alphabetic()).count();
        let Some((unit, rest)) = rest.split_at_checked(letters) else { return false };
        if !units.any(|smaller| *smaller == unit) {
            return false;
        }
        if rest.is_empty() {
            return true;
        }
        value = rest;
    }
    false
}

fn is_iso_time(value: &[u8]) -> bool {
    if has_form(value, ISO_DATE) {
        return true;
    }
    let Some((time, rest)) = value.split_at_checked(ISO_TIME.len()) else { return false };
    let places = rest.strip_prefix(b".").and_then(split_digits).filter(|(places, _)| places.len() <= TIME_PLACES_MAX);
    let rest = places.map_or(rest, |(_, rest)| rest);
    has_form(time, ISO_TIME) && (rest == b"Z" || has_form(rest, b"+00:00") || has_form(rest, b"-00:00"))
}

/// Returns `true` for a quota, and quotas with the window that they are for.
fn is_quota(value: &[u8]) -> bool {
    value.split(|byte| *byte == b',').enumerate().all(|(place, quota)| {
        let Some((_, rest)) = split_digits(quota.trim_ascii_start()) else { return false };
        let window = rest.strip_prefix(b";w=").and_then(split_digits);
        window.map_or(place == 0 && rest.is_empty(), |(_, rest)| rest.is_empty())
    })
}

/// Returns `true` if a text has a form in which each zero stands for a digit.
fn has_form(text: &[u8], form: &[u8]) -> bool {
    let fits = |(form, byte): (&u8, &u8)| if *form == b'0' { byte.is_ascii_digit() } else { form == byte };
    text.len() == form.len() && form.iter().zip(text).all(fits)
}

/// Returns `true` for the format of an HTTP date: `Tue, 24 Nov 2026 10:00:00 GMT`.
pub(super) fn is_date(value: &[u8]) -> bool {
    const DAYS: [&[u8]; 7] = [b"Mon", b"Tue", b"Wed", b"Thu", b"Fri", b"Sat", b"Sun"];
    const MONTHS: [&[u8]; 12] =
        [b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec"];
    let part = |from, to| value.get(from..to).unwrap_or_default();
    value.len() == 29
        && DAYS.contains(&part(0, 3))
        && has_form(part(3, 8), b", 00 ")
        && MONTHS.contains(&part(8, 11))
        && has_form(part(11, 29), b" 0000 00:00:00 GMT")
}
