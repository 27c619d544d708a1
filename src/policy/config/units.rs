//! Durations, sizes and shares: conversion between text and exact numbers.
//!
//! Nothing is rounded: a text that the unit cannot represent exactly is rejected. Durations and
//! sizes are integers, so `1.5s` is written as `1500ms`.

use std::time::Duration;

/// Units of a duration, largest first, in nanoseconds.
const TIME: [(&str, u64); 5] =
    [("h", 3_600_000_000_000), ("m", 60_000_000_000), ("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000)];

/// Units of a size, largest first, in bytes.
const SIZE: [(&str, u64); 3] = [("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)];

/// Maximum length of such a text. Five numbers with their units are half of it.
pub(super) const CHARS_MAX: usize = 64;

/// A share of a whole, exact to a ten-thousandth of a percent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Share {
    ppm: u32,
}

/// Parses a duration such as `5ms` or `1m30s`: numbers with the units `h m s ms us`, each at most
/// once, largest first. `0` needs no unit.
pub fn parse_duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut rest = text;
    let mut units = TIME.iter();
    let mut total: u64 = 0;
    loop {
        let (number, after) = leading_number(rest)?;
        let letters = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, after) = after.split_at_checked(letters)?;
        // The iterator only advances, so a unit cannot occur twice or after a smaller one.
        let (_, nanos) = units.find(|(name, _)| *name == unit)?;
        total = total.checked_add(number.checked_mul(*nanos)?)?;
        if after.is_empty() {
            return Some(Duration::from_nanos(total));
        }
        rest = after;
    }
}

/// Formats a duration in the largest unit that represents it exactly.
#[must_use]
pub fn format_duration(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    if nanos == 0 {
        return "0s".to_owned();
    }
    TIME.iter()
        .find(|(_, unit)| nanos.is_multiple_of(u128::from(*unit)))
        .map_or_else(|| format!("{nanos}ns"), |(name, unit)| format!("{}{name}", nanos / u128::from(*unit)))
}

/// Parses a size such as `64Ki`, or plain bytes.
pub fn parse_size(text: &str) -> Option<u64> {
    let (number, unit) = leading_number(text)?;
    if unit.is_empty() {
        return Some(number);
    }
    let (_, bytes) = SIZE.iter().find(|(name, _)| *name == unit)?;
    number.checked_mul(*bytes)
}

/// Formats a size in the largest unit that represents it exactly.
#[must_use]
pub fn format_size(bytes: u64) -> String {
    SIZE.iter()
        .find(|(_, unit)| bytes > 0 && bytes.is_multiple_of(*unit))
        .map_or_else(|| bytes.to_string(), |(name, unit)| format!("{}{name}", bytes / unit))
}

/// Parses a share such as `0.1%`: at most four decimals, from `0%` to `100%`.
pub fn parse_share(text: &str) -> Option<Share> {
    let number = text.strip_suffix('%')?;
    let (whole, decimals) = number.split_once('.').map_or((number, None), |(whole, decimals)| (whole, Some(decimals)));
    let (whole, "") = leading_number(whole)? else { return None };
    let decimals = match decimals {
        None => 0,
        Some(text) if text.is_empty() || text.len() > 4 => return None,
        Some(text) => {
            let (number, "") = leading_number(text)? else { return None };
            number * 10_u64.pow(4 - u32::try_from(text.len()).ok()?)
        }
    };
    let ppm = whole.checked_mul(10_000)?.checked_add(decimals)?;
    (ppm <= 1_000_000).then_some(Share { ppm: u32::try_from(ppm).ok()? })
}

/// Splits a text into the decimal number at its beginning and the rest.
fn leading_number(text: &str) -> Option<(u64, &str)> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, rest) = text.split_at_checked(digits)?;
    Some((number.parse().ok()?, rest))
}

// === impl Share ===

impl Share {
    /// The share `0%`.
    pub const ZERO: Self = Self { ppm: 0 };

    /// Creates a share from millionths. More than a million is clamped to the whole.
    #[must_use]
    pub fn from_ppm(ppm: u32) -> Self {
        Self { ppm: ppm.min(1_000_000) }
    }

    /// Returns the share in millionths.
    #[must_use]
    pub const fn ppm(self) -> u32 {
        self.ppm
    }

    /// Returns the share as a fraction of one.
    #[must_use]
    pub fn fraction(self) -> f64 {
        f64::from(self.ppm) / 1e6
    }
}

impl std::fmt::Display for Share {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (whole, decimals) = (self.ppm / 10_000, self.ppm % 10_000);
        if decimals == 0 {
            return write!(f, "{whole}%");
        }
        write!(f, "{whole}.{}%", format!("{decimals:04}").trim_end_matches('0'))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_are_exact_and_need_a_unit() {
        for (text, micros) in
            [("0", 0), ("0s", 0), ("50us", 50), ("5ms", 5_000), ("1m30s", 90_000_000), ("1h", 3_600_000_000)]
        {
            assert_eq!(parse_duration(text), Some(Duration::from_micros(micros)), "{text}");
        }
        for text in
            ["", "5", "ms", "1.5s", "-1s", "5 ms", "5MS", "1s1m", "1s1s", "5sec", "99999999999999999999h", "1hé", "+1s"]
        {
            assert_eq!(parse_duration(text), None, "{text}");
        }
    }

    #[test]
    fn sizes_know_binary_units_only() {
        for (text, bytes) in [("0", 0), ("1000", 1000), ("64Ki", 65_536), ("8Mi", 8 << 20), ("2Gi", 2 << 30)] {
            assert_eq!(parse_size(text), Some(bytes), "{text}");
        }
        for text in ["", "Ki", "1K", "1k", "1KiB", "1.5Mi", "-1", "1 Mi", "99999999999999Gi"] {
            assert_eq!(parse_size(text), None, "{text}");
        }
    }

    #[test]
    fn shares_are_percentages_between_nothing_and_all() {
        for (text, ppm) in [("0%", 0), ("0.1%", 1_000), ("0.0001%", 1), ("12.5%", 125_000), ("100%", 1_000_000)] {
            assert_eq!(parse_share(text), Some(Share { ppm }), "{text}");
        }
        for text in ["", "%", "0.1", "100.1%", "1.%", ".5%", "0.00001%", "-1%", "1e2%", "1 %"] {
            assert_eq!(parse_share(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn durations_sizes_and_shares_round_trip(n in 0..=u64::MAX / 1000, ppm in 0..=1_000_000_u32) {
            let duration = Duration::from_micros(n / 1000);
            prop_assert_eq!(parse_duration(&format_duration(duration)), Some(duration));
            prop_assert_eq!(parse_size(&format_size(n)), Some(n));
            let share = Share { ppm };
            prop_assert_eq!(parse_share(&share.to_string()), Some(share));
        }

        #[test]
        fn no_text_makes_the_parsers_panic(text in "\\PC*") {
            parse_duration(&text);
            parse_size(&text);
            parse_share(&text);
        }
    }
}
