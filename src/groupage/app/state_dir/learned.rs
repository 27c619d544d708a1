//! The file format of learned state. It has serde types of its own, so that the core's types may
//! change without a change of the file.
//!
//! A cost class is identified by its name in bytes (`protocol`: method, route, path, model as
//! written, item form), which has the same meaning in every process. All numbers are integers; the
//! name of a field has its unit: `_ns` (nanoseconds), `_permille`, `_milli` (thousandths) or
//! `_ppm`. A file of another format version, or about another model server, is rejected.

use std::io;

use serde::{Deserialize, Serialize};

use crate::batching::{
    CeilingSnapshot, ClassSnapshot, CostMeasure, CostSample, CostSnapshot, CurvePoint, FlowSnapshot, SizeMeasure,
    UpstreamSnapshot, Weight,
};
use crate::scheduler::LearnedState;
use crate::upstream::ServerIdentity;

/// Version of the file format. It changes with the meaning of any field.
const FORMAT: u32 = 1;
/// Maximum number of cost classes, the same as the scheduler learns cost curves for.
const CLASSES_MAX: usize = 64;
/// Maximum length of a cost class's name. Classes with longer names are not written; a path and a
/// model name are shorter.
const NAME_BYTES_MAX: usize = 1024;

/// The file. From `slots` on, its fields are those of [`UpstreamSnapshot`].
#[derive(Debug, Serialize, Deserialize)]
struct LearnedFile {
    format: u32,
    /// Address of the model server, as configured.
    upstream: String,
    /// The identity that the model server reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    server: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    slots: u32,
    lead_ns: u64,
    mean_ns: u64,
    explore_permille: u32,
    classes: Vec<ClassEntry>,
}

/// Fields that decide whether the rest of the file can be parsed.
#[derive(Debug, Deserialize)]
struct Header {
    format: u32,
    upstream: String,
}

/// Learned state of a cost class. The fields between `base` and `padding_permille` are those of
/// [`CostSnapshot`].
#[derive(Debug, Serialize, Deserialize)]
struct ClassEntry {
    /// Name of the class, escaped by `u8::escape_ascii`.
    class: String,
    #[serde(with = "BaseName")]
    base: CostMeasure,
    first_ns: u64,
    /// Number of items, sum of their weights, largest weight, nanoseconds.
    samples: Vec<(u32, u64, u64, u64)>,
    /// Number of items, nanoseconds, number of samples.
    points: Vec<(u32, u64, u32)>,
    largest: u32,
    tail_permille: u64,
    noise_ppm: u64,
    weights_matter: bool,
    weight_milli: u64,
    heaviest_milli: Vec<u64>,
    padding_permille: u64,
    ceilings: Vec<CeilingEntry>,
    /// Absent in files of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    limiter: Option<LimiterEntry>,
}

/// State of a concurrency limiter: see [`FlowSnapshot`].
#[derive(Debug, Serialize, Deserialize)]
struct LimiterEntry {
    limit: u32,
    no_gain_permille: u64,
    base_ns: u64,
}

/// A learned limit on batches: see [`CeilingSnapshot`].
#[derive(Debug, Serialize, Deserialize)]
struct CeilingEntry {
    #[serde(with = "BoundedName")]
    bounded: SizeMeasure,
    max: u64,
    refused: u64,
    worked: u64,
    firm: bool,
    retest_ns: u64,
}

/// Names of the measures of a ceiling in the file.
#[derive(Serialize, Deserialize)]
#[serde(remote = "SizeMeasure", rename_all = "snake_case")]
enum BoundedName {
    Items,
    Weight,
    PaddedWeight,
}

/// Names of the measures of a cost curve in the file.
#[derive(Serialize, Deserialize)]
#[serde(remote = "CostMeasure", rename_all = "snake_case")]
enum BaseName {
    Padded,
    Ragged,
    SizeOnly,
}

/// Parses a file. Returns the learned state, and the identity that the model server reported.
/// `upstream` is the configured address of the model server.
///
/// # Errors
/// The file is unreadable, or about another model server. The message contains the reason.
pub(super) fn read(bytes: &[u8], upstream: &str) -> Result<(LearnedState, ServerIdentity), String> {
    let header: Header = serde_json::from_slice(bytes).map_err(|error| format!("it cannot be read: {error}"))?;
    if header.format != FORMAT {
        return Err(format!("it has format {}, but this version reads {FORMAT}", header.format));
    }
    if header.upstream != upstream {
        return Err(format!("it belongs to another model server, {:.200}", header.upstream));
    }
    let learned: LearnedFile = serde_json::from_slice(bytes).map_err(|error| format!("it cannot be read: {error}"))?;
    let classes = learned
        .classes
        .into_iter()
        .take(CLASSES_MAX)
        .map(|class| Ok((unescape(&class.class)?, class.into())))
        .collect::<Result<_, String>>()?;
    let upstream = UpstreamSnapshot {
        slots: learned.slots,
        lead_nanos: learned.lead_ns,
        mean_nanos: learned.mean_ns,
        explore_permille: learned.explore_permille,
    };
    Ok((LearnedState { upstream, classes }, ServerIdentity { server: learned.server, model: learned.model }))
}

