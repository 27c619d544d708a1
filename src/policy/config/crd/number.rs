//! Regular expressions for ranges of whole numbers. The schema of a custom resource limits a number
//! that is part of a text, such as `64Ki`, only by a pattern.

/// Returns a group of alternatives that matches exactly the decimal numbers from `min` to `max`,
/// without leading zeros.
pub(super) fn range_pattern(min: u64, max: u64) -> String {
    let mut alternatives = Vec::new();
    // Lengths at which all numbers are in the range, as the minimum and maximum number of digits
    // after the first one. They become one alternative.
    let mut complete: Option<(usize, usize)> = None;
    let mut from = min;
    while from <= max {
        // Each iteration covers the numbers of one length.
        let to = largest_of_length(from).min(max);
        let (low, high) = (from.to_string(), to.to_string());
        if from > 0
            && to == largest_of_length(from)
            && from.checked_sub(1).is_none_or(|before| before == 0 || before == largest_of_length(before))
        {
            let more = low.len() - 1;
            complete = Some(complete.map_or((more, more), |(least, _)| (least, more)));
        } else {
            alternatives.extend(complete.take().map(complete_lengths_pattern));
            push_alternatives(low.as_bytes(), high.as_bytes(), "", &mut alternatives);
        }
        let Some(next) = to.checked_add(1) else { break };
        from = next;
    }
    alternatives.extend(complete.map(complete_lengths_pattern));
    format!("({})", alternatives.join("|"))
}

/// Returns the pattern for all numbers with this minimum and maximum number of digits after the
/// first one.
fn complete_lengths_pattern((least, most): (usize, usize)) -> String {
    match (least, most) {
        (0, 0) => "[1-9]".to_owned(),
        (least, most) if least == most => format!("[1-9][0-9]{{{least}}}"),
        (least, most) => format!("[1-9][0-9]{{{least},{most}}}"),
    }
}

/// Returns the largest number with the same number of digits.
fn largest_of_length(number: u64) -> u64 {
    let digits = u32::try_from(number.to_string().len()).unwrap_or(u32::MAX);
    10_u64.checked_pow(digits).map_or(u64::MAX, |next| next - 1)
}

/// Adds the alternatives for the numbers from `low` to `high`, which have the same number of
/// digits. `before` is the pattern of the digits in front of them. The function calls itself for
/// the first digits with restricted digits after them; one alternative covers those between.
fn push_alternatives(low: &[u8], high: &[u8], before: &str, alternatives: &mut Vec<String>) {
    let (Some((first, low)), Some((last, high))) = (low.split_first(), high.split_first()) else {
        alternatives.push(before.to_owned());
        return;
    };
    let any_rest = match low.len() {
        0 => String::new(),
        1 => "[0-9]".to_owned(),
        more => format!("[0-9]{{{more}}}"),
    };
    let mut push_with_digit = |digit: u8, low: &[u8], high: &[u8]| {
        push_alternatives(low, high, &format!("{before}{}", char::from(digit)), alternatives);
    };
    let all = |digits: &[u8], digit: u8| digits.iter().all(|found| *found == digit);
    let (whole_low, whole_high) = (all(low, b'0'), all(high, b'9'));
    if first == last && !(whole_low && whole_high) {
        return push_with_digit(*first, low, high);
    }
    if !whole_low {
        push_with_digit(*first, low, &vec![b'9'; low.len()]);
    }
    let from = if whole_low { *first } else { first + 1 };
    let to = if whole_high { *last } else { last - 1 };
    if from <= to {
        let digits = if from == to {
            char::from(from).to_string()
        } else {
            format!("[{}-{}]", char::from(from), char::from(to))
        };
        alternatives.push(format!("{before}{digits}{any_rest}"));
    }
    if !whole_high {
        push_alternatives(&vec![b'0'; high.len()], high, &format!("{before}{}", char::from(*last)), alternatives);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use regex::Regex;

    use super::*;

    fn compiled(min: u64, max: u64) -> Regex {
        Regex::new(&format!("^{}$", range_pattern(min, max))).unwrap()
    }

    #[test]
    fn range_patterns_have_their_shortest_form() {
        assert_eq!(range_pattern(0, 9), "([0-9])");
        assert_eq!(range_pattern(1, 99), "([1-9][0-9]{0,1})");
        assert_eq!(range_pattern(1, 1_024), "([1-9][0-9]{0,2}|10[0-1][0-9]|102[0-4])");
        assert_eq!(range_pattern(7, 7), "(7)");
        assert_eq!(range_pattern(8, 123), "([8-9]|[1-9][0-9]{1}|1[0-1][0-9]|12[0-3])");
    }

    #[test]
    fn small_ranges_are_exact() {
        for min in 0..130 {
            for max in min..130 {
                let range = compiled(min, max);
                for number in 0..1_200_u64 {
                    assert_eq!(
                        range.is_match(&number.to_string()),
                        (min..=max).contains(&number),
                        "{number}: {min} to {max}"
                    );
                }
            }
        }
    }

    proptest! {
        #[test]
        fn every_range_is_exact_at_its_ends(a: u64, b: u64, shift in 0..64_u32, inside: u64) {
            let (min, max) = (a.min(b) >> shift, a.max(b) >> shift);
            let range = compiled(min, max);
            // A number within the range.
            let inside = min + inside.checked_rem((max - min).saturating_add(1)).unwrap_or(0);
            for number in [min, max, inside] {
                prop_assert!(range.is_match(&number.to_string()));
            }
            prop_assert!(min == 0 || !range.is_match(&(min - 1).to_string()));
            prop_assert!(max == u64::MAX || !range.is_match(&(max + 1).to_string()));
        }
    }
}
