//! Kubernetes quantities, such as `50m` or `128Mi`, which are compared and subtracted in
//! thousandths.
//!
//! The grammar is that of `k8s.io/apimachinery/pkg/api/resource`. Fractions of a thousandth are
//! rounded up, as they are there. The module exists because the kube crates represent quantities as
//! text.

/// Value of a quantity in thousandths.
pub type Milli = i128;

/// Range of a resource request or limit of a sidecar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuantityRange {
    /// Minimum quantity.
    pub min: &'static str,
    /// Maximum quantity.
    pub max: &'static str,
    such_as: &'static str,
}

/// Range of CPU requests, in cores. A larger request is a typing error that would keep the pod off
/// every node.
pub const CPU: QuantityRange = QuantityRange { min: "1m", max: "64", such_as: "50m" };
/// Range of memory requests and limits. With less memory the sidecar cannot start, and it cannot
/// use more.
pub const MEMORY: QuantityRange = QuantityRange { min: "16Mi", max: "64Gi", such_as: "128Mi" };

/// Maximum value. Larger ones are clamped to it, as in Kubernetes, so the sum of the quantities in
/// a pod cannot overflow.
const VALUE_MAX: Milli = (i64::MAX as Milli) * 1000;

// === impl QuantityRange ===

impl QuantityRange {
    /// Returns `true` if a text is a quantity within the range.
    #[must_use]
    pub fn contains(&self, text: &str) -> bool {
        // The exact fraction is compared: rounded up, a value below the minimum would equal the
        // minimum.
        let Some((value, of)) = parse_fraction(text) else { return false };
        let ends = parse(self.min).zip(parse(self.max));
        ends.is_some_and(|(min, max)| min.saturating_mul(of) <= value && value <= max.saturating_mul(of))
    }

    /// Describes the accepted values.
    #[must_use]
    pub fn allowed(&self) -> String {
        format!("a quantity such as {}, from {} to {}", self.such_as, self.min, self.max)
    }
}

/// Parses a quantity; `None` if the text is not a quantity.
#[must_use]
pub fn parse(text: &str) -> Option<Milli> {
    let (value, of) = parse_fraction(text)?;
    let rounded_up = value.abs().checked_add(of - 1).map_or(VALUE_MAX, |value| (value / of).min(VALUE_MAX));
    Some(if value < 0 { -rounded_up } else { rounded_up })
}

/// Returns a quantity times a thousand as a fraction. A value that is too large saturates.
fn parse_fraction(text: &str) -> Option<(i128, i128)> {
    let split = text.find(|c: char| !(c.is_ascii_digit() || matches!(c, '+' | '-' | '.'))).unwrap_or(text.len());
    let (number, suffix) = text.split_at_checked(split)?;
    let (multiplier, divisor) = parse_suffix(suffix)?;
    let negative = number.starts_with('-');
    let number = number.strip_prefix(['+', '-']).unwrap_or(number);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    // At most 18 digits before and after the point: no quantity of a pod has more, and nothing
    // below overflows.
    let digits = |part: &str| part.len() <= 18 && part.bytes().all(|b| b.is_ascii_digit());
    if (whole.is_empty() && fraction.is_empty()) || !digits(whole) || !digits(fraction) {
        return None;
    }
    let places = u32::try_from(fraction.len()).ok()?;
    let all: i128 = format!("0{whole}{fraction}").parse().ok()?;
    let divisor = divisor.checked_mul(10_i128.checked_pow(places)?)?;
    let dividend = all.checked_mul(multiplier).and_then(|value| value.checked_mul(1000));
    let (value, of) = dividend.map_or((i128::MAX, 1), |dividend| (dividend, divisor));
    Some((if negative { -value } else { value }, of))
}

