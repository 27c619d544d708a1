//! Division of the counters of a batch response. Totals are conserved, and estimates are marked.
//!
//! Numbers are handled as written: a decimal is a count of units of its last place, and is written
//! back with the same number of places. Anything else, such as an exponent or a sign, is not a
//! counter that can be divided.

use crate::json::{Elements, JsonType, Members, Span, kind, unescape};

/// Start of the names of counters that count results.
const COMPLETION_TOKENS: &[u8] = b"completion_tokens";

/// A counter of a response, divided among the clients.
#[derive(Debug)]
pub(crate) struct DividedCounter {
    /// Position of the counter.
    pub(crate) span: Span,
    /// The share of each client.
    pub(crate) parts: Vec<String>,
    /// `true` if the shares are counts rather than estimates.
    pub(crate) exact: bool,
}

/// The items or results of each client and their weights.
#[derive(Debug)]
pub(crate) struct ShareWeights {
    /// The weight of each item, in order.
    pub(crate) weights: Vec<u64>,
    /// The number of items of each client, in order.
    pub(crate) counts: Vec<usize>,
    /// `true` if all items consist of the same bytes.
    pub(crate) identical: bool,
    /// `true` if the weights measure what the server counts, so that the shares of a total that
    /// equals their sum are exact.
    pub(crate) counted: bool,
}

/// A number without sign or exponent: `units` of its last decimal place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Decimal {
    units: u128,
    /// Number of decimal places.
    places: usize,
}

/// Error for a number that cannot be divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IndivisibleCounter;

/// Divides the counters below a `usage` object. Names that end in `tokens` or `characters` are sums
/// over items and are divided. Any other number except zero has an unknown meaning. With `results`,
/// completion tokens are sums over results.
///
/// # Errors
/// The object contains a number of unknown meaning.
pub(crate) fn divide_usage(
    doc: &[u8],
    usage: Span,
    items: &ShareWeights,
    results: Option<&ShareWeights>,
) -> Result<Vec<DividedCounter>, IndivisibleCounter> {
    let mut counters = Vec::new();
    if kind(doc, usage.start) == JsonType::Object {
        for member in Members::new(doc, usage) {
            let name = unescape(member.key.inner_bytes(doc));
            let weights = results.filter(|_| name.starts_with(COMPLETION_TOKENS)).unwrap_or(items);
            let mut leaves = Vec::new();
            collect_sums(doc, member.value, &name, &mut leaves)?;
            for span in leaves {
                counters.push(share(doc, span, weights)?);
            }
        }
    }
    adjust_total_tokens(doc, usage, &mut counters);
    Ok(counters)
}

/// Divides one counter of a declared protocol. A total that is null or text is copied.
///
/// # Errors
/// The value is a number in a format that cannot be divided, an object or an array.
pub(crate) fn divide_declared(
    doc: &[u8],
    span: Span,
    weights: &ShareWeights,
) -> Result<Option<DividedCounter>, IndivisibleCounter> {
    match kind(doc, span.start) {
        JsonType::Number => share(doc, span, weights).map(Some),
        JsonType::Null | JsonType::Bool | JsonType::String => Ok(None),
        JsonType::Object | JsonType::Array => Err(IndivisibleCounter),
    }
}

/// Divides the number in a header. Returns the share of each client, and whether the shares are
/// exact.
pub(crate) fn divide_header(value: &[u8], weights: &ShareWeights) -> Option<(Vec<String>, bool)> {
    let counter = share(value, Span { start: 0, end: value.len() }, weights).ok()?;
    Some((counter.parts, counter.exact))
}

/// Adds up the numbers at the same places of several values. Returns the positions of the numbers in
/// the first value, with their sums.
///
/// # Errors
/// The values have numbers at different places, or a number in a format that cannot be added.
pub(crate) fn add_numbers(values: &[(&[u8], Span)]) -> Result<Vec<(Span, String)>, IndivisibleCounter> {
    let mut sums: Option<Vec<(Vec<u8>, Span, Decimal)>> = None;
    for (doc, value) in values {
        let mut leaves = Vec::new();
        locate_numbers(doc, *value, &mut Vec::new(), &mut leaves);
        let mut own = Vec::with_capacity(leaves.len());
        for (path, span) in leaves {
            own.push((path, span, Decimal::parse(span.of(doc)).ok_or(IndivisibleCounter)?));
        }
        let Some(sums) = &mut sums else {
            sums = Some(own);
            continue;
        };
        if sums.len() != own.len() {
            return Err(IndivisibleCounter);
        }
        for ((path, _, sum), (own_path, _, number)) in sums.iter_mut().zip(own) {
            if *path != own_path || sum.places != number.places {
                return Err(IndivisibleCounter);
            }
            sum.units = sum.units.saturating_add(number.units);
        }
    }
    Ok(sums.into_iter().flatten().map(|(_, span, sum)| (span, sum.to_text())).collect())
}

