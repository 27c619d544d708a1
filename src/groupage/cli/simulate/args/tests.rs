use super::*;
use crate::simulator::compare::run_scenario;

#[test]
fn rates_are_factors_or_calls_a_second() {
    assert_eq!(rate("2"), Ok(RateChange::Times(2.0)));
    assert_eq!(rate("x0.5"), Ok(RateChange::Times(0.5)));
    assert_eq!(rate("500/s"), Ok(RateChange::PerSecond(500.0)));
    for wrong in ["", "x", "0", "-1", "21", "inf/s", "/s"] {
        assert!(rate(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn ours_serves_the_embedded_log_as_well_as_every_other_policy() {
    let report = run_scenario(&embedded_log_scenario().unwrap(), 1, true);
    let ours = report.entries[0].figures.goodput;
    for other in &report.entries[1..] {
        assert!(ours >= other.figures.goodput - 0.002, "{other}: ours {ours}");
    }
}

#[test]
fn the_embedded_log_is_a_scenario_with_a_scalable_rate() {
    let row = embedded_log_scenario().unwrap();
    assert!(row.workload.recorded.len() > 500, "{}", row.workload.recorded.len());
    let twice = row.clone().scale_rate(2.0);
    assert_eq!(twice.horizon, row.horizon / 2);
    let (one, two) = (row.mean_rate().unwrap(), twice.mean_rate().unwrap());
    assert!((two / one - 2.0).abs() < 1e-6, "{one} {two}");
    for (before, after) in row.workload.recorded.iter().zip(&twice.workload.recorded) {
        let budget = |arrival: &crate::simulator::Arrival| arrival.deadline().since(arrival.at);
        assert_eq!(budget(before), budget(after), "a deadline is as far from its call as it was");
    }
}

#[test]
fn choices_are_accepted_as_in_a_policy_and_in_any_case() {
    #[derive(Debug, clap::Parser)]
    struct CommandLine {
        #[command(flatten)]
        args: Args,
    }
    for (word, late) in [("Refuse", LateCalls::Refuse), ("refuse", LateCalls::Refuse), ("Serve", LateCalls::Serve)] {
        let line = <CommandLine as clap::Parser>::try_parse_from(["simulate", "--late", word]).unwrap();
        assert_eq!(line.args.late, Some(late), "{word}");
    }
    for words in [["--preset", "Balanced"], ["--preset", "balanced"], ["--output", "Json"], ["--output", "json"]] {
        let line = std::iter::once("simulate").chain(words);
        assert!(<CommandLine as clap::Parser>::try_parse_from(line).is_ok(), "{words:?}");
    }
    let help = <CommandLine as clap::CommandFactory>::command().render_long_help().to_string();
    for shown in ["Latency, Balanced, Throughput", "Serve, Refuse"] {
        assert!(help.contains(shown), "{shown}: {help}");
    }
}
