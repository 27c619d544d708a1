//! Composes an explanation from facts: sentences about what limits batching, with the numbers.
//! Pure.
//!
//! For each kind of calls, one sentence names the factor that determines the size of its batches.
//! Up to two more report the first that apply of a short list of findings, because a long list of
//! reasons is not read.

mod concurrency;
mod limiting;
mod prediction;
mod failures;
mod refusals;
mod unmerged;
mod format;

use serde_json::{Value, json};

use self::format::{
    describe_difference, describe_reason, format_factor, format_micros, format_percent, format_period, remedy_for,
};
use super::facts::{CallKind, ProxyFacts, SlotFacts, ratio};

/// Share of the batches from which a factor is considered binding.
const BINDS: f64 = 0.3;
/// Share of the batches from which a finding is reported.
const WORTH: f64 = 0.2;
/// Share of the calls below which a reason is left out.
const REASON_MIN: f64 = 0.01;
/// Maximum number of reasons in one sentence.
const REASONS_MAX: usize = 4;
/// Minimum number of batches required to judge a kind of calls.
const BATCHES_MIN: u64 = 5;
/// Maximum number of kinds of calls reported. Those with the most calls are chosen.
const KINDS_MAX: usize = 8;
/// Maximum number of sentences about one kind of calls.
const ABOUT_MAX: usize = 3;
/// Seconds for which a change of the upstream or a pause is reported after it happened.
const NEWS_SECONDS: u64 = 120;

/// One statement of an explanation.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub(super) struct Statement {
    /// Name of the kind of calls; empty if the statement is about all calls.
    pub(super) about: String,
    /// Seconds that the counts cover; `None` if they cover the whole uptime or the whole log.
    pub(super) over_seconds: Option<u64>,
    /// Identifier of the statement, for programs.
    pub(super) what: &'static str,
    /// The statement, for people.
    pub(super) text: String,
    /// Numbers that support the statement.
    pub(super) numbers: Value,
}

/// Composes the explanation.
pub(super) fn explain(facts: &ProxyFacts) -> Vec<Statement> {
    let mut statements = Vec::new();
    let mut all = |what, text: String, numbers| {
        statements.push(Statement { about: String::new(), over_seconds: None, what, text, numbers });
    };
    if let Some(left) = facts.crashed_seconds {
        let text = format!(
            "all calls pass through for {} more, because the process crashed 3 times in 60 s: see the log of the previous process for the cause",
            format_period(left)
        );
        all("crash_guard", text, json!({"ends_in_seconds": left}));
    }
    if facts.calls == 0 {
        all("no_calls", "no call has arrived yet".to_owned(), json!({}));
        return statements;
    }
    if let Some((text, numbers)) = facts.predicted.as_ref().map(prediction::explain) {
        all("observed", text, numbers);
    }
    if let Some(ago) = facts.changed_seconds.filter(|ago| *ago <= NEWS_SECONDS) {
        let text =
            format!("the model server changed {} ago: its latencies are being learned again", format_period(ago));
        all("model_changed", text, json!({"seconds_ago": ago}));
    }
    // These counts do not cover the recent window of the sentences about kinds of calls.
    let period = if facts.since_start { "since the start, " } else { "" };
    for (what, found) in [
        ("not_merged", unmerged::explain(facts)),
        ("unserved", explain_unserved(facts)),
        ("failed", facts.failures.as_ref().and_then(failures::explain_failures)),
        ("priorities", failures::explain_priorities(&facts.priorities)),
    ] {
        if let Some((text, numbers)) = found {
            all(what, format!("{period}{text}"), numbers);
        }
    }
    let mut kinds: Vec<&CallKind> = facts.kinds.iter().filter(|kind| kind.calls > 0).collect();
    kinds.sort_by_key(|kind| std::cmp::Reverse(kind.calls));
    for kind in kinds.into_iter().take(KINDS_MAX) {
        statements.extend(sentences_about_kind(kind, facts.slots).into_iter().take(ABOUT_MAX));
    }
    statements
}

fn explain_unserved(facts: &ProxyFacts) -> Option<(String, Value)> {
    let mut reasons: Vec<_> = facts.unserved.iter().collect();
    reasons.sort_by_key(|(_, items)| std::cmp::Reverse(*items));
    let items = reasons.iter().fold(0_u64, |sum, (_, items)| sum.saturating_add(*items));
    let share = ratio(items, facts.items);
    let parts: Vec<String> = reasons
        .iter()
        .take(REASONS_MAX)
        .map(|(word, items)| format!("{items} `{word}` ({})", describe_reason(word)))
        .collect();
    (share >= REASON_MIN).then(|| {
        let numbers = json!({"items": items, "of": facts.items});
        (format!("{} of the items were refused or ended early: {}", format_percent(share), parts.join(", ")), numbers)
    })
}

