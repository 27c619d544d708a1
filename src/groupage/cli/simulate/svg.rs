//! Reports as an SVG chart: a panel for each scenario, and a line for each policy with bars for its
//! goodput and mean latency. The chart is plain SVG text without scripts or fonts of its own.

use std::fmt::Write as _;

use crate::simulator::compare::{PolicyFigures, ScenarioReport};

const WIDTH: u32 = 900;
const NAMES: f64 = 210.0;
/// Maximum length of a bar, for goodput and for the mean.
const BAR: f64 = 250.0;
const LINE: u32 = 18;
const HEAD: u32 = 44;
/// Multiple of our own mean at which a bar ends. An overloaded policy would otherwise make every
/// other bar a dot.
const MEANS: f64 = 4.0;

pub(super) fn plot(reports: &[ScenarioReport]) -> String {
    let lines: usize = reports.iter().map(|report| report.entries.len()).sum();
    let height = u32::try_from(lines).unwrap_or(0) * LINE + u32::try_from(reports.len()).unwrap_or(0) * HEAD + HEAD;
    let mut svg = String::new();
    line(
        &mut svg,
        format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>"
        ),
    );
    let mut top = 0;
    for ScenarioReport { scenario, entries } in reports {
        top += HEAD;
        let y = top - 20;
        let (goodput, mean) = (NAMES + 10.0, NAMES + BAR + 80.0);
        line(
            &mut svg,
            format_args!(
                "<text x=\"10\" y=\"{y}\" font-weight=\"bold\">{}</text>\n<text x=\"{goodput}\" y=\"{y}\">goodput</text>\n\
             <text x=\"{mean}\" y=\"{y}\">mean latency of answered calls, ms</text>",
                escaped(&scenario.name)
            ),
        );
        let scale = MEANS * entries.first().map_or(1.0, |ours| ours.figures.mean).max(1e-9);
        for (place, entry) in entries.iter().enumerate() {
            policy(&mut svg, top, entry, scale, place == 0);
            top += LINE;
        }
    }
    svg.push_str("</svg>\n");
    svg
}

fn policy(svg: &mut String, y: u32, entry: &PolicyFigures, scale: f64, ours: bool) {
    let colour = if ours { "#1a7f4b" } else { "#9db2c8" };
    let text = y + 9;
    line(svg, format_args!("<text x=\"10\" y=\"{text}\">{}</text>", escaped(&entry.name)));
    let goodput = entry.figures.goodput.clamp(0.0, 1.0);
    bar(svg, (NAMES + 10.0, y), goodput, colour, &format!("{goodput:.3}"));
    let mean = entry.figures.mean;
    if mean.is_finite() {
        bar(svg, (NAMES + BAR + 80.0, y), (mean / scale).min(1.0), colour, &format!("{mean:.1}"));
    }
}

fn bar(svg: &mut String, (x, y): (f64, u32), part: f64, colour: &str, label: &str) {
    let (width, text) = (part * BAR, y + 9);
    let beside = x + width + 5.0;
    line(
        svg,
        format_args!(
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width:.1}\" height=\"11\" fill=\"{colour}\"/>\n\
         <text x=\"{beside:.1}\" y=\"{text}\">{label}</text>"
        ),
    );
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn line(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    writeln!(text, "{arguments}").expect("writing to a String cannot fail");
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::simulator::compare::run_scenario;
    use crate::simulator::scenario::Scenario;
    use crate::simulator::workload::ArrivalProcess;

    #[test]
    fn every_policy_of_a_row_is_drawn_and_names_are_escaped() {
        let row = Scenario::new("a < b & c", ArrivalProcess::Poisson { rate: 200.0 })
            .with_horizon(Duration::from_millis(200));
        let report = run_scenario(&row, 1, true);
        let entries = report.entries.len();
        let svg = plot(&[report]);
        assert!(svg.contains("a &lt; b &amp; c") && svg.ends_with("</svg>\n"));
        assert_eq!(svg.matches("x=\"10\"").count(), entries + 1);
    }
}
