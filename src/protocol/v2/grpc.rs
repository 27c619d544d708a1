//! The Open Inference Protocol over gRPC: calls of `inference.GRPCInferenceService/ModelInfer`.
//!
//! The tensors are those of the REST form ([`super`]), in a message of Protocol Buffers: as raw
//! blobs, one for each tensor, or as typed lists. They are joined and cut as spans of the message,
//! which is read field by field ([`wire`]). Every other field is compared and sent as it is,
//! including those that are unknown here.
//!
//! Only unary calls with one uncompressed message are merged. Streams and all other methods are
//! passed through.

pub(crate) mod config;
pub(crate) mod division;
pub(crate) mod frame;
pub(crate) mod merge;
pub(crate) mod request;
pub(crate) mod split;
pub(crate) mod status;
pub(crate) mod tensor;
pub(crate) mod wire;

use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};

use crate::shape::{Payload, ProtocolShape};

/// Beginning of the paths of the service.
pub(crate) const SERVICE: &str = "/inference.GRPCInferenceService/";

/// Path of an inference call, and suffix of a path that a policy names.
pub(crate) const PATH: &str = "/inference.GRPCInferenceService/ModelInfer";

/// Coding of the messages of a call.
const ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");

/// Maximum size of a shared message: the limit of gRPC servers that configure no other one
/// (`GRPC_DEFAULT_MAX_RECV_MESSAGE_LENGTH` of gRPC Core, `defaultServerMaxReceiveMessageSize` of
/// grpc-go). Triton and OVMS accept more.
pub(crate) const MESSAGE_BYTES_MAX: usize = 4 << 20;

/// Returns the shape of a call. The positions of items and results are unused.
pub(crate) fn shape() -> ProtocolShape {
    ProtocolShape { payload: Payload::GrpcTensors, ..ProtocolShape::plain("/inputs", "/outputs") }
}

/// Returns `true` for the media type of gRPC with messages of Protocol Buffers.
pub(crate) fn is_content_type(value: &HeaderValue) -> bool {
    matches!(value.as_bytes(), b"application/grpc" | b"application/grpc+proto")
}

/// Returns `true` if the head announces compressed messages.
pub(crate) fn is_compressed(headers: &HeaderMap) -> bool {
    headers.get_all(ENCODING).iter().any(|value| value.as_bytes() != b"identity")
}

#[cfg(test)]
mod tests;
