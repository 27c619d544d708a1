//! Conversion of the single values of a specification to their types in the effective policy.
//!
//! Every default is filled in before. In a valid file, a value that is absent or cannot be
//! converted is therefore a defect of the schema, which is reported with the key.

use std::time::Duration;

use http::HeaderName;

use super::text;
use super::units::{Share, parse_duration, parse_share, parse_size};
use crate::api::v1alpha1::{DurationText, OpenEnum, Protocol, ShareText, SizeText};
use crate::protocol::{Pointer, RouteProtocol};

/// A key that the schema does not fill in. This is a defect of the table, which a test detects.
#[derive(Debug, Clone, Copy)]
pub(super) struct MissingDefault(pub(super) &'static str);

/// A converted value, or the key that has none.
pub(super) type ValueResult<T> = Result<T, MissingDefault>;

/// Returns a value that must be present.
pub(super) fn require<T>(value: Option<T>, key: &'static str) -> ValueResult<T> {
    value.ok_or(MissingDefault(key))
}

/// Returns the known word of an enumeration.
pub(super) fn word<T: Copy>(spec: Option<&OpenEnum<T>>, key: &'static str) -> ValueResult<T> {
    spec.and_then(OpenEnum::as_known).ok_or(MissingDefault(key))
}

/// Parses JSON Pointers.
pub(super) fn pointers(texts: Option<&Vec<String>>, key: &'static str) -> ValueResult<Vec<Pointer>> {
    texts.into_iter().flatten().map(|text| Pointer::parse(text).map_err(|_| MissingDefault(key))).collect()
}

/// Parses a duration.
pub(super) fn time(text: Option<&DurationText>, key: &'static str) -> ValueResult<Duration> {
    text.and_then(|text| parse_duration(&text.0)).ok_or(MissingDefault(key))
}

pub(super) fn share(text: Option<&ShareText>, key: &'static str) -> ValueResult<Share> {
    text.and_then(|text| parse_share(&text.0)).ok_or(MissingDefault(key))
}

/// Converts a size to a number of bytes.
pub(super) fn size(text: Option<&SizeText>, key: &'static str) -> ValueResult<usize> {
    let bytes = match require(text, key)? {
        SizeText::Bytes(bytes) => Some(*bytes),
        SizeText::Text(text) => parse_size(text),
    };
    narrow(require(bytes, key)?, key)
}

pub(super) fn headers(names: Option<&Vec<String>>) -> ValueResult<Vec<HeaderName>> {
    names.into_iter().flatten().map(|name| text::parse_header_name(name).ok_or(MissingDefault("headers"))).collect()
}

/// Converts a number to the width of this machine.
pub(super) fn narrow(number: impl TryInto<usize>, key: &'static str) -> ValueResult<usize> {
    number.try_into().map_err(|_| MissingDefault(key))
}

/// Returns the adapter for a protocol.
pub(super) const fn to_route_protocol(protocol: Protocol) -> RouteProtocol {
    match protocol {
        Protocol::Auto => RouteProtocol::Auto,
        Protocol::PassThrough => RouteProtocol::PassThrough,
        Protocol::Generic => RouteProtocol::Generic,
        Protocol::KServeV1 => RouteProtocol::KServeV1,
        Protocol::OpenInferenceV2 => RouteProtocol::OpenInferenceV2,
        Protocol::TFServing => RouteProtocol::TfServing,
        Protocol::OpenAI => RouteProtocol::OpenAi,
        Protocol::TEI => RouteProtocol::Tei,
        Protocol::VLLM => RouteProtocol::Vllm,
        Protocol::SGLang => RouteProtocol::SgLang,
        Protocol::Infinity => RouteProtocol::Infinity,
        Protocol::Ollama => RouteProtocol::Ollama,
        Protocol::Voyage => RouteProtocol::Voyage,
        Protocol::Jina => RouteProtocol::Jina,
        Protocol::LlamaCpp => RouteProtocol::LlamaCpp,
        Protocol::Cohere => RouteProtocol::Cohere,
        Protocol::MLflow => RouteProtocol::MlFlow,
        Protocol::Seldon => RouteProtocol::Seldon,
        Protocol::SageMaker => RouteProtocol::SageMaker,
        Protocol::BentoML => RouteProtocol::BentoMl,
        Protocol::TGI => RouteProtocol::Tgi,
    }
}
