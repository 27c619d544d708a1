//! Pass-through compared with nginx and `HAProxy`: CPU time per call and latency added to the
//! median, over persistent HTTP/1.1 connections on both sides.
//!
//! All contestants take turns in every round, after the direct load. A figure is the median of the
//! rounds and is printed with its range.

use std::net::SocketAddr;
use std::time::Duration;

use groupage::testkit::load::run_closed_loop;

use super::process::{self, Process};
use super::reference_proxies::{ReferenceProgram, ReferenceProxy};
use super::statistics::median;
use super::{Scale, load, stand_in};

/// Numbers of connections, each with one call at a time.
const CONNECTIONS: [usize; 2] = [8, 64];

/// A proxy and its measurements.
struct MeasuredProxy {
    name: &'static str,
    listen: SocketAddr,
    pids: Vec<u32>,
    cpu: Vec<f64>,
    added: Vec<f64>,
}

/// Runs this part and prints it.
pub(crate) async fn run(scale: Scale) {
    let mock = stand_in(Duration::ZERO, None).await;
    let ours = Process::groupage(&mock.url(), "mode: Passthrough\n");
    let observing = Process::groupage(&mock.url(), "mode: Observe\n");
    let mut references = Vec::new();
    for program in [ReferenceProgram::Nginx, ReferenceProgram::HaProxy] {
        match ReferenceProxy::start(program, mock.addr()) {
            Some(reference) => references.push((program.name(), reference)),
            None => println!(
                "pass-through: {} IS MISSING, SO IT IS NOT COMPARED; install it with: apt-get install {}",
                program.name(),
                program.package()
            ),
        }
    }
    for connections in CONNECTIONS {
        println!("pass-through: {connections} kept HTTP/1.1 connections, {} rounds", scale.rounds);
        let mut all = vec![
            MeasuredProxy::new("groupage", ours.listen, &ours.pids),
            MeasuredProxy::new("Observe", observing.listen, &observing.pids),
        ];
        all.extend(
            references.iter().map(|(name, reference)| MeasuredProxy::new(name, reference.listen, &reference.pids)),
        );
        let mut direct = Vec::new();
        for _ in 0..scale.rounds {
            let p50 = run_closed_loop(load(scale, mock.addr(), connections, 1)).await.p50();
            direct.push(micros(p50));
            for contestant in &mut all {
                contestant.measure(scale, connections, p50).await;
            }
        }
        println!("  direct      p50 {}", spread(&direct));
        let (cpu, added) = (median(&all[0].cpu), median(&all[0].added));
        for MeasuredProxy { name, cpu: own_cpu, added: own_added, .. } in &all {
            println!(
                "  {name:<9} CPU {} us a call, groupage {:.2} times it   p50 +{} us, groupage {:.2} times it",
                spread(own_cpu),
                cpu / median(own_cpu),
                spread(own_added),
                added / median(own_added),
            );
        }
    }
}

// === impl MeasuredProxy ===

impl MeasuredProxy {
    fn new(name: &'static str, listen: SocketAddr, pids: &[u32]) -> Self {
        Self { name, listen, pids: pids.to_vec(), cpu: Vec::new(), added: Vec::new() }
    }

    async fn measure(&mut self, scale: Scale, connections: usize, direct: Duration) {
        let before = process::cpu(&self.pids);
        let report =
            run_closed_loop(load(Scale { warm_up: Duration::ZERO, ..scale }, self.listen, connections, 1)).await;
        assert_eq!((report.wrong, report.failed), (0, 0), "every answer is checked");
        let spent = process::cpu(&self.pids) - before;
        self.cpu.push(micros(spent) / report.served.max(1) as f64);
        self.added.push(micros(report.p50()) - micros(direct));
    }
}

fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

/// Formats the median, with the minimum and the maximum in brackets.
fn spread(values: &[f64]) -> String {
    let (least, most) =
        (values.iter().copied().fold(f64::MAX, f64::min), values.iter().copied().fold(f64::MIN, f64::max));
    format!("{:>6.1} [{least:.1}, {most:.1}]", median(values))
}
