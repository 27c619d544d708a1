//! Calls in each form of a single item.

use strum::VariantArray as _;

use super::super::generic::FlatList;
use super::*;

/// Returns the form of a call, and its bodies in all forms that the route accepts.
fn forms(endpoint: &Endpoint, body: &str) -> (Option<CallForm>, Vec<(CallForm, String)>) {
    let call = read(endpoint, "/g", body);
    let body = |form: &CallForm| {
        let body = endpoint.body_in_form(&call, *form, 0)?;
        Some((*form, String::from_utf8(body.to_vec()).unwrap()))
    };
    (endpoint.form_of(&call), CallForm::VARIANTS.iter().filter_map(body).collect())
}

fn generic(single: SingleItem) -> Arc<Endpoint> {
    let options = GenericOptions::new(vec![pointer("/in/texts")], vec![pointer("/v")]);
    endpoint_of(
        RouteRules { generic: Some(GenericOptions { single, ..options }), ..rules("/g", RouteProtocol::Generic) },
        "/g",
    )
}

#[test]
fn a_declared_form_is_written_from_any_other() {
    let all = generic(SingleItem { items: Some(pointer("/in/text")), wrap_scalar: true, ..SingleItem::default() });
    let expected = [
        (CallForm::List, r#"{"n":1,"in":{"texts":["a"]}}"#),
        (CallForm::Bare, r#"{"n":1,"in":{"texts":"a"}}"#),
        (CallForm::Single, r#"{"n":1,"in":{"text":"a"}}"#),
    ]
    .map(|(form, body)| (form, body.to_owned()));
    for (form, body) in &expected {
        assert_eq!(forms(&all, body), (Some(*form), expected.to_vec()), "{body}");
    }
    let (form, bodies) = forms(&all, r#"{"n":1,"in":{"texts":["a","b"]}}"#);
    assert_eq!((form, bodies), (Some(CallForm::List), expected.to_vec()), "the first of several items");
    let call = read(&all, "/g", r#"{"in":{"texts":["a","b"]}}"#);
    assert_eq!(all.body_in_form(&call, CallForm::Bare, 1).as_deref(), Some(&br#"{"in":{"texts":"b"}}"#[..]));
    assert_eq!(all.body_in_form(&call, CallForm::Bare, 2), None);
}

#[test]
fn a_form_that_is_not_declared_is_not_written() {
    let only = |body: &str| {
        let (_, bodies) = forms(&generic(SingleItem::default()), body);
        bodies.into_iter().map(|(form, _)| form).collect::<Vec<_>>()
    };
    assert_eq!(only(r#"{"in":{"texts":["a"]}}"#), [CallForm::List]);
    let bare = generic(SingleItem { wrap_scalar: true, ..SingleItem::default() });
    let (_, bodies) = forms(&bare, r#"{"in":{"texts":[[1,2]]}}"#);
    assert_eq!(bodies.len(), 1, "a bare list would be a list of items");
    let numbers = generic(SingleItem { item_is: FlatList::ArrayOfNumbers, ..SingleItem::default() });
    let (form, bodies) = forms(&numbers, r#"{"in":{"texts":[1,2]}}"#);
    assert_eq!(form, Some(CallForm::Bare));
    assert_eq!(bodies[0], (CallForm::List, r#"{"in":{"texts":[[1,2]]}}"#.to_owned()));
    assert_eq!(forms(&bare, r#"{"in":{}}"#), (None, Vec::new()));
}