/// Lists the numbers in a value with their paths. The elements of an array have the same path.
fn locate_numbers(doc: &[u8], value: Span, path: &mut Vec<u8>, out: &mut Vec<(Vec<u8>, Span)>) {
    let length = path.len();
    let mut descend = |name: &[u8], value: Span| {
        path.push(b'/');
        path.extend_from_slice(name);
        locate_numbers(doc, value, path, out);
        path.truncate(length);
    };
    match kind(doc, value.start) {
        JsonType::Object => {
            Members::new(doc, value).for_each(|member| descend(&unescape(member.key.inner_bytes(doc)), member.value));
        }
        JsonType::Array => Elements::new(doc, value).for_each(|element| descend(b"", element)),
        JsonType::Number => out.push((path.clone(), value)),
        JsonType::String | JsonType::Bool | JsonType::Null => {}
    }
}

/// Lists the numbers in a value that are not zero and are sums by the name of their member.
///
/// # Errors
/// A number other than zero has a name of unknown meaning.
fn collect_sums(doc: &[u8], value: Span, name: &[u8], leaves: &mut Vec<Span>) -> Result<(), IndivisibleCounter> {
    match kind(doc, value.start) {
        JsonType::Object => {
            for member in Members::new(doc, value) {
                collect_sums(doc, member.value, &unescape(member.key.inner_bytes(doc)), leaves)?;
            }
        }
        JsonType::Array => {
            for element in Elements::new(doc, value) {
                collect_sums(doc, element, name, leaves)?;
            }
        }
        JsonType::Number => {
            let is_sum = [&b"tokens"[..], b"characters"].iter().any(|end| name.ends_with(end));
            if !is_zero(value.of(doc)) {
                if !is_sum {
                    return Err(IndivisibleCounter);
                }
                leaves.push(value);
            }
        }
        JsonType::String | JsonType::Bool | JsonType::Null => {}
    }
    Ok(())
}

/// Sets each client's `total_tokens` to the sum of its own shares, if the total of the upstream is
/// the same sum.
fn adjust_total_tokens(doc: &[u8], usage: Span, counters: &mut [DividedCounter]) {
    let member = |name: &[u8]| {
        Members::new(doc, usage).find(|member| *unescape(member.key.inner_bytes(doc)) == *name).map(|m| m.value)
    };
    let (Some(prompt), Some(completion), Some(total)) =
        (member(b"prompt_tokens"), member(b"completion_tokens"), member(b"total_tokens"))
    else {
        return;
    };
    let units =
        |span: Span| Decimal::parse(span.of(doc)).filter(|number| number.places == 0).map(|number| number.units);
    let (Some(of_prompt), Some(of_completion), Some(sum)) = (units(prompt), units(completion), units(total)) else {
        return;
    };
    if of_prompt + of_completion != sum {
        return;
    }
    // A counter of zero has no shares.
    let share = |span: Span, member: usize| -> u128 {
        let counter = counters.iter().find(|counter| counter.span == span);
        counter.and_then(|counter| counter.parts.get(member)?.parse().ok()).unwrap_or(0)
    };
    let Some(members) = counters.iter().find(|counter| counter.span == total).map(|counter| counter.parts.len()) else {
        return;
    };
    let sums = (0..members).map(|member| (share(prompt, member) + share(completion, member)).to_string()).collect();
    let exact = counters.iter().filter(|counter| [prompt, completion].contains(&counter.span)).all(|own| own.exact);
    if let Some(counter) = counters.iter_mut().find(|counter| counter.span == total) {
        counter.parts = sums;
        counter.exact = exact;
    }
}

