//! Why calls of a kind are forwarded or merged, by the load curve that was measured.

use serde_json::{Value, json};

use super::words::{millis, times};
use crate::cli::explain::facts::{Concurrency, Kind};

/// A sentence on the concurrency of the server, with its numbers; none before anything was measured.
pub(super) fn explain(kind: &Kind) -> Option<(String, Value)> {
    let flow = kind.concurrency.as_ref()?;
    let numbers = json!({
        "limit": flow.limit,
        "reason": flow.reason,
        "knee_milli": flow.knee_milli,
        "lone_call_us": flow.lone_us,
        "batch_items_milli": flow.batch_items_milli,
        "batch_us": flow.batch_us,
    });
    let text = match flow.limit {
        Some(limit) => merged(limit, flow)?,
        None => forwarded(flow)?,
    };
    Some((text, numbers))
}

/// Why calls beyond a limit are held and merged.
fn merged(limit: u32, flow: &Concurrency) -> Option<String> {
    if flow.batch_items_milli < 1500 || flow.lone_us == 0 {
        return Some(format!(
            "calls are held beyond {limit} at once: more were measured to wait inside the server; sizes of batches are being tried"
        ));
    }
    let items = (flow.batch_items_milli + 500) / 1000;
    let apart = flow.batch_items_milli.saturating_mul(flow.lone_us) / 1000 / u64::from(limit.max(1));
    Some(format!(
        "merged: the server runs {limit} at once, and one batch of {items} takes {} where {items} calls one by one take {}",
        millis(flow.batch_us),
        millis(apart),
    ))
}

/// Why calls are forwarded at once.
fn forwarded(flow: &Concurrency) -> Option<String> {
    let most = flow.most_milli as f64 / 1000.0;
    let text = match flow.reason.as_str() {
        "no_gain" => {
            let cost = flow.item_permille.map_or_else(String::new, |permille| {
                format!(" (an item in a batch costs {} as much as a call alone)", times(permille, 1000))
            });
            format!("forwarded at once: a batch was measured not to pay{cost}; tried again later")
        }
        "server_batches" => "forwarded at once: the server reports that it batches by itself".to_owned(),
        "nothing_to_merge" => "forwarded at once: no two calls that came could share a batch".to_owned(),
        _ if flow.learning => {
            "forwarded at once: too few calls have been answered to know how many the server runs at once".to_owned()
        }
        _ if most >= 1.5 => format!(
            "forwarded at once: the server runs at least {most:.0} at once (a call takes {} then, {} alone)",
            millis(flow.most_us),
            millis(flow.lone_us),
        ),
        _ => return None,
    };
    Some(text)
}