/// Returns the multiplier and the divisor of a suffix.
fn parse_suffix(suffix: &str) -> Option<(i128, i128)> {
    let power = |base: i128, exponent: u32| base.checked_pow(exponent);
    Some(match suffix {
        "" => (1, 1),
        "n" => (1, 1_000_000_000),
        "u" => (1, 1_000_000),
        "m" => (1, 1000),
        "k" => (1000, 1),
        "M" => (power(1000, 2)?, 1),
        "G" => (power(1000, 3)?, 1),
        "T" => (power(1000, 4)?, 1),
        "P" => (power(1000, 5)?, 1),
        "E" => (power(1000, 6)?, 1),
        "Ki" => (1024, 1),
        "Mi" => (power(1024, 2)?, 1),
        "Gi" => (power(1024, 3)?, 1),
        "Ti" => (power(1024, 4)?, 1),
        "Pi" => (power(1024, 5)?, 1),
        "Ei" => (power(1024, 6)?, 1),
        _ => {
            let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
            let power = 10_i128.checked_pow(exponent.unsigned_abs()).filter(|_| exponent.abs() <= 18)?;
            if exponent < 0 { (1, power) } else { (power, 1) }
        }
    })
}

/// Formats a CPU quantity.
#[must_use]
pub fn format_cpu(milli: Milli) -> String {
    if milli % 1000 == 0 { (milli / 1000).to_string() } else { format!("{milli}m") }
}

/// Formats a memory quantity in whole bytes, with the largest binary suffix that divides it.
#[must_use]
pub fn format_memory(milli: Milli) -> String {
    let bytes = milli / 1000;
    for (suffix, size) in [("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)] {
        if bytes > 0 && bytes % size == 0 {
            return format!("{}{suffix}", bytes / size);
        }
    }
    bytes.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_as_kubernetes_reads_them() {
        let same = |a: &str, b: &str| assert_eq!(parse(a).unwrap(), parse(b).unwrap(), "{a} is {b}");
        same("0.05", "50m");
        same("1", "1000m");
        same("1e3", "1k");
        same("1E-3", "1m");
        same("128Mi", "134217728");
        same("1.5Gi", "1536Mi");
        same(".5", "500m");
        same("2.", "2");
        // Rounded up to a whole thousandth.
        same("1n", "1m");
        assert!(parse("100M").unwrap() < parse("100Mi").unwrap());
        assert_eq!(parse("-1").unwrap(), -1000);
    }

    #[test]
    fn a_quantity_range_is_bounded_at_both_ends() {
        let held =
            |amount: &QuantityRange, texts: &[&str]| texts.iter().map(|text| amount.contains(text)).collect::<Vec<_>>();
        assert_eq!(held(&CPU, &["0", "1m", "0.5", "64", "64001m", "500M"]), [false, true, true, true, false, false]);
        assert_eq!(
            held(&MEMORY, &["0", "1Ki", "16Mi", "64Gi", "1Ti", "128"]),
            [false, false, true, true, false, false]
        );
        assert_eq!(held(&CPU, &["1n", "500u", "0.0005", "1000u", "64.0001"]), [false, false, false, true, false]);
        assert_eq!(CPU.allowed(), "a quantity such as 50m, from 1m to 64");
    }

    #[test]
    fn an_invalid_quantity_is_rejected() {
        for text in ["", "m", "1x", "1 Mi", "0x10", "1mi", "--1", "1.2.3", "e3", "9999999999999999999", "1e99", "½"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_quantity_beyond_the_range_of_kubernetes_saturates() {
        let most = VALUE_MAX;
        for text in ["999999999999999999Ei", "999999999999999999e18", "999999999999999999.999999999999999999E"] {
            assert_eq!(parse(text), Some(most), "{text}");
        }
        assert_eq!(parse("-999999999999999999Ei"), Some(-most));
    }

    #[test]
    fn quantities_are_formatted_in_their_shortest_form() {
        let rewritten = |text: &str, write: fn(Milli) -> String| write(parse(text).unwrap());
        assert_eq!(rewritten("0.05", format_cpu), "50m");
        assert_eq!(rewritten("2000m", format_cpu), "2");
        assert_eq!(rewritten("131072Ki", format_memory), "128Mi");
        assert_eq!(rewritten("1000", format_memory), "1000");
    }
}
