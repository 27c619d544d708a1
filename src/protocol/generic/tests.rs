use super::*;

fn pointer(text: &str) -> Pointer {
    Pointer::parse(text).unwrap()
}

fn spec() -> GenericOptions {
    GenericOptions::new(vec![pointer("/texts")], vec![pointer("/vectors")])
}

#[test]
fn conflicting_keys_are_reported() {
    assert_eq!(spec().clashes(), []);
    assert!(!GenericOptions { items: vec![pointer("")], ..spec() }.clashes().is_empty());
    assert!(!GenericOptions { items: vec![pointer("/a"), pointer("/a/b")], ..spec() }.clashes().is_empty());
    assert!(!GenericOptions { select: ResultOrder::Sorted, ..spec() }.clashes().is_empty());
    assert!(!GenericOptions { upstream_path: Some("embed".to_owned()), ..spec() }.clashes().is_empty());
    assert!(!GenericOptions { id: vec![pointer("/vectors/0")], ..spec() }.clashes().is_empty());
    let key = |spec: GenericOptions| spec.clashes().first().map(|clash| clash.key);
    for (items, expected) in [("/in/text", Some("single.items")), ("/texts", Some("single.items")), ("/text", None)] {
        let single = SingleItem { items: Some(pointer(items)), ..SingleItem::default() };
        assert_eq!(key(GenericOptions { single, ..spec() }), expected, "{items}");
    }
    let single = SingleItem { wrap_scalar: true, ..SingleItem::default() };
    assert_eq!(key(GenericOptions { single, result_key: Some(pointer("/id")), ..spec() }), Some("resultKey"));
    assert_eq!(key(GenericOptions { id: vec![pointer("/id"), pointer("/id")], ..spec() }), Some("id"));
    let totals = |at: &str| CounterSpec { totals: vec![pointer(at)], ..CounterSpec::default() };
    assert_eq!(key(GenericOptions { cost: totals("/vectors"), ..spec() }), Some("cost.totals"));
    assert_eq!(key(GenericOptions { cost: totals("/n"), id: vec![pointer("/n")], ..spec() }), Some("cost.totals"));
    assert_eq!(key(GenericOptions { cost: totals("/n"), id: vec![pointer("/id")], ..spec() }), None);
}
