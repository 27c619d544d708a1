//! The configuration of a model over gRPC: method `ModelConfig`, which Triton has.

use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::{Method, Request, Version};

use super::frame::{self, MessageWriter};
use super::wire::{self, BadMessage, WireFields, WireType};
use crate::json::Span;
use crate::published::{NotJson, PublishedLimits};
use crate::v2::config::model_limits;

/// Path of the method.
pub(crate) const PATH: &str = "/inference.GRPCInferenceService/ModelConfig";

/// Fields of the request.
const NAME: u32 = 1;
const VERSION: u32 = 2;
/// Field of the response with the configuration.
const CONFIG: u32 = 1;
/// Fields of the configuration (`model_config.proto` of Triton).
const MAX_BATCH_SIZE: u32 = 4;
const DYNAMIC_BATCHING: u32 = 11;
const SEQUENCE_BATCHING: u32 = 13;
const TRANSACTION_POLICY: u32 = 19;
/// Field of a transaction policy.
const DECOUPLED: u32 = 1;

/// Returns the request for the configuration of a model.
pub(crate) fn request(model: &[u8], version: &[u8]) -> Request<Bytes> {
    let mut message = MessageWriter::with_capacity(model.len() + version.len() + 16);
    for (field, text) in [(NAME, model), (VERSION, version)] {
        if !text.is_empty() {
            wire::write_bytes(message.bytes(), field, text);
        }
    }
    let mut request = Request::new(message.finish());
    *request.method_mut() = Method::POST;
    *request.uri_mut() = http::Uri::from_static(PATH);
    *request.version_mut() = Version::HTTP_2;
    let headers = request.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(header::TE, HeaderValue::from_static("trailers"));
    request
}

/// Parses the response. Returns `None` if it has no configuration. A size that is not written is
/// zero, the default of its field.
///
/// # Errors
/// [`NotJson`] if the response is no message.
pub(crate) fn parse_response(body: &[u8]) -> Result<Option<PublishedLimits>, NotJson> {
    let message = frame::message(body).map_err(|_| NotJson)?;
    read(body, message).map_err(|_| NotJson)
}

fn read(doc: &[u8], message: Span) -> Result<Option<PublishedLimits>, BadMessage> {
    let mut config = None;
    for field in WireFields::new(doc, message) {
        let field = field?;
        if field.number == CONFIG && field.wire == WireType::Bytes {
            wire::set_once(&mut config, field.value)?;
        }
    }
    let Some(config) = config else { return Ok(None) };
    let (mut size, mut has_state, mut batches_itself) = (0, false, false);
    for field in WireFields::new(doc, config) {
        let field = field?;
        match (field.number, field.wire) {
            // A negative number is written as its two's complement.
            (MAX_BATCH_SIZE, WireType::Varint) => size = signed(varint(doc, field.value)?),
            (DYNAMIC_BATCHING, WireType::Bytes) => batches_itself = true,
            (SEQUENCE_BATCHING, WireType::Bytes) => has_state = true,
            (TRANSACTION_POLICY, WireType::Bytes) => {
                for field in WireFields::new(doc, field.value) {
                    let field = field?;
                    has_state |=
                        field.number == DECOUPLED && field.wire == WireType::Varint && varint(doc, field.value)? != 0;
                }
            }
            _ => {}
        }
    }
    Ok(Some(model_limits(if has_state { 0 } else { size }, batches_itself)))
}

fn varint(doc: &[u8], value: Span) -> Result<u64, BadMessage> {
    wire::read_varint(doc, value.start, value.end).map(|(value, _)| value)
}

const fn signed(value: u64) -> i64 {
    i64::from_le_bytes(value.to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the limits in a configuration with these fields.
    fn limits(config: &[u8]) -> Option<PublishedLimits> {
        let mut body = MessageWriter::with_capacity(0);
        wire::write_bytes(body.bytes(), CONFIG, config);
        parse_response(&body.finish()).unwrap()
    }

    #[test]
    fn the_maximum_of_a_model_is_parsed() {
        let items = |config: &[u8]| limits(config).unwrap().items_max;
        assert_eq!(items(b"\x0a\x01m\x20\x08\x2a\x00"), Some(8));
        assert_eq!(items(b"\x0a\x01m"), Some(1), "zero is not written");
        assert_eq!(items(b"\x20\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), Some(1));
        assert_eq!(items(b"\x20\x08\x6a\x00"), Some(1), "a sequence");
        assert_eq!(items(b"\x20\x08\x9a\x01\x02\x08\x01"), Some(1), "decoupled");
        assert_eq!(items(b"\x20\x08\x9a\x01\x02\x08\x00"), Some(8));
        let has_no_batch = |config: &[u8]| limits(config).unwrap().has_no_batch;
        assert!(has_no_batch(b"\x0a\x01m") && has_no_batch(b"\x20\x08\x6a\x00"));
        assert!(!has_no_batch(b"\x20\x01"));
        assert!(!limits(b"\x20\x08").unwrap().batches_itself);
        assert!(limits(b"\x20\x08\x5a\x00").unwrap().batches_itself);
        assert_eq!(parse_response(b"\0\0\0\0\0"), Ok(None));
        for body in [&b""[..], b"{}", b"\0\0\0\0\x01\x0a"] {
            assert_eq!(parse_response(body), Err(NotJson), "{body:?}");
        }
    }

    #[test]
    fn a_request_names_the_model_and_its_version() {
        let request = request(b"m", b"2");
        assert_eq!(request.body(), &b"\0\0\0\0\x06\x0a\x01m\x12\x012"[..]);
        assert_eq!((request.version(), request.uri().path()), (Version::HTTP_2, PATH));
    }
}
