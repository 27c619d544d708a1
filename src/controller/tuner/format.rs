//! Formatting of durations and shares in messages, with at most three digits.

use std::time::Duration;

/// Formats a duration with at most three digits: `250us`, `14ms`, `1.5s`, `30s`, `5m`.
#[must_use]
pub fn format_rounded(time: Duration) -> String {
    let micros = time.as_micros();
    let tenths = |value: u128, unit: u128| {
        let tenths = (value * 10 + unit / 2) / unit;
        if tenths.is_multiple_of(10) { format!("{}", tenths / 10) } else { format!("{}.{}", tenths / 10, tenths % 10) }
    };
    match micros {
        0 => "0ms".to_owned(),
        1..1_000 => format!("{micros}us"),
        1_000..10_000 => format!("{}ms", tenths(micros, 1_000)),
        10_000..1_000_000 => format!("{}ms", (micros + 500) / 1_000),
        1_000_000..120_000_000 => format!("{}s", tenths(micros, 1_000_000)),
        _ => format!("{}m", (micros + 30_000_000) / 60_000_000),
    }
}

/// Formats a part of a whole in percent: `0.4%`, `12%`.
#[must_use]
pub fn format_share(part: u64, whole: u64) -> String {
    let permille = (u128::from(part) * 1000 + u128::from(whole) / 2).checked_div(u128::from(whole)).unwrap_or(0);
    if permille >= 100 || permille.is_multiple_of(10) {
        format!("{}%", (permille + 5) / 10)
    } else {
        format!("{}.{}%", permille / 10, permille % 10)
    }
}

/// Formats thousandths as percent.
pub(super) fn percent(permille: u32) -> String {
    format_share(u64::from(permille), 1000)
}

/// Formats a part of the SLO, given in thousandths: as a duration if the SLO is known, as a share
/// otherwise.
pub(super) fn shift(permille: u32, slo: Option<Duration>) -> String {
    match slo {
        Some(slo) => format_rounded(slo * permille / 1000),
        None => format!("{} of the slo", percent(permille)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_three_digits_at_most() {
        let of = |micros| format_rounded(Duration::from_micros(micros));
        let formatted = [0, 250, 1_000, 1_500, 14_400, 212_345, 999_499, 1_500_000, 30_000_000, 300_000_000].map(of);
        assert_eq!(formatted, ["0ms", "250us", "1ms", "1.5ms", "14ms", "212ms", "999ms", "1.5s", "30s", "5m"]);
    }

    #[test]
    fn shares_have_at_most_two_significant_digits() {
        assert_eq!(
            [format_share(4, 1000), format_share(41, 1000), format_share(123, 1000), format_share(1, 0)],
            ["0.4%", "4.1%", "12%", "0%"]
        );
        assert_eq!(shift(100, Some(Duration::from_millis(150))), "15ms");
        assert_eq!(shift(125, None), "13% of the slo");
    }
}
