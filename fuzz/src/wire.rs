//! Fuzz targets for calls and answers of every adapter.

use groupage::protocol::ProtocolLabel;
use serde_json::value::RawValue;

use super::common::{ITEMS_MAX, merge, path_endpoints, read, split};

/// Reads arbitrary bytes as a call of every adapter, and asserts that a merged batch is JSON and
/// can be read as a call with the items of all members.
pub fn read_call(data: &[u8]) {
    for endpoint in path_endpoints() {
        let call = read(&endpoint, data);
        let Some(sent) = merge(&endpoint, &call) else { continue };
        let items = call.items as usize * 2;
        if items <= ITEMS_MAX && sent.body.len() <= 1 << 20 {
            let batch = read(&endpoint, &sent.body);
            assert_eq!(batch.unbatched_reason(), None, "{}: a batch cannot be merged again", endpoint.1.label.as_str());
            assert_eq!(batch.items as usize, items, "{}: items were lost or duplicated", endpoint.1.label.as_str());
        }
    }
}

/// Splits an answer between two calls, and asserts that either both or none get their part. If an
/// answer consists of results alone, none of them is lost or duplicated.
///
/// The input is a call, a line feed, and an answer to two such calls.
pub fn split_batch(data: &[u8]) {
    let mut halves = data.splitn(2, |byte| *byte == b'\n');
    let (body, answer) = (halves.next().unwrap_or_default(), halves.next().unwrap_or_default());
    for endpoint in path_endpoints() {
        let call = read(&endpoint, body);
        let Some(sent) = merge(&endpoint, &call) else { continue };
        let Some(replies) = split(&endpoint, &call, &sent, answer) else { continue };
        // `/predict` answers a single text without a list, and `/rerank` has indexes in its results.
        let is_list = !["/predict", "/rerank"].contains(&endpoint.0);
        if endpoint.1.label == ProtocolLabel::Tei && is_list {
            let whole = elements(answer);
            let parts: Vec<&str> = replies.iter().flat_map(|reply| elements(&reply.body)).collect();
            assert_eq!(parts, whole, "the parts differ from the whole answer");
        }
    }
}

fn elements(list: &[u8]) -> Vec<&str> {
    let list: Vec<&RawValue> = serde_json::from_slice(list).expect("the answer was split, so it is a list");
    list.into_iter().map(RawValue::get).collect()
}
