//! Parses a curve from text: its name and its terms in milliseconds, as in `affine:4ms+0.25ms`.
//!
//! The forms are `affine:A+B`, `padded:A+B+C`, `ragged:A+B+C`, `pow2:A+B`, `tile8:A+B` and
//! `knee16:A+B+C`. The unit is `ms` or `us`, and `ms` if it is omitted.

use std::str::FromStr;

use super::CostCurve;

/// Accepted forms, for error messages.
const KNOWN: &str = "affine:4ms+0.25ms, pow2:3ms+0.4ms, tile8:2ms+0.5ms, knee16:5ms+0.02ms+0.6ms, padded:4ms+0.05ms+0.002ms or \
                     ragged:4ms+0.05ms+0.002ms";
/// Maximum of a term: one minute.
const MILLIS_MAX: f64 = 60_000.0;
/// Maximum width of a wave and maximum position of a knee.
const ITEMS_MAX: u32 = 4096;

impl FromStr for CostCurve {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let unknown = || format!("{text:?} is not a curve; write {KNOWN}");
        let (name, terms) = text.split_once(':').ok_or_else(unknown)?;
        let letters = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let digits = name.strip_prefix(letters).unwrap_or_default();
        let items = digits.parse::<u32>().ok().filter(|items| (1..=ITEMS_MAX).contains(items));
        let terms = terms.split('+').map(millis).collect::<Result<Vec<f64>, String>>()?;
        let curve = match (letters, items, terms.as_slice()) {
            ("affine", None, &[a, b]) => Self::Affine { a, b },
            ("padded", None, &[a, b, c]) => Self::Padded { a, b, c },
            ("ragged", None, &[a, b, c]) => Self::Ragged { a, b, c },
            ("pow", Some(2), &[a, b]) => Self::Pow2 { a, b },
            ("tile", Some(width), &[a, b]) => Self::Tile { a, b, width },
            ("knee", Some(knee), &[a, b, beyond]) => Self::Knee { a, b, knee, beyond },
            _ => return Err(unknown()),
        };
        if curve.millis_of(1) > 0.0 { Ok(curve) } else { Err(format!("{text:?} takes no time at all")) }
    }
}

fn millis(term: &str) -> Result<f64, String> {
    let term = term.trim();
    let (number, factor) = match (term.strip_suffix("us"), term.strip_suffix("ms")) {
        (Some(number), _) => (number, 1e-3),
        (None, Some(number)) => (number, 1.0),
        (None, None) => (term, 1.0),
    };
    let millis = number.trim().parse::<f64>().map_err(|_| format!("{term:?} is not a time in ms or us"))? * factor;
    if (0.0..=MILLIS_MAX).contains(&millis) {
        Ok(millis)
    } else {
        Err(format!("{term:?} is not a time from 0 to {MILLIS_MAX} ms"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_curve_can_be_written() {
        for (text, curve) in [
            ("affine:4ms+0.25ms", CostCurve::Affine { a: 4.0, b: 0.25 }),
            ("affine: 4 + 250us", CostCurve::Affine { a: 4.0, b: 0.25 }),
            ("pow2:3ms+0.4ms", CostCurve::Pow2 { a: 3.0, b: 0.4 }),
            ("tile8:2+.5", CostCurve::Tile { a: 2.0, b: 0.5, width: 8 }),
            ("knee16:5+.02+.6", CostCurve::Knee { a: 5.0, b: 0.02, knee: 16, beyond: 0.6 }),
            ("padded:4+.05+.002", CostCurve::Padded { a: 4.0, b: 0.05, c: 0.002 }),
            ("ragged:4+.05+.002", CostCurve::Ragged { a: 4.0, b: 0.05, c: 0.002 }),
        ] {
            assert_eq!(text.parse(), Ok(curve), "{text}");
        }
    }

    #[test]
    fn invalid_curve_is_rejected_with_examples() {
        for text in [
            "",
            "affine",
            "affine:4",
            "affine:4+x",
            "pow3:1+1",
            "tile:1+1",
            "tile0:1+1",
            "affine:0+0",
            "affine:-1+1",
            "affine:1e9+1",
        ] {
            let error = text.parse::<CostCurve>().unwrap_err();
            assert!(error.contains("is not a") || error.contains("time"), "{text}: {error}");
        }
    }
}
