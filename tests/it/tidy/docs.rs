//! Compares the documentation with the code: error codes, metric names, decision records, links,
//! and the length of lines and of the architecture page.

use std::fmt::Write as _;

use groupage::batching::DispatchCause;
use groupage::config::ConfigCode;
use groupage::error::FailureKind;
use groupage::injector;
use groupage::protocol::{MismatchKind, ProtocolLabel, UnmergeableReason};
use groupage::telemetry::names::{
    AdmissionResult, ControllerMetric, EXPIRE_REASONS, EventResult, FloodReason, Metric, MetricKind, Outcome,
    OverheadStage, REJECT_REASONS, RelayReason, ReloadResult, SLO_RESULTS, UnpredictedReason, VerifyResult, WaitReason,
    WriteResult,
};
use strum::VariantArray as _;

use super::{files, golden_section, read, sources};

/// Maximum number of columns of a line of prose. Tables and code are exempt, because they cannot be
/// wrapped.
const PROSE_MAX: usize = 160;

#[test]
fn the_error_page_matches_the_tables_in_the_code() {
    let mut own =
        String::from("| code | `x-groupage-reason` | status | message | responsible |\n|---|---|---|---|---|\n");
    for kind in FailureKind::VARIANTS {
        let fault = kind.fault().as_str();
        writeln!(own, "| `{}` | `{}` | {} | {} | {fault} |", kind.code(), kind.reason(), kind.status(), kind.message())
            .unwrap();
    }
    golden_section("docs/errors.md", "own errors", &own);
    let mut config = String::from("| code | message |\n|---|---|\n");
    for code in ConfigCode::VARIANTS {
        writeln!(config, "| `{}` | {} |", code.as_str(), code.message()).unwrap();
    }
    golden_section("docs/errors.md", "configuration errors", &config);
    let mut injection = String::from("| code | message |\n|---|---|\n");
    for code in injector::InjectionErrorCode::VARIANTS {
        writeln!(injection, "| `{}` | {} |", code.as_str(), code.message()).unwrap();
    }
    golden_section("docs/errors.md", "injection errors", &injection);
    let mut more = String::from("| code | why | what to do |\n|---|---|---|\n");
    let own = FailureKind::VARIANTS.iter().map(|kind| (kind.code(), kind.why(), kind.advice()));
    let config = ConfigCode::VARIANTS.iter().map(|code| (code.as_str(), code.why(), code.advice()));
    let injection =
        injector::InjectionErrorCode::VARIANTS.iter().map(|code| (code.as_str(), code.rationale(), code.advice()));
    for (code, why, advice) in own.chain(config).chain(injection) {
        writeln!(more, "| `{code}` | {why} | {advice} |").unwrap();
    }
    golden_section("docs/errors.md", "why and what to do", &more);
}

#[test]
fn the_page_of_injection_names_every_reason_to_leave_a_pod_alone() {
    let mut reasons = String::from("| reason | why |\n|---|---|\n");
    for skip in injector::SkipReason::VARIANTS {
        writeln!(reasons, "| `{}` | {} |", skip.as_str(), skip.means()).unwrap();
    }
    golden_section("docs/injection.md", "skip reasons", &reasons);
}

