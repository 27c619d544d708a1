//! Messages of the control stream, encoded as JSON in frames: `Hello`, `SidecarReport` and
//! `SidecarEvent` from the sidecar, `SidecarConfig`, `CaBundle`, `Goaway` and `Ping` from the
//! controller.
//!
//! Both ends may be one minor version apart. Unknown fields are ignored, messages of an unknown
//! kind are skipped, and both are counted; a missing field has a default that changes nothing.
//! Behaviour that requires support by the other end is negotiated by an entry in [`FEATURES`],
//! which the sidecar sends in `Hello` and the controller in a response header. A change that this
//! cannot express requires a path other than `/v1`.
//!
//! Framing is in `frame`. The handling of messages is left to the two ends.

mod to_sidecar;
mod to_controller;

use std::fmt;

use bytes::Bytes;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use self::to_controller::{
    AppliedConfig, CapturedPort, ClassCostReport, Hello, InfeasibleSlo, LearnedReport, LimiterSummary,
    MergingSuspension, OutcomeCounts, PodIdentity, PredictedReport, RouteReport, SidecarEvent, SidecarReport,
    UpstreamReport,
};
pub use self::to_sidecar::{
    CaBundle, ExperimentArm, Goaway, LimiterState, Ping, PushedCurve, SidecarConfig, StartValues, TunedSettings,
};
use super::frame::{self, StreamFrameError};

/// Path of the stream. The number is the major version of the protocol.
pub const PATH: &str = "/v1/stream";
/// Minor version of the protocol implemented here.
pub const MINOR: u32 = 0;
/// Response header of the controller that contains its protocol version, as `1.MINOR`.
pub const PROTOCOL_HEADER: &str = "x-groupage-protocol";
/// Response header of the controller that contains its features, separated by commas.
pub const FEATURES_HEADER: &str = "x-groupage-features";

/// `Ping` acknowledges reports and events. Without this feature they count as delivered once they
/// are written.
pub const ACKS: &str = "acks";
/// `SidecarConfig` may contain an `experiment`, which expires by itself.
pub const EXPERIMENT: &str = "experiment";
/// `SidecarConfig` may contain start values for a sidecar that has learned nothing yet.
pub const START: &str = "start";
/// Features that this version supports beyond minor version 0.
pub const FEATURES: [&str; 3] = [ACKS, EXPERIMENT, START];

/// A message from the sidecar to the controller.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind")]
pub enum SidecarMessage {
    /// Identity and state of the sidecar. It is the first message and is sent once per stream.
    Hello(Box<Hello>),
    /// Counts since the previous report.
    Report(Box<SidecarReport>),
    /// An occurrence to be published as a Kubernetes Event.
    Event(SidecarEvent),
}

/// A message from the controller to the sidecar.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind")]
pub enum ControllerMessage {
    /// Settings to apply.
    Config(Box<SidecarConfig>),
    /// CA certificates to trust from now on.
    Bundle(CaBundle),
    /// Request to open the stream elsewhere.
    Goaway(Goaway),
    /// Keep-alive, with the acknowledgement of reports and events.
    Ping(Ping),
}

/// Acknowledgement of reports and events. The numbers are scoped to one epoch of a sidecar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Acknowledgement {
    /// Epoch of the sidecar: the process that the numbers belong to.
    pub epoch: u64,
    /// Number of the last report received.
    pub report: u64,
    /// Number of the last event received.
    pub event: u64,
}

/// A decoded message.
#[derive(Debug, Clone, PartialEq)]
pub struct DecodedMessage<T> {
    /// The message, or `None` if its kind is unknown to this version.
    pub message: Option<T>,
    /// Number of top-level fields that are unknown to this version.
    pub unknown_fields: u32,
}

/// A frame that is not a valid message: invalid JSON, no `kind`, or a known field of the wrong
/// type.
#[derive(Debug, thiserror::Error)]
#[error("a frame is not a valid message: {0}")]
pub struct DecodeError(#[from] serde_json::Error);

/// An error that prevents a message from being sent.
#[derive(Debug, thiserror::Error)]
pub enum EncodeError {
    /// The message cannot be encoded as JSON.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// The message exceeds the maximum size of a frame.
    #[error(transparent)]
    Frame(#[from] StreamFrameError),
}

/// Number of unknown fields. Used with `serde(flatten)` at the top level of messages only; the
/// fields are counted and not stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UnknownFields(pub u32);

/// The field that every message has.
#[derive(Deserialize)]
struct MessageKind {
    kind: String,
}

/// Decodes a message from a sidecar.
///
/// # Errors
/// Returns an error if `json` is not a valid message.
pub fn decode_sidecar_message(json: &[u8]) -> Result<DecodedMessage<SidecarMessage>, DecodeError> {
    match message_kind(json)?.as_str() {
        "Hello" => decode(json, |hello: Box<Hello>| (hello.unknown.0, SidecarMessage::Hello(hello))),
        "Report" => decode(json, |report: Box<SidecarReport>| (report.unknown.0, SidecarMessage::Report(report))),
        "Event" => decode(json, |event: SidecarEvent| (event.unknown.0, SidecarMessage::Event(event))),
        _ => Ok(DecodedMessage { message: None, unknown_fields: 0 }),
    }
}

/// Decodes a message from a controller.
///
/// # Errors
/// Returns an error if `json` is not a valid message.
pub fn decode_controller_message(json: &[u8]) -> Result<DecodedMessage<ControllerMessage>, DecodeError> {
    match message_kind(json)?.as_str() {
        "Config" => decode(json, |config: Box<SidecarConfig>| (config.unknown.0, ControllerMessage::Config(config))),
        "Bundle" => decode(json, |bundle: CaBundle| (bundle.unknown.0, ControllerMessage::Bundle(bundle))),
        "Goaway" => decode(json, |goaway: Goaway| (goaway.unknown.0, ControllerMessage::Goaway(goaway))),
        "Ping" => decode(json, |ping: Ping| (ping.unknown.0, ControllerMessage::Ping(ping))),
        _ => Ok(DecodedMessage { message: None, unknown_fields: 0 }),
    }
}

/// Encodes a message as a frame. The returned bytes are cheap to clone for many receivers.
///
/// # Errors
/// Returns an error if the message does not fit into a frame.
pub fn encode_frame(message: &impl Serialize) -> Result<Bytes, EncodeError> {
    Ok(frame::encode(&serde_json::to_vec(message)?)?)
}

fn message_kind(json: &[u8]) -> Result<String, DecodeError> {
    Ok(serde_json::from_slice::<MessageKind>(json)?.kind)
}

fn decode<'a, T: Deserialize<'a>, M>(
    json: &'a [u8],
    known: impl FnOnce(T) -> (u32, M),
) -> Result<DecodedMessage<M>, DecodeError> {
    let (unknown_fields, message) = known(serde_json::from_slice(json)?);
    Ok(DecodedMessage { message: Some(message), unknown_fields })
}

// === impl UnknownFields ===

impl Serialize for UnknownFields {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_map(Some(0))?.end()
    }
}

impl<'de> Deserialize<'de> for UnknownFields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Counts;
        impl<'de> Visitor<'de> for Counts {
            type Value = UnknownFields;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<UnknownFields, A::Error> {
                let mut count = 0_u32;
                while let Some((name, IgnoredAny)) = map.next_entry::<String, IgnoredAny>()? {
                    count = count.saturating_add(u32::from(name != "kind"));
                }
                Ok(UnknownFields(count))
            }
        }
        deserializer.deserialize_map(Counts)
    }
}

#[cfg(test)]
mod tests;
