//! Upstream profile: the state that a proxy learned about its server, read from the JSON of
//! `/api/scheduler`.
//!
//! The curve is that of the cost class with the most batches: its measured points if the linear fit
//! was found not to match, else the linear fit. Noise, stalls and ceilings are left out, because a
//! profile does not contain them.

use serde_json::Value;

use crate::simulator::curve::CostCurve;

/// Number of sizes in a measured curve, the bound that the batching core uses.
const SIZE_MAX: usize = 512;
/// Maximum number of slots that a proxy learns.
const SLOTS_MAX: u64 = 64;

/// Latency curve and slots of a profile.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct UpstreamProfile {
    pub(super) curve: CostCurve,
    pub(super) slots: u32,
}

/// Parses a profile.
pub(super) fn parse(text: &str) -> Result<UpstreamProfile, String> {
    let json: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let classes = json.get("cost_classes").and_then(Value::as_array).ok_or("it has no `cost_classes`")?;
    let samples = |class: &&Value| class.get("samples").and_then(Value::as_u64).unwrap_or(0);
    let class = classes.iter().max_by_key(samples).filter(|class| samples(class) > 0);
    let class = class.ok_or("it contains no curve, because no batch was measured yet")?;
    let slots = json.get("slots").and_then(Value::as_u64).unwrap_or(1).clamp(1, SLOTS_MAX);
    Ok(UpstreamProfile { curve: curve(class)?, slots: u32::try_from(slots).unwrap_or(1) })
}

fn curve(class: &Value) -> Result<CostCurve, String> {
    let number = |name: &str| class.get(name).and_then(Value::as_f64).unwrap_or(0.0);
    let (a, b, c) = (number("batch_us") / 1e3, number("item_us") / 1e3, number("weight_picos") / 1e9);
    let text = |name: &str| class.get(name).and_then(Value::as_str).unwrap_or_default();
    let flag = |name: &str| class.get(name).and_then(Value::as_bool).unwrap_or_default();
    let line = match text("base") {
        "padded" if c > 0.0 => CostCurve::Padded { a, b, c },
        "ragged" if c > 0.0 => CostCurve::Ragged { a, b, c },
        _ => CostCurve::Affine { a, b },
    };
    let points = points(class);
    if flag("shaped") && points.len() > 1 {
        return Ok(CostCurve::Measured { millis: interpolate(&points, line).leak() });
    }
    if line.millis_of(1) > 0.0 { Ok(line) } else { Err("its curve takes no time at all".to_owned()) }
}

/// Returns the measured sizes and milliseconds, ordered by size.
fn points(class: &Value) -> Vec<(usize, f64)> {
    let one = |point: &Value| {
        let items = usize::try_from(point.get("items")?.as_u64()?).ok()?;
        let millis = point.get("us")?.as_f64()? / 1e3;
        ((1..=SIZE_MAX).contains(&items) && millis > 0.0).then_some((items, millis))
    };
    let points = class.get("points").and_then(Value::as_array).into_iter().flatten();
    let mut points: Vec<_> = points.filter_map(one).collect();
    points.sort_by_key(|(items, _)| *items);
    points.dedup_by_key(|(items, _)| *items);
    points
}

/// Interpolates linearly between points. Before the first and after the last point, the linear fit
/// is scaled to meet it.
fn interpolate(points: &[(usize, f64)], line: CostCurve) -> Vec<f64> {
    let by_line = |items: usize| line.millis_of(u32::try_from(items).unwrap_or(u32::MAX)).max(1e-6);
    let of = |items: usize| {
        let next = points.partition_point(|(size, _)| *size < items);
        match (next.checked_sub(1).map(|at| points[at]), points.get(next).copied()) {
            (_, Some((size, millis))) if size == items => millis,
            (Some((low, low_ms)), Some((high, high_ms))) => {
                let part = (items - low) as f64 / (high - low) as f64;
                low_ms + part * (high_ms - low_ms)
            }
            (None, Some((size, millis))) | (Some((size, millis)), None) => millis * by_line(items) / by_line(size),
            (None, None) => by_line(items),
        }
    };
    (1..=SIZE_MAX).map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unshaped_curve_is_read_as_a_line_and_a_shaped_one_by_its_points() {
        let line = r#"{"slots": 4, "cost_classes": [
            {"id": 0, "base": "size_only", "batch_us": 4000, "item_us": 250, "samples": 9, "shaped": false, "points": []},
            {"id": 1, "base": "size_only", "batch_us": 1, "item_us": 1, "samples": 2}]}"#;
        assert_eq!(parse(line), Ok(UpstreamProfile { curve: CostCurve::Affine { a: 4.0, b: 0.25 }, slots: 4 }));
        let shape = r#"{"cost_classes": [{"base": "size_only", "batch_us": 2000, "item_us": 500, "samples": 9, "shaped": true,
            "points": [{"items": 8, "us": 6000, "batches": 3}, {"items": 4, "us": 5000, "batches": 3}]}]}"#;
        let UpstreamProfile { curve, slots } = parse(shape).unwrap();
        let at = |items| curve.millis_of(items);
        assert_eq!((at(4), at(6), at(8), slots), (5.0, 5.5, 6.0, 1));
        assert!((at(16) - 10.0).abs() < 1e-9, "past the last point the line continues: {}", at(16));
        let far = at(1024) / at(512);
        assert!((far - 2.0).abs() < 1e-9, "past the table an item costs as much as at its end: {far}");
    }

    #[test]
    fn a_profile_without_a_batch_is_refused() {
        for text in ["", "[]", "{}", r#"{"cost_classes": []}"#, r#"{"cost_classes": [{"samples": 0}]}"#] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
