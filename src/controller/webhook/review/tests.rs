use proptest::prelude::*;
use serde_json::json;

use super::*;

#[expect(clippy::needless_pass_by_value, reason = "callers build the value in place")]
fn question(request: Value) -> Result<AdmissionRequest, ReviewError> {
    decode(json!({"apiVersion": API_VERSION, "kind": KIND, "request": request}).to_string().as_bytes())
}

#[test]
fn a_created_pod_keeps_its_unknown_fields() {
    let pod = json!({"metadata": {"name": "p", "later": [1]}, "spec": {"newer": {"deep": 0.1}}, "another": null});
    let request = json!({
        "uid": "u", "resource": {"group": "", "version": "v1", "resource": "pods"}, "operation": "CREATE", "namespace": "n",
        "object": pod, "dryRun": true, "userInfo": {"username": "x"}, "unheardOf": 1,
    });
    let question = question(request).unwrap();
    assert_eq!(
        question,
        AdmissionRequest { uid: "u".into(), makes_pod: true, namespace: "n".into(), pod, dry_run: true }
    );
}

#[test]
fn only_the_creation_of_a_pod_is_recognised_as_such() {
    let base = json!({"uid": "u", "resource": {"group": "", "version": "v1", "resource": "pods"}, "operation": "CREATE", "object": {}});
    assert!(question(base.clone()).unwrap().makes_pod);
    for (key, value) in [
        ("operation", json!("UPDATE")),
        ("subResource", json!("status")),
        ("resource", json!({"group": "apps", "resource": "pods"})),
        ("resource", json!({"group": "", "resource": "services"})),
        ("object", json!(null)),
        ("object", json!([1])),
    ] {
        let mut request = base.clone();
        request[key] = value;
        assert!(!question(request).unwrap().makes_pod, "{key}");
    }
}

#[test]
fn an_invalid_review_is_refused_with_a_reason() {
    assert!(matches!(decode(b""), Err(ReviewError::NoReview(_))));
    assert!(matches!(decode(b"{}"), Err(ReviewError::NoReview(_))));
    assert!(matches!(question(json!({"uid": ""})), Err(ReviewError::NoUid)));
    assert!(matches!(question(json!({"uid": "u".repeat(300)})), Err(ReviewError::NoUid)));
    let old = json!({"apiVersion": "admission.k8s.io/v1beta1", "kind": KIND, "request": {"uid": "u"}});
    assert!(matches!(decode(old.to_string().as_bytes()), Err(ReviewError::OtherVersion(_))));
    let deep = format!(
        "{{\"apiVersion\":\"{API_VERSION}\",\"kind\":\"{KIND}\",\"request\":{{\"uid\":\"u\",\"object\":{}{}}}}}",
        "[".repeat(200),
        "]".repeat(200)
    );
    assert!(matches!(decode(deep.as_bytes()), Err(ReviewError::NoReview(_))), "nesting has a bound");
}

#[test]
fn an_answer_contains_the_uid_and_allows_the_pod() {
    let patch: json_patch::Patch = serde_json::from_value(json!([{"op": "add", "path": "/a", "value": 1}])).unwrap();
    let bytes =
        encode("u", Some(patch), &["mind this".to_owned()], [("outcome", "injected".to_owned())].into()).unwrap();
    let review: Value = serde_json::from_slice(&bytes).unwrap();
    let response = &review["response"];
    assert_eq!((&review["apiVersion"], &review["kind"]), (&json!(API_VERSION), &json!(KIND)));
    assert_eq!((&response["uid"], &response["allowed"]), (&json!("u"), &json!(true)));
    assert_eq!(response["patchType"], "JSONPatch");
    assert_eq!(response["warnings"], json!(["groupage: mind this"]));
    assert_eq!(response["auditAnnotations"], json!({"outcome": "injected"}));
    let patch: Vec<u8> = serde_json::from_value(response["patch"].clone()).unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&patch).unwrap()[0]["op"], "add");
}

#[test]
fn a_long_warning_is_split_at_words_and_a_longer_one_is_truncated() {
    let sentence = "word ".repeat(40);
    let pieces = to_warnings(std::slice::from_ref(&sentence));
    assert_eq!(pieces.len(), 2);
    let words = pieces.iter().flat_map(|piece| piece.split(' ')).filter(|word| *word == "word").count();
    assert_eq!(words, 40);
    assert!(to_warnings(&[sentence.repeat(9)]).last().unwrap().ends_with(" ..."));
}

/// Returns a review of a pod that is created.
fn review_text(uid: &str, namespace: &str, dry_run: bool) -> String {
    let request = json!({
        "uid": uid, "resource": {"group": "", "version": "v1", "resource": "pods"}, "operation": "CREATE",
        "namespace": namespace, "object": {"metadata": {"name": "p"}}, "dryRun": dry_run,
    });
    json!({"apiVersion": API_VERSION, "kind": KIND, "request": request}).to_string()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn warnings_of_any_text_fit_the_limits(sentences in prop::collection::vec("\\PC{0,400}|[a-z\\n\\r\\t]{0,400}", 0..60)) {
        let warnings = to_warnings(&sentences);
        prop_assert!(warnings.iter().all(|warning| warning.chars().count() <= WARNING_CHARS_MAX), "{warnings:?}");
        prop_assert!(warnings.iter().all(|warning| !warning.chars().any(char::is_control)));
        prop_assert!(warnings.iter().map(String::len).sum::<usize>() <= WARNINGS_BYTES_MAX + WARNING_CHARS_MAX);
        prop_assert_eq!(warnings.is_empty(), sentences.is_empty());
    }

    #[test]
    fn random_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(decode(&bytes).is_err(), "two hundred bytes at random are no review");
    }

    #[test]
    fn a_review_with_up_to_two_changed_bytes_is_refused_or_decoded_like_its_json(
        uid in "[a-z0-9-]{1,40}",
        namespace in "[a-z]{1,8}",
        dry_run in any::<bool>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
    ) {
        let mut bytes = review_text(&uid, &namespace, dry_run).into_bytes();
        for (at, byte) in &changes {
            let at = at.index(bytes.len());
            bytes[at] = *byte;
        }
        let decoded = decode(&bytes);
        if changes.is_empty() {
            let pod = json!({"metadata": {"name": "p"}});
            let expected = AdmissionRequest { uid, makes_pod: true, namespace, pod, dry_run };
            prop_assert_eq!(decoded.as_ref().ok(), Some(&expected));
        }
        // A field that is not used may have invalid UTF-8, which no JSON has.
        if let (Ok(decoded), Ok(json)) = (decoded, serde_json::from_slice::<Value>(&bytes)) {
            let request = &json["request"];
            prop_assert!(json["apiVersion"] == API_VERSION && json["kind"] == KIND, "{json}");
            prop_assert_eq!(request["uid"].as_str(), Some(decoded.uid.as_str()));
            prop_assert_eq!(request["namespace"].as_str().unwrap_or_default(), decoded.namespace.as_str());
            prop_assert_eq!(request["dryRun"].as_bool().unwrap_or_default(), decoded.dry_run);
            prop_assert!(!decoded.makes_pod || request["operation"] == "CREATE" && decoded.pod.is_object(), "{json}");
            prop_assert_eq!(&request["object"], &decoded.pod);
        }
    }
}
