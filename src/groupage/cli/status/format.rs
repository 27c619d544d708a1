//! Text output of `groupage status`: the table of pods, and their problems.

use std::fmt::Write as _;

use super::PodRow;

/// Formats the table; `wide` adds columns, `all` the namespace.
pub(super) fn format_table(rows: &[PodRow], wide: bool, all: bool) -> String {
    let mut lines = vec![header_cells(wide, all)];
    lines.extend(rows.iter().map(|row| row_cells(row, wide, all)));
    align_columns(&lines)
}

fn header_cells(wide: bool, all: bool) -> Vec<String> {
    let mut head =
        vec!["POD", "READY", "POLICY", "MODE", "BATCH", "P99", "SLO", "SAVED", "MERGED", "PASSED", "WHY", "CAPTURED"];
    if all {
        head.insert(0, "NAMESPACE");
    }
    if wide {
        head.extend(["VERSION", "PROFILE", "TUNING", "UNMERGED", "AROUND"]);
    }
    head.into_iter().map(str::to_owned).collect()
}

fn row_cells(row: &PodRow, wide: bool, all: bool) -> Vec<String> {
    let or_dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    let number = |count: Option<u64>| count.map_or_else(|| "-".to_owned(), |count| count.to_string());
    let yes = |is: bool| if is { "yes" } else { "no" }.to_owned();
    let guess = |text: Option<String>| match text {
        Some(text) if row.predicted => format!("~{text}"),
        Some(text) => text,
        None => "-".to_owned(),
    };
    let mut line = vec![
        row.pod.clone(),
        yes(row.ready),
        or_dash(&row.policy),
        row.mode.clone(),
        guess(row.batch.map(|batch| batch.to_string())),
        guess(row.latency_p99.clone()),
        // An SLO that is kept by refusing calls is marked.
        match (&row.slo, &row.slo_late) {
            (Some(slo), Some(late)) if late == "Refuse" => format!("{slo} (Refuse)"),
            (slo, _) => or_dash(slo),
        },
        guess(row.saved.clone()),
        number(row.merged),
        number(row.passed),
        or_dash(&row.passed_why),
        row.captured.map_or_else(|| "-".to_owned(), yes),
    ];
    if all {
        line.insert(0, row.namespace.clone());
    }
    if wide {
        let ways = (!row.around.is_empty()).then(|| row.around.join("; "));
        line.extend([
            or_dash(&row.version),
            or_dash(&row.profile),
            or_dash(&row.tuning),
            or_dash(&row.unmerged),
            or_dash(&ways),
        ]);
    }
    line
}

fn align_columns(lines: &[Vec<String>]) -> String {
    let columns = lines.first().map_or(0, Vec::len);
    let width = |column: usize| {
        lines.iter().filter_map(|line| line.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut out = String::new();
    for line in lines {
        let cells: Vec<String> = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        // Writing to a `String` cannot fail.
        writeln!(out, "{}", cells.join("   ").trim_end()).ok();
    }
    out
}

/// Formats the problems of pods with their remedies, once for all pods with the same problem.
pub(super) fn format_problems(rows: &[PodRow]) -> String {
    let mut found: Vec<(String, String, usize)> = Vec::new();
    for row in rows {
        let around = row.around.first().zip(row.remedy.as_ref());
        let around = around.map(|(way, remedy)| format!("calls bypass the sidecar: {way}; {remedy}"));
        for trouble in row.trouble.clone().into_iter().chain(around) {
            // The sentences for pods of one workload differ only in the pod's name.
            let kind = trouble.replace(&row.pod, "");
            match found.iter_mut().find(|(known, ..)| *known == kind) {
                Some((.., count)) => *count += 1,
                None => found.push((kind, format!("{}/{}: {trouble}", row.namespace, row.pod), 1)),
            }
        }
    }
    let line = |(_, text, count): &(String, String, usize)| match count {
        1 => format!("‼ {text}\n"),
        _ => format!("‼ {text} ({count} pods)\n"),
    };
    found.iter().map(line).collect()
}
