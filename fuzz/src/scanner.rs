//! Fuzz target for the JSON scanner. Its only entry point is a call, so the input is the list of
//! items of one.

use std::collections::BTreeMap;

use groupage::protocol::RouteProtocol;
use groupage::protocol::generic::{GenericOptions, ItemClass};
use serde_json::value::RawValue;

use super::common::{merge, pointer, read, way};

/// Merges arbitrary bytes as a list of items, and asserts that the batch has the same items, byte
/// for byte, as another parser finds in the call.
pub fn json_scanner(data: &[u8]) {
    let spec = GenericOptions {
        item_class: ItemClass::None,
        ..GenericOptions::new(vec![pointer("/items")], vec![pointer("/results")])
    };
    let way = way("/generic", RouteProtocol::Generic, Some(spec));
    // The unchanged input covers the text around items.
    read(&way, data);
    let body = [b"{\"items\":[", data, b"]}"].concat();
    let call = read(&way, &body);
    let Some(sent) = merge(&way, &call) else { return };
    let (alone, shared) = (items(&body), items(&sent.body));
    assert_eq!(alone.len(), call.items as usize, "both parsers count alike");
    let twice: Vec<&str> = alone.iter().chain(&alone).copied().collect();
    assert_eq!(shared, twice, "a batch holds everyone's items, in order, as they were spelled");
}

fn items(body: &[u8]) -> Vec<&str> {
    let fields: BTreeMap<&str, Vec<&RawValue>> =
        serde_json::from_slice(body).expect("merged, so it is an object of lists");
    fields.into_values().flatten().map(RawValue::get).collect()
}
