//! Rates of the load scripts of the examples, directly and through the proxy under the policy of the
//! example, from a cold start.

use std::time::Duration;

use serde_json::Value;

/// Further arguments of a load script.
pub(super) const ARGS: [&str; 2] = ["--turns=5", "--calls=600"];
/// Maximum time of a load script. The slowest server of the table computes 20 calls a second.
pub(super) const TIME_MAX: Duration = Duration::from_secs(600);
/// Minimum share of the direct rate, as in `benches/rivals/no_harm.py`.
const SHARE_MIN: f64 = 0.96;

/// Returns the share of the direct rate that the proxy reached, and that of each turn.
pub(super) fn judge(report: &Value) -> Result<String, String> {
    let times = |name: &str| -> Vec<f64> {
        report.get(name).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_f64).collect()
    };
    let (direct, proxied) = (times("direct_turns"), times("proxy_turns"));
    let share = direct.iter().sum::<f64>() / proxied.iter().sum::<f64>();
    let turns: Vec<String> = direct.iter().zip(&proxied).map(|(direct, own)| format!("{:.2}", direct / own)).collect();
    let numbers = format!("share of the direct rate {share:.3} [{}]", turns.join(", "));
    if share >= SHARE_MIN { Ok(numbers) } else { Err(format!("{numbers}, at least {SHARE_MIN}")) }
}