/// Divides the number at `span`.
fn share(doc: &[u8], span: Span, weights: &ShareWeights) -> Result<DividedCounter, IndivisibleCounter> {
    let total = Decimal::parse(span.of(doc)).ok_or(IndivisibleCounter)?;
    // A count written as a decimal, such as `9.0`, is divided as an integer.
    let scale = if total.is_whole() { total.scale() } else { 1 };
    let counts_units = total.places == 0 || scale > 1;
    let (each, exact) = weights.apportion(total.units / scale, counts_units);
    let mut each = each.into_iter();
    let mut part = |count: &usize| {
        let units = each.by_ref().take(*count).sum::<u128>() * scale;
        Decimal { units, places: total.places }.to_text()
    };
    Ok(DividedCounter { span, parts: weights.counts.iter().map(&mut part).collect(), exact })
}

/// Returns `true` for a whole number up to `max`, and for a number that division rejects.
pub(crate) fn is_count(number: &[u8], max: usize) -> bool {
    Decimal::parse(number).is_none_or(|number| {
        number.is_whole() && usize::try_from(number.units / number.scale()).is_ok_and(|count| count <= max)
    })
}

pub(crate) fn is_zero(number: &[u8]) -> bool {
    !number.iter().take_while(|byte| !matches!(byte, b'e' | b'E')).any(|byte| matches!(byte, b'1'..=b'9' | b'N' | b'I'))
}

// === impl ShareWeights ===

impl ShareWeights {
    /// Returns the share of each item, and whether the shares are known rather than estimated.
    /// `counts_units` is `true` if the total is a whole number.
    fn apportion(&self, total: u128, counts_units: bool) -> (Vec<u128>, bool) {
        let items = self.weights.len().max(1) as u128;
        let weight: u128 = self.weights.iter().map(|weight| u128::from(*weight)).sum();
        // Equal items have equal shares if the total is divisible.
        if self.identical && total.is_multiple_of(items) {
            return (vec![total / items; self.weights.len()], true);
        }
        // The weights are the server's own counts if they add up to the total.
        if self.counted && counts_units && weight == total {
            return (self.weights.iter().map(|weight| u128::from(*weight)).collect(), true);
        }
        (largest_remainder(total, &self.weights), total == 0)
    }
}

/// Divides `total` by the largest remainder method, with ties going to the earlier item. Each item
/// first receives 1 if the total allows it.
pub(crate) fn largest_remainder(total: u128, weights: &[u64]) -> Vec<u128> {
    let items = weights.len() as u128;
    let weight: u128 = weights.iter().map(|weight| u128::from(*weight)).sum();
    // Items without any weight are treated as equal.
    let (weight, flat) = if weight == 0 { (items, true) } else { (weight, false) };
    let of = |index: usize| if flat { 1 } else { weights.get(index).copied().map_or(0, u128::from) };
    let first = u128::from(total >= items);
    let rest = total - first * items;
    // Quotient and remainder are computed separately to avoid the product of two large numbers.
    let (whole, odd) = (rest / weight.max(1), rest % weight.max(1));
    let split = |index: usize| {
        let product = odd.saturating_mul(of(index));
        (whole.saturating_mul(of(index)) + product / weight.max(1), product % weight.max(1))
    };
    let mut parts: Vec<u128> = (0..weights.len()).map(|index| first + split(index).0).collect();
    let mut left = total.saturating_sub(parts.iter().sum());
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by_key(|index| std::cmp::Reverse(split(*index).1));
    for index in order {
        if left == 0 {
            break;
        }
        if let Some(part) = parts.get_mut(index) {
            *part += 1;
            left -= 1;
        }
    }
    parts
}

// === impl Decimal ===

impl Decimal {
    /// Maximum number of digits. Longer numbers are not counters.
    const DIGITS_MAX: usize = 18;

    fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?.trim();
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        if whole.is_empty() || !digits(whole) || !digits(fraction) || whole.len() + fraction.len() > Self::DIGITS_MAX {
            return None;
        }
        Some(Self { units: format!("{whole}{fraction}").parse().ok()?, places: fraction.len() })
    }

    fn to_text(self) -> String {
        if self.places == 0 {
            return self.units.to_string();
        }
        let digits = format!("{:0>width$}", self.units, width = self.places + 1);
        let (whole, fraction) = digits.split_at_checked(digits.len() - self.places).unwrap_or((&digits, ""));
        format!("{whole}.{fraction}")
    }

    /// Returns the number of units in one.
    fn scale(self) -> u128 {
        (0..self.places).fold(1, |scale, _| scale * 10)
    }

    /// Returns `true` if all decimal places are zero.
    fn is_whole(self) -> bool {
        self.units.is_multiple_of(self.scale())
    }
}

#[cfg(test)]
mod tests;
