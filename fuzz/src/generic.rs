//! Fuzz target for the Generic adapter with arbitrary declarations.

use groupage::protocol::generic::{
    CostShare, CounterSpec, FlatList, GenericOptions, ItemClass, PerItemError, ResultOrder, ResultWrap, SingleItem,
};
use groupage::protocol::{Pointer, RouteProtocol};

use super::common::{merge, path_endpoint, read, split};

/// Merges and splits calls with an arbitrary declaration. No declaration causes a panic, and an
/// answer is given to both calls or to none.
///
/// The input has eight lines: pointers of items, of results, of single items and results, of the
/// index or the key, and of counters and ids; letters that enable options; a call; and an answer to
/// two such calls.
pub fn generic_spec(data: &[u8]) {
    let mut lines = data.splitn(8, |byte| *byte == b'\n');
    let mut line = || lines.next().unwrap_or_default();
    let Some(spec) = spec(line(), line(), line(), line(), line(), line()) else { return };
    if !spec.clashes().is_empty() {
        return;
    }
    let (call, answer) = (line(), line());
    let endpoint = path_endpoint("/generic", RouteProtocol::Generic, Some(spec));
    let call = read(&endpoint, call);
    if let Some(sent) = merge(&endpoint, &call) {
        split(&endpoint, &call, &sent, answer);
    }
}

fn spec(
    items: &[u8],
    results: &[u8],
    single: &[u8],
    index: &[u8],
    counters: &[u8],
    letters: &[u8],
) -> Option<GenericOptions> {
    let has = |letter: u8| letters.contains(&letter);
    let (single, index, counters) = (pointers(single)?, pointers(index)?, pointers(counters)?);
    let first = index.first().cloned();
    Some(GenericOptions {
        upstream_path: has(b'u').then(|| "/batch".to_owned()),
        single: SingleItem {
            items: single.first().cloned(),
            results: single.get(1).cloned(),
            wrap_scalar: has(b'w'),
            item_is: if has(b'n') { FlatList::ArrayOfNumbers } else { FlatList::Element },
        },
        item_class: match (has(b't'), has(b'a')) {
            (true, _) => ItemClass::Text,
            (_, true) => ItemClass::None,
            _ => ItemClass::Strict,
        },
        index: first.clone().filter(|_| !has(b'k')),
        result_key: first.filter(|_| has(b'k')),
        result_wrap: if has(b'l') { ResultWrap::List } else { ResultWrap::None },
        select: if has(b's') { ResultOrder::Sorted } else { ResultOrder::None },
        per_item_error: index.get(1).cloned().map(|field| PerItemError { field, status: 422 }),
        id: counters.get(1..).unwrap_or_default().to_vec(),
        cost: CounterSpec {
            totals: counters.first().cloned().into_iter().collect(),
            share: match (has(b'e'), has(b'd')) {
                (true, _) => CostShare::Exact,
                (_, true) => CostShare::Drop,
                _ => CostShare::Proportional,
            },
            ..CounterSpec::default()
        },
        lenient_numbers: false,
        ..GenericOptions::new(pointers(items)?, pointers(results)?)
    })
}

/// Parses pointers between spaces; `.` is the empty pointer.
fn pointers(line: &[u8]) -> Option<Vec<Pointer>> {
    let words = std::str::from_utf8(line).ok()?.split(' ').filter(|word| !word.is_empty());
    words.map(|word| Pointer::parse(if word == "." { "" } else { word }).ok()).collect()
}
