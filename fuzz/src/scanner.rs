//! Fuzz target for the JSON scanner. Its only entry point is a call, so the input is the list of
//! items of one.

use std::collections::BTreeMap;

use groupage::protocol::RouteProtocol;
use groupage::protocol::generic::{GenericOptions, ItemClass};
use serde_json::value::RawValue;

use super::common::{merge, path_endpoint, pointer, read};

/// Merges arbitrary bytes as a list of items, and asserts that the batch has the same items, byte
/// for byte, as another parser finds in the call.
pub fn json_scanner(data: &[u8]) {
    let spec = GenericOptions {
        item_class: ItemClass::None,
        ..GenericOptions::new(vec![pointer("/items")], vec![pointer("/results")])
    };
    let endpoint = path_endpoint("/generic", RouteProtocol::Generic, Some(spec));
    // The unchanged input covers the text around items.
    read(&endpoint, data);
    let body = [b"{\"items\":[", data, b"]}"].concat();
    let call = read(&endpoint, &body);
    let Some(sent) = merge(&endpoint, &call) else { return };
    let (unbatched, shared) = (items(&body), items(&sent.body));
    assert_eq!(unbatched.len(), call.items as usize, "the parsers count different numbers of items");
    let twice: Vec<&str> = unbatched.iter().chain(&unbatched).copied().collect();
    assert_eq!(shared, twice, "a batch does not contain the items of its members, in order and unchanged");
}

fn items(body: &[u8]) -> Vec<&str> {
    let fields: BTreeMap<&str, Vec<&RawValue>> =
        serde_json::from_slice(body).expect("the call was merged, so it is an object of lists");
    fields.into_values().flatten().map(RawValue::get).collect()
}
