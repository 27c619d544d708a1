//! Fuzz target for calls and answers of the Open Inference Protocol over gRPC.

use std::sync::Arc;

use bytes::Bytes;
use groupage::protocol::{BatchResponse, Call, DigestKey, Endpoint, RouteProtocol};
use http::header::{CONTENT_TYPE, HeaderMap};
use http::{StatusCode, Version};

use super::common::{ITEMS_MAX, path_endpoint};

const PATH: &str = "/inference.GRPCInferenceService/ModelInfer";
/// Number of bytes before a message.
const PREFIX: usize = 5;

/// Reads arbitrary bytes as a call, joins it with itself, and splits arbitrary bytes as the answer.
/// Asserts that a batch can be read as a call with the items of both members, and that either both
/// or none get a part of the answer.
///
/// The input is the length of a message in two bytes, that message, and one that answers two such
/// calls.
pub fn grpc_call(data: &[u8]) {
    let Some((length, rest)) = data.split_first_chunk::<2>() else { return };
    let Some((message, answer)) = rest.split_at_checked(usize::from(u16::from_be_bytes(*length))) else { return };
    let endpoint = path_endpoint(PATH, RouteProtocol::OpenInferenceV2, None).1;
    let call = read(&endpoint, framed(message));
    assert!(call.merge == read(&endpoint, framed(message)).merge, "the same bytes were read differently");
    if call.unbatched_reason().is_some() {
        return;
    }
    let sent = endpoint.write_batch(&[&call, &call], None);
    let items = call.items as usize * 2;
    if items <= ITEMS_MAX {
        let batch = read(&endpoint, sent.body.clone());
        assert_eq!(batch.unbatched_reason(), None, "a batch cannot be merged again");
        assert_eq!(batch.items as usize, items, "items were lost or duplicated");
    }
    let body = framed(answer);
    let shared = BatchResponse { status: StatusCode::OK, headers: &HeaderMap::new(), body: &body };
    let Ok(replies) = endpoint.split_batch(&[&call, &call], &sent, shared, None) else { return };
    assert_eq!(replies.len(), 2, "the number of answers differs from the number of members");
    for reply in replies {
        let length = reply.body.get(1..PREFIX).and_then(|length| length.try_into().ok()).map(u32::from_be_bytes);
        assert_eq!(length.map(|length| length as usize + PREFIX), Some(reply.body.len()), "a part is not one message");
    }
}

fn framed(message: &[u8]) -> Bytes {
    let length = u32::try_from(message.len()).expect("inputs of a fuzzer are small").to_be_bytes();
    Bytes::from([&[0], &length[..], message].concat())
}

fn read(endpoint: &Arc<Endpoint>, body: Bytes) -> Call {
    let request = http::Request::post(PATH).version(Version::HTTP_2).header(CONTENT_TYPE, "application/grpc");
    let head = request.body(()).expect("the head is valid").into_parts().0;
    endpoint.parse_call(&head, body, &DigestKey::from_bytes([7; 32]))
}