#[test]
fn the_metrics_page_matches_the_list_in_the_code() {
    let mut names = String::from("| metric | type | labels | what it counts |\n|---|---|---|---|\n");
    for metric in Metric::ALL {
        let labels: Vec<_> =
            metric.labels().split(", ").filter(|label| !label.is_empty()).map(|label| format!("`{label}`")).collect();
        writeln!(
            names,
            "| `{}` | {} | {} | {} |",
            metric.name(),
            metric.kind().as_str(),
            labels.join(" "),
            metric.help()
        )
        .unwrap();
    }
    golden_section("docs/metrics.md", "metrics", &names);
    let mut names = String::from("| metric | type | labels | what it counts |\n|---|---|---|---|\n");
    for metric in ControllerMetric::ALL {
        let labels: Vec<_> =
            metric.labels().split(", ").filter(|label| !label.is_empty()).map(|label| format!("`{label}`")).collect();
        let (name, kind, help) = (metric.name(), metric.kind().as_str(), metric.help());
        writeln!(names, "| `{name}` | {kind} | {} | {help} |", labels.join(" ")).unwrap();
    }
    golden_section("docs/metrics.md", "controller metrics", &names);

    let mut words = String::from("| label | values |\n|---|---|\n");
    let mut row = |label: &str, values: Vec<&str>| {
        let values: Vec<_> = values.into_iter().map(|value| format!("`{value}`")).collect();
        writeln!(words, "| {label} | {} |", values.join(" ")).unwrap();
    };
    row("`outcome` of calls and items", Outcome::VARIANTS.iter().map(|word| word.as_str()).collect());
    row("`protocol`", ProtocolLabel::VARIANTS.iter().map(|word| word.as_str()).collect());
    row("`cause`", DispatchCause::ALL.iter().map(|word| word.as_str()).collect());
    row("`reason` of calls", UnmergeableReason::VARIANTS.iter().map(|word| word.as_str()).collect());
    row("`reason` of held calls", WaitReason::VARIANTS.iter().map(|word| word.as_str()).collect());
    row("`reason` of rejected items", REJECT_REASONS.iter().map(|kind| kind.reason()).collect());
    row("`reason` of expired items", EXPIRE_REASONS.iter().map(|kind| kind.reason()).collect());
    row(
        "`reason` of `groupage_unpredicted_calls_total`",
        UnpredictedReason::VARIANTS.iter().map(|word| word.as_str()).collect(),
    );
    row("`reason` of flooded connections", FloodReason::VARIANTS.iter().map(|word| word.as_str()).collect());
    row("`reason` of relayed connections", RelayReason::VARIANTS.iter().map(|word| word.as_str()).collect());
    row("`result`", SLO_RESULTS.to_vec());
    row("`result` of verifications", VerifyResult::VARIANTS.iter().map(Into::into).collect());
    row("`result` of reloads", ReloadResult::VARIANTS.iter().map(|word| word.as_str()).collect());
    row(
        "`result` of `groupage_webhook_requests_total`",
        AdmissionResult::VARIANTS.iter().map(|word| word.as_str()).collect(),
    );
    row("`result` of the controller's writes", WriteResult::VARIANTS.iter().map(|word| word.as_str()).collect());
    row("`result` of events", EventResult::VARIANTS.iter().map(|word| word.as_str()).collect());
    row("`stage`", OverheadStage::VARIANTS.iter().map(|word| word.as_str()).collect());
    golden_section("docs/metrics.md", "label values", &words);

    let mut buckets = String::from("| histograms of | upper bounds |\n|---|---|\n");
    for (what, kind) in [
        ("seconds", MetricKind::Seconds),
        ("seconds of calls", MetricKind::CallSeconds),
        ("sizes", MetricKind::Sizes),
        ("ratios", MetricKind::Ratio),
    ] {
        let bounds: Vec<_> = kind.buckets().iter().map(ToString::to_string).collect();
        writeln!(buckets, "| {what} | {} |", bounds.join(" ")).unwrap();
    }
    golden_section("docs/metrics.md", "buckets", &buckets);
}

#[test]
fn metric_names_follow_the_conventions_and_are_defined_in_one_place() {
    let proxy = Metric::ALL.map(|metric| (metric.name(), metric.kind(), metric.help()));
    let controller = ControllerMetric::ALL.map(|metric| (metric.name(), metric.kind(), metric.help()));
    for (name, kind, help) in proxy.into_iter().chain(controller) {
        assert!(
            name.starts_with("groupage_") && name.bytes().all(|byte| byte == b'_' || byte.is_ascii_lowercase()),
            "{name}"
        );
        assert_eq!(
            kind == MetricKind::Counter,
            name.ends_with("_total"),
            "{name}: counters and nothing else end in _total"
        );
        // A gauge may be a ratio too.
        let ratio = name.ends_with("_ratio");
        assert_eq!(kind == MetricKind::Ratio, ratio && kind != MetricKind::Gauge, "{name}");
        assert!(!name.ends_with("_ms") && !name.ends_with("_micros"), "{name}: base units");
        assert!(help.ends_with('.'), "the help text of {name} is not a sentence");
    }
    for source in sources("src").iter().filter(|source| !source.path.starts_with("src/runtime/telemetry/names")) {
        for token in source.code() {
            let named = token.kind == super::lex::TokenKind::Text && token.text.starts_with("groupage_");
            assert!(!named, "{}:{}: metric names are defined only in telemetry::names", source.path, token.line);
        }
    }
}

#[test]
fn label_words_are_lower_case_and_unique() {
    let lists: [Vec<&str>; 13] = [
        WaitReason::VARIANTS.iter().map(|word| word.as_str()).collect(),
        AdmissionResult::VARIANTS.iter().map(|word| word.as_str()).collect(),
        WriteResult::VARIANTS.iter().map(|word| word.as_str()).collect(),
        EventResult::VARIANTS.iter().map(|word| word.as_str()).collect(),
        FloodReason::VARIANTS.iter().map(|word| word.as_str()).collect(),
        RelayReason::VARIANTS.iter().map(|word| word.as_str()).collect(),
        Outcome::VARIANTS.iter().map(|word| word.as_str()).collect(),
        OverheadStage::VARIANTS.iter().map(|word| word.as_str()).collect(),
        ReloadResult::VARIANTS.iter().map(|word| word.as_str()).collect(),
        DispatchCause::ALL.iter().map(|word| word.as_str()).collect(),
        UnmergeableReason::VARIANTS.iter().map(|word| word.as_str()).collect(),
        ProtocolLabel::VARIANTS.iter().map(|word| word.as_str()).collect(),
        [MismatchKind::Count, MismatchKind::Index, MismatchKind::Shape].iter().map(|word| word.as_str()).collect(),
    ];
    for mut words in lists {
        let count = words.len();
        assert!(
            words.iter().all(|word| word
                .bytes()
                .all(|byte| byte == b'_' || byte.is_ascii_lowercase() || byte.is_ascii_digit())),
            "{words:?}"
        );
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), count, "{words:?}");
    }
}

