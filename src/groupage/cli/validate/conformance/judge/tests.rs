use std::sync::Arc;

use http::{HeaderMap, Method, Request};

use super::*;
use crate::app::build_route_table;
use crate::config::{self, MachineLimits, Overrides};
use crate::protocol::DigestKey;

const PATH: &str = "/g";

fn endpoint(generic: &str) -> Arc<Endpoint> {
    let text = format!("routes: [{{path: {PATH}, protocol: Generic, generic: {{items: /texts, {generic}}}}}]");
    let loaded = config::load(&text, "p").unwrap();
    let policy = config::build(Some(&loaded), &Overrides::default(), &MachineLimits::default()).unwrap();
    build_route_table(&policy).unwrap().routes.recognise(&Method::POST, PATH).unwrap()
}

fn answer(status: u16, body: &str) -> ServerAnswer {
    let body = Bytes::copy_from_slice(body.as_bytes());
    ServerAnswer { status: StatusCode::from_u16(status).unwrap(), headers: HeaderMap::new(), body }
}

/// Judges the answers of a server to a call sent alone and to its item twice.
fn judged(generic: &str, call: &str, unbatched: &str, merged: &ServerAnswer) -> RouteVerdict {
    let endpoint = endpoint(generic);
    let request = Request::post(PATH).header("content-type", "application/json").body(()).unwrap();
    let body = Bytes::copy_from_slice(call.as_bytes());
    let call = endpoint.parse_call(&request.into_parts().0, body, &DigestKey::random());
    assert_eq!(call.unbatched_reason(), None);
    let sent = endpoint.write_batch(&[&call, &call], None);
    judge_batch(&endpoint, [&call, &call], &sent, (merged, &answer(200, unbatched))).0
}

/// Judges in the same way, and returns the reason of a finding.
fn found(generic: &str, call: &str, unbatched: &str, merged: &str) -> Option<String> {
    match judged(generic, call, unbatched, &answer(200, merged)) {
        RouteVerdict::Fits => None,
        RouteVerdict::Wrong(reason) | RouteVerdict::Inconclusive(reason) => Some(reason),
    }
}

#[test]
fn a_wrong_declaration_of_a_bare_item_is_found_by_its_shape() {
    let bare = r#"{"texts":"a"}"#;
    let (wraps, plain) = (r#"{"v":[[3]]}"#, r#"{"v":[3]}"#);
    let merged = r#"{"v":[[3],[3]]}"#;
    let declared = |wrap: &str| format!("results: /v, single: {{wrapScalar: true}}, resultWrap: {wrap}");
    assert_eq!(found(&declared("List"), bare, wraps, merged), None);
    assert_eq!(found(&declared("None"), bare, plain, merged), None);
    for (wrap, unbatched) in [("None", wraps), ("List", plain)] {
        let reason = found(&declared(wrap), bare, unbatched, merged).unwrap();
        assert!(reason.contains("of a different shape: `/v/0` is"), "{wrap}: {reason}");
    }
}

#[test]
fn a_wrong_declaration_of_a_single_field_is_found_by_its_name() {
    let declared = "results: /v, single: {items: /text, results: /vector}";
    let merged = r#"{"v":[[3],[3]]}"#;
    let reason = found(declared, r#"{"text":"a"}"#, r#"{"v":[[3]]}"#, merged).unwrap();
    assert!(reason.contains("the answer has no `v` when merged"), "{reason}");
}

#[test]
fn an_answer_that_is_not_json_is_named_as_such() {
    let page = "<html>\u{1b}[1m";
    let reason = found("results: /v", r#"{"texts":["a"]}"#, r#"{"v":[1]}"#, page).unwrap();
    assert!(reason.contains("is not JSON") && reason.contains("`<html>\\u{1b}[1m`"), "{reason}");
    assert!(!reason.contains("respondWith"), "{reason}");
}

#[test]
fn every_undeclared_member_that_differs_is_named_up_to_a_maximum() {
    let merged = r#"{"v":[1,1],"model":"m","took":2,"at":"b"}"#;
    let unbatched = r#"{"v":[1],"model":"m","took":1,"at":"a"}"#;
    let reason = found("results: /v", r#"{"texts":["a"]}"#, unbatched, merged).unwrap();
    assert!(reason.contains("`/took`, `/at`:") && !reason.contains("/model"), "{reason}");
    let many: String = (0..12).map(|at| format!(",\"m{at}\":0")).collect();
    let reason = found("results: /v", r#"{"texts":["a"]}"#, r#"{"v":[1]}"#, &format!("{{\"v\":[1,1]{many}}}")).unwrap();
    assert!(reason.contains("`/m7` and 4 more:"), "{reason}");
}

#[test]
fn an_overloaded_server_is_no_finding_and_a_refusal_of_two_items_is() {
    let judged = |status| judged("results: /v", r#"{"texts":["a"]}"#, r#"{"v":[1]}"#, &answer(status, "{}"));
    assert!(matches!(judged(503), RouteVerdict::Inconclusive(_)));
    assert!(matches!(judged(422), RouteVerdict::Wrong(reason) if reason.contains("with 422")));
}

#[test]
fn a_declared_form_that_the_server_refuses_is_a_finding_if_it_accepts_another() {
    let endpoint = endpoint("results: /v");
    let judged = |status, other| {
        judge_refusal(&endpoint, "--sample FILE", CallForm::Bare, StatusCode::from_u16(status).unwrap(), other)
    };
    assert!(
        matches!(judged(422, true), RouteVerdict::Wrong(reason) if reason.contains("answers a bare item with 422"))
    );
    for (status, other) in [(422, false), (401, true), (503, true)] {
        assert!(matches!(judged(status, other), RouteVerdict::Inconclusive(_)), "{status}");
    }
}