/// Serializes the state, with as many classes as fit into `bytes_max`.
pub(super) fn write(
    state: &LearnedState,
    upstream: &str,
    identity: ServerIdentity,
    bytes_max: usize,
) -> io::Result<Vec<u8>> {
    let classes = state.classes.iter().filter(|(name, _)| name.len() <= NAME_BYTES_MAX).take(CLASSES_MAX);
    let mut learned = LearnedFile {
        format: FORMAT,
        upstream: upstream.to_owned(),
        server: identity.server,
        model: identity.model,
        slots: state.upstream.slots,
        lead_ns: state.upstream.lead_nanos,
        mean_ns: state.upstream.mean_nanos,
        explore_permille: state.upstream.explore_permille,
        classes: classes.map(|(name, snapshot)| ClassEntry::new(name, snapshot)).collect(),
    };
    loop {
        let bytes = serde_json::to_vec(&learned)?;
        if bytes.len() <= bytes_max || learned.classes.is_empty() {
            return Ok(bytes);
        }
        // The second half is dropped repeatedly until the rest fits. This is rare: the usual number
        // of classes fits as a whole.
        learned.classes.truncate(learned.classes.len() / 2);
    }
}

// === impl ClassEntry ===

impl ClassEntry {
    fn new(name: &[u8], ClassSnapshot { cost: snapshot, ceilings, flow }: &ClassSnapshot) -> Self {
        let sample = |sample: &CostSample| (sample.items, sample.weight.sum, sample.weight.max, sample.nanos);
        Self {
            class: name.escape_ascii().to_string(),
            base: snapshot.base,
            first_ns: snapshot.first_nanos,
            samples: snapshot.samples.iter().map(sample).collect(),
            points: snapshot.points.iter().map(|point| (point.items, point.nanos, point.count)).collect(),
            largest: snapshot.largest,
            tail_permille: snapshot.tail_permille,
            noise_ppm: snapshot.noise_ppm,
            weights_matter: snapshot.weights_matter,
            weight_milli: snapshot.weight_milli,
            heaviest_milli: snapshot.heaviest_milli.clone(),
            padding_permille: snapshot.padding_permille,
            ceilings: ceilings.iter().map(CeilingEntry::from).collect(),
            limiter: flow.map(LimiterEntry::from),
        }
    }
}

impl From<&CeilingSnapshot> for CeilingEntry {
    fn from(ceiling: &CeilingSnapshot) -> Self {
        let CeilingSnapshot { bounded, max, refused, worked, firm, retest_nanos } = *ceiling;
        Self { bounded, max, refused, worked, firm, retest_ns: retest_nanos }
    }
}

impl From<CeilingEntry> for CeilingSnapshot {
    fn from(ceiling: CeilingEntry) -> Self {
        let CeilingEntry { bounded, max, refused, worked, firm, retest_ns } = ceiling;
        Self { bounded, max, refused, worked, firm, retest_nanos: retest_ns }
    }
}

impl From<ClassEntry> for ClassSnapshot {
    fn from(class: ClassEntry) -> Self {
        let sample = |(items, sum, max, nanos)| CostSample { items, weight: Weight { sum, max }, nanos };
        // At most one ceiling for each measure.
        let ceilings = class.ceilings.into_iter().take(SizeMeasure::ALL.len()).map(Into::into).collect();
        let cost = CostSnapshot {
            base: class.base,
            first_nanos: class.first_ns,
            samples: class.samples.into_iter().map(sample).collect(),
            points: class.points.into_iter().map(|(items, nanos, count)| CurvePoint { items, nanos, count }).collect(),
            largest: class.largest,
            tail_permille: class.tail_permille,
            noise_ppm: class.noise_ppm,
            weights_matter: class.weights_matter,
            weight_milli: class.weight_milli,
            heaviest_milli: class.heaviest_milli,
            padding_permille: class.padding_permille,
        };
        Self { cost, ceilings, flow: class.limiter.map(FlowSnapshot::from) }
    }
}

impl From<FlowSnapshot> for LimiterEntry {
    fn from(FlowSnapshot { limit, no_gain_permille, base_nanos }: FlowSnapshot) -> Self {
        Self { limit, no_gain_permille, base_ns: base_nanos }
    }
}

impl From<LimiterEntry> for FlowSnapshot {
    fn from(LimiterEntry { limit, no_gain_permille, base_ns }: LimiterEntry) -> Self {
        Self { limit, no_gain_permille, base_nanos: base_ns }
    }
}

/// Decodes the bytes that `u8::escape_ascii` encoded.
pub(in super::super) fn unescape(text: &str) -> Result<Box<[u8]>, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let plain = match (byte, if byte == b'\\' { rest.next() } else { None }) {
            (b'\\', Some(b't')) => b'\t',
            (b'\\', Some(b'r')) => b'\r',
            (b'\\', Some(b'n')) => b'\n',
            (b'\\', Some(quoted @ (b'\\' | b'"' | b'\''))) => quoted,
            (b'\\', Some(b'x')) => match (rest.next().and_then(digit), rest.next().and_then(digit)) {
                (Some(high), Some(low)) => high << 4 | low,
                _ => return Err("the name of a cost class is invalid".to_owned()),
            },
            (b'\\', _) => return Err("the name of a cost class is invalid".to_owned()),
            (byte, _) => byte,
        };
        bytes.push(plain);
    }
    Ok(bytes.into_boxed_slice())
}

fn digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

#[cfg(test)]
mod tests;