#[test]
fn the_map_fits_on_200_lines_and_lists_every_decision() {
    let map = read("docs/architecture.md");
    assert!(map.lines().count() <= 200, "docs/architecture.md has {} lines", map.lines().count());
    let mut numbers = Vec::new();
    for path in files().into_iter().filter(|path| path.starts_with("docs/adr/")) {
        let name = path.trim_start_matches("docs/adr/");
        assert!(map.contains(name), "docs/architecture.md does not list {name}");
        let number: usize = name.split('-').next().and_then(|number| number.parse().ok()).unwrap_or_default();
        numbers.push(number);
        let text = read(&path);
        assert!(text.lines().count() <= 60, "{name} is longer than a page");
        for part in ["## Context", "## Decision", "## Alternatives", "## Consequences"] {
            assert!(text.contains(part), "{name} has no {part}");
        }
    }
    numbers.sort_unstable();
    assert!(
        numbers.iter().copied().eq(1..=numbers.len()) && !numbers.is_empty(),
        "decisions are numbered without gaps: {numbers:?}"
    );
}

/// Packages that hold several subjects, each of which the map names.
const SEVERAL: [&str; 3] = ["groupage", "policy", "runtime"];

#[test]
fn the_map_names_every_package_and_only_existing_modules() {
    let map = read("docs/architecture.md");
    let there: Vec<String> = sources("src").iter().map(|source| source.module_path()).collect();
    for path in there.iter().map(|module| module.split("::").collect::<Vec<_>>()) {
        let subject = match *path.as_slice() {
            [package, module] if SEVERAL.contains(&package) && !["lib", "main"].contains(&module) => module,
            [package, "lib"] => package,
            _ => continue,
        };
        let is_named = map.contains(&format!("`{subject}`")) || map.contains(&format!("`{subject}::"));
        assert!(is_named, "docs/architecture.md does not name `{subject}`");
    }
    // The map leaves out the package of a module in a package with several subjects.
    let is_module = |name: &str| there.iter().any(|path| path == name || path.ends_with(&format!("::{name}")));
    for name in map.split('`').skip(1).step_by(2) {
        let path: Vec<&str> = name.split("::").collect();
        let is_ours = path.len() == 2 && (is_module(path[0]) || is_module(&format!("{}::lib", path[0])));
        // `batching::Batcher` is a type. It is defined somewhere below its module.
        let is_type = path.last().is_some_and(|last| last.starts_with(|c: char| c.is_ascii_uppercase()));
        assert!(!is_ours || is_type || is_module(name), "docs/architecture.md names `{name}`, which does not exist");
    }
}

#[test]
fn links_of_the_pages_lead_to_existing_files() {
    let there = files();
    let pages = there.iter().filter(|path| path.ends_with(".md") && *path != "docs/configuration.md");
    for page in pages {
        let text = read(page);
        let folder = page.rsplit_once('/').map_or("", |(folder, _)| folder);
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let target = link.split('#').next().unwrap_or_default();
            if target.is_empty() || target.contains("://") {
                continue;
            }
            let mut path: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
            for part in target.split('/').filter(|part| !part.is_empty()) {
                if part == ".." {
                    path.pop();
                } else {
                    path.push(part);
                }
            }
            let path = path.join("/");
            let found = there.iter().any(|file| *file == path || file.starts_with(&format!("{path}/")));
            assert!(found, "{page} links to {link}, which does not exist");
        }
    }
}

#[test]
fn prose_of_the_pages_wraps_at_160_columns() {
    let mut long = Vec::new();
    for page in files().into_iter().filter(|path| path.ends_with(".md")) {
        let mut is_fenced = false;
        for (index, line) in read(&page).lines().enumerate() {
            let start = line.trim_start();
            if start.starts_with("```") {
                is_fenced = !is_fenced;
            } else if !is_fenced && !start.starts_with('|') && line.chars().count() > PROSE_MAX {
                long.push(format!("{page}:{}", index + 1));
            }
        }
    }
    assert!(long.is_empty(), "prose of more than {PROSE_MAX} columns: {long:#?}");
}

#[test]
fn policies_that_the_pages_show_can_be_loaded() {
    let mut count = 0;
    for page in files().into_iter().filter(|path| path.ends_with(".md")) {
        let text = read(&page);
        for block in text.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next()) {
            count += 1;
            if let Err(errors) = groupage::config::load(block, &page) {
                panic!("{}", errors.render(false));
            }
        }
    }
    assert!(count > 0, "no page shows a policy");
}
