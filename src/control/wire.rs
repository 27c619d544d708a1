//! What sidecar and controller say to each other: JSON in frames, up `Hello Report Event`, down `Config Bundle Goaway Ping`.
//!
//! Both ends may be one minor version apart, so nobody insists: a field that is not known is left out, a kind of message that is not known is skipped, and both
//! are counted; a field that is not there has a default that changes nothing. What one end does only if the other one understands it has a word in
//! [`FEATURES`]: the sidecar says its words in `Hello`, the controller in the head of its answer. A change that this cannot carry is another path than `/v1`.
//!
//! It leaves out how bytes become frames (`frame`) and what is done with a message.

mod down;
mod up;

use std::fmt;

use bytes::Bytes;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use self::down::{Bundle, Config, Curve, Experiment, Goaway, Limiter, Ping, Settings, Start};
pub use self::up::{
    CapturedPort, Concurrency, Event, Hello, InForce, Infeasible, Learned, LearnedClass, Outcomes, Pod, Predicted,
    Report, RouteReport, Suspended, UpstreamReport,
};
use super::frame::{self, FrameError};

/// Where the stream is opened; the number is the major version.
pub const PATH: &str = "/v1/stream";
/// The minor version of what is said here.
pub const MINOR: u32 = 0;
/// In the head of the controller's answer: its version, as `1.MINOR`.
pub const PROTOCOL_HEADER: &str = "x-groupage-protocol";
/// In the head of the controller's answer: its features, separated by commas.
pub const FEATURES_HEADER: &str = "x-groupage-features";

/// `Ping` acknowledges reports and events. Without it they count as arrived once they are written.
pub const ACKS: &str = "acks";
/// `Config` may have an `experiment` that ends by itself.
pub const EXPERIMENT: &str = "experiment";
/// `Config` may say what an unlearned sidecar begins with.
pub const START: &str = "start";
/// What this version understands beyond minor version 0.
pub const FEATURES: [&str; 3] = [ACKS, EXPERIMENT, START];

/// From the sidecar.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind")]
pub enum Up {
    /// Who it is: the first message, once.
    Hello(Box<Hello>),
    /// What happened since the last one.
    Report(Box<Report>),
    /// Something that somebody should know.
    Event(Event),
}

/// From the controller.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind")]
pub enum Down {
    /// What is to be in force.
    Config(Box<Config>),
    /// Whom to trust from now on.
    Bundle(Bundle),
    /// Open the stream elsewhere.
    Goaway(Goaway),
    /// The controller lives, and has so much.
    Ping(Ping),
}

/// How far what was sent has arrived: the numbers of one life of a sidecar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Acked {
    /// Which life.
    pub epoch: u64,
    /// The last report.
    pub report: u64,
    /// The last event.
    pub event: u64,
}

/// A message that was read.
#[derive(Debug, Clone, PartialEq)]
pub struct Read<T> {
    /// The message; `None`: of a kind that this version does not know.
    pub message: Option<T>,
    /// Fields at its top that this version does not know.
    pub unknown_fields: u32,
}

/// A frame that is no message: no JSON, no `kind`, or a known field of a wrong type.
#[derive(Debug, thiserror::Error)]
#[error("a frame that is no message: {0}")]
pub struct Malformed(#[from] serde_json::Error);

/// Why a message cannot be sent.
#[derive(Debug, thiserror::Error)]
pub enum Unsendable {
    /// It is no JSON.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// It is too large.
    #[error(transparent)]
    Frame(#[from] FrameError),
}

/// Counts the fields that nobody knows; for messages only, so that they need not be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Unknown(pub u32);

/// What every message has.
#[derive(Deserialize)]
struct Kind {
    kind: String,
}

/// Reads what a sidecar sent.
///
/// # Errors
/// It is no message.
pub fn read_up(json: &[u8]) -> Result<Read<Up>, Malformed> {
    match kind(json)?.as_str() {
        "Hello" => read(json, |hello: Box<Hello>| (hello.unknown.0, Up::Hello(hello))),
        "Report" => read(json, |report: Box<Report>| (report.unknown.0, Up::Report(report))),
        "Event" => read(json, |event: Event| (event.unknown.0, Up::Event(event))),
        _ => Ok(Read { message: None, unknown_fields: 0 }),
    }
}

/// Reads what a controller sent.
///
/// # Errors
/// It is no message.
pub fn read_down(json: &[u8]) -> Result<Read<Down>, Malformed> {
    match kind(json)?.as_str() {
        "Config" => read(json, |config: Box<Config>| (config.unknown.0, Down::Config(config))),
        "Bundle" => read(json, |bundle: Bundle| (bundle.unknown.0, Down::Bundle(bundle))),
        "Goaway" => read(json, |goaway: Goaway| (goaway.unknown.0, Down::Goaway(goaway))),
        "Ping" => read(json, |ping: Ping| (ping.unknown.0, Down::Ping(ping))),
        _ => Ok(Read { message: None, unknown_fields: 0 }),
    }
}

/// A message as the bytes of its frame: cheap to give to many.
///
/// # Errors
/// It does not fit into a frame.
pub fn frame(message: &impl Serialize) -> Result<Bytes, Unsendable> {
    Ok(frame::encode(&serde_json::to_vec(message)?)?)
}

fn kind(json: &[u8]) -> Result<String, Malformed> {
    Ok(serde_json::from_slice::<Kind>(json)?.kind)
}

fn read<'a, T: Deserialize<'a>, M>(json: &'a [u8], known: impl FnOnce(T) -> (u32, M)) -> Result<Read<M>, Malformed> {
    let (unknown_fields, message) = known(serde_json::from_slice(json)?);
    Ok(Read { message: Some(message), unknown_fields })
}

// === impl Unknown ===

impl Serialize for Unknown {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_map(Some(0))?.end()
    }
}

impl<'de> Deserialize<'de> for Unknown {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Counts;
        impl<'de> Visitor<'de> for Counts {
            type Value = Unknown;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Unknown, A::Error> {
                let mut count = 0_u32;
                while let Some((name, IgnoredAny)) = map.next_entry::<String, IgnoredAny>()? {
                    count = count.saturating_add(u32::from(name != "kind"));
                }
                Ok(Unknown(count))
            }
        }
        deserializer.deserialize_map(Counts)
    }
}

#[cfg(test)]
mod tests;