/// Returns the sentences about one kind of calls, the most urgent first.
fn sentences_about_kind(kind: &CallKind, slots: Option<SlotFacts>) -> Vec<Statement> {
    let over_seconds = kind.over_seconds;
    let sentence = |what, (text, numbers)| Statement { about: kind.name.clone(), over_seconds, what, text, numbers };
    let mut sentences = Vec::new();
    sentences.extend(refusals::explain(kind).map(|(what, found)| sentence(what, found)));
    sentences.extend(concurrency::explain(kind).map(|found| sentence("concurrency", found)));
    sentences.extend(explain_infeasible_slo(kind).map(|found| sentence("slo_infeasible", found)));
    sentences.extend(failures::explain_pauses(kind).map(|found| sentence("paused", found)));
    if kind.passed > kind.batches {
        return sentences;
    }
    if kind.batches < BATCHES_MIN {
        let text =
            format!("only {} so far: too few to tell what limits batching", plural(kind.batches, "batch", "batches"));
        sentences.push(sentence("too_few", (text, json!({"batches": kind.batches}))));
        return sentences;
    }
    let apart = explain_key_diversity(kind);
    // A limit that is reached is binding even if calls of several merge keys are queued.
    if apart.is_none() || ratio(kind.separated_batches, kind.batches) < BINDS || kind.share("full") >= BINDS {
        let factor = limiting::find_factor(kind, slots, apart.is_some());
        sentences.extend(factor.map(|(what, found)| sentence(what, found)));
    }
    sentences.extend(apart.map(|found| sentence("kept_apart", found)));
    sentences.extend(explain_curve(kind, slots).map(|found| sentence("curve", found)));
    sentences
}

fn explain_infeasible_slo(kind: &CallKind) -> Option<(String, Value)> {
    let (slo, point) = (kind.slo_us?, kind.point?);
    (slo < point.lone_late_us).then(|| {
        let text = format!(
            "SLO {} is below the latency of an unbatched call, {} (98th percentile): infeasible, served best effort",
            format_micros(slo),
            format_micros(point.lone_late_us)
        );
        (text, json!({"slo_us": slo, "lone_us": point.lone_us, "lone_late_us": point.lone_late_us}))
    })
}

fn explain_key_diversity(kind: &CallKind) -> Option<(String, Value)> {
    let share = ratio(kind.separated_batches, kind.batches);
    if share < WORTH || kind.keys < 2 {
        return None;
    }
    let head = format!(
        "batches hold {:.1} items on average, and calls of {} merge keys are queued at the same time (during {} of the batches)",
        ratio(kind.items, kind.batches),
        kind.keys,
        format_percent(share)
    );
    let Some(first) = kind.differs.first() else {
        let text = format!(
            "{head}; `groupage explain` against the running proxy names the header or field that differs, as does an access log written by this version"
        );
        return Some((text, json!({"keys": kind.keys, "share": share})));
    };
    let mut text = format!("{head}: {}", describe_difference(first));
    if first.keys_without > 1
        && let Some(second) = kind.differs.get(1)
    {
        text.push_str(&format!(", and {}", describe_difference(second)));
    }
    text.push_str(&remedy_for(first));
    Some((text, json!({"keys": kind.keys, "share": share, "differs": kind.differs})))
}

fn explain_curve(kind: &CallKind, slots: Option<SlotFacts>) -> Option<(String, Value)> {
    let point = kind.point?;
    // Calls are forwarded as they arrive, so the number of concurrent batches was not learned.
    if slots.is_some_and(|slots| !slots.fixed && slots.learned == 0) {
        return None;
    }
    let count = slots.map_or(1, |slots| slots.learned).max(1);
    let batches = if count == 1 { "one batch at a time".to_owned() } else { format!("{count} batches side by side") };
    let fixed = slots.is_some_and(|slots| slots.fixed);
    let at_once = if fixed { format!("is sent {batches}") } else { format!("runs {batches}") };
    let at_limit = slots.filter(|slots| !slots.fixed && slots.learned > 1 && slots.learned >= slots.max);
    let at_limit = at_limit.map_or("", |_| ", as many as `limits.slotsMax` allows");
    let text = format!(
        "the server {at_once}{at_limit}: it answers {} in {}{}; {} would take {} as long",
        plural(point.best_items.into(), "item", "items"),
        format_micros(point.best_us),
        if point.best_items > 1 { format!(", one in {}", format_micros(point.lone_us)) } else { String::new() },
        2 * u64::from(point.best_items),
        format_factor(point.double_us, point.best_us),
    );
    let numbers = json!({
        "best_items": point.best_items,
        "best_us": point.best_us,
        "double_us": point.double_us,
        "lone_us": point.lone_us,
        "slots": slots.map(|slots| slots.learned),
    });
    Some((text, numbers))
}

fn plural(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

#[cfg(test)]
mod tests;
