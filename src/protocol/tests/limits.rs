//! Detection of "batch too large" errors.

use super::generic::TooLargeSign;
use super::*;

fn check(status: u16, body: &str, expected: Option<Option<u32>>) {
    let endpoint = endpoint("/v1/embeddings", RouteProtocol::OpenAi);
    let found = endpoint.detect_too_large(StatusCode::from_u16(status).unwrap(), body.as_bytes());
    assert_eq!(found.map(|found| found.limit), expected, "{body}");
}

#[test]
fn the_phrases_of_known_servers_name_their_limit() {
    check(
        422,
        r#"{"message":"batch size 5 > maximum allowed batch size 4","code":422,"type":"Validation"}"#,
        Some(Some(4)),
    );
    check(422, r#"{"error":"Number of prompts exceeds the maximum allowed batch size of 4"}"#, Some(Some(4)));
    check(
        422,
        r#"{"detail":[{"type":"too_long","loc":["body","input"],"msg":"List should have at most 2048 items after validation, not 2049","input":["a"]}]}"#,
        Some(Some(2048)),
    );
    check(400, r#"{"error":{"message":"prompt list length 1025 exceeds the maximum of 1024"}}"#, Some(Some(1024)));
    check(400, r#"{"error":"inference request batch-size must be <= 8 for 'm'"}"#, Some(Some(8)));
    check(
        400,
        r#"{"error":{"message":"Invalid 'input': array too long. Expected an array with maximum length 2048, but got an array with length 2049 instead."}}"#,
        Some(Some(2048)),
    );
    check(413, "length limit exceeded", Some(None));
    check(413, "batch size 5 > maximum allowed batch size 4", Some(Some(4)));
}

#[test]
fn another_error_is_not_a_limit() {
    check(
        422,
        r#"{"detail":[{"type":"string_too_long","msg":"String should have at most 1 characters","input":"de"}]}"#,
        None,
    );
    check(500, r#"{"error":"batch size 5 > maximum allowed batch size 4"}"#, None);
    check(422, r#"{"error":"`inputs` cannot be empty"}"#, None);
    check(400, r#"{"error":"maximum allowed batch size 0"}"#, Some(None));
}

#[test]
fn a_callers_echoed_input_cannot_name_a_limit() {
    check(422, r#"{"detail":[{"msg":"too short","input":"maximum allowed batch size 1"}]}"#, None);
    check(422, r#"{"input":["List should have at most 1 items"],"error":"no"}"#, None);
}

#[test]
fn declared_signs_of_a_too_large_batch_are_recognised() {
    let too_large = vec![
        TooLargeSign { status: 500, body_contains: Some("CUDA out of memory".to_owned()) },
        TooLargeSign { status: 507, body_contains: None },
    ];
    let declared = GenericOptions { too_large, ..texts() };
    let endpoint = endpoint_of(RouteRules { generic: Some(declared), ..rules("/e", RouteProtocol::Generic) }, "/e");
    let detected =
        |status: u16, body: &str| endpoint.detect_too_large(StatusCode::from_u16(status).unwrap(), body.as_bytes());
    assert_eq!(detected(500, "RuntimeError: CUDA out of memory. Tried"), Some(BatchTooLarge { limit: None }));
    assert_eq!(detected(500, "else"), None);
    assert_eq!(detected(507, ""), Some(BatchTooLarge { limit: None }));
}

#[test]
fn out_of_memory_is_recognised_in_the_errors_of_known_servers() {
    let endpoint = endpoint("/v1/embeddings", RouteProtocol::OpenAi);
    let is_out_of_memory =
        |status: u16, body: &str| endpoint.is_out_of_memory(StatusCode::from_u16(status).unwrap(), body.as_bytes());
    assert!(is_out_of_memory(500, "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB"));
    assert!(is_out_of_memory(500, r#"{"detail":"CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0)"}"#));
    assert!(is_out_of_memory(
        424,
        r#"{"error":"DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")","error_type":"Backend"}"#
    ));
    assert!(is_out_of_memory(503, r#"{"error":{"message":"torch.OutOfMemoryError"}}"#));
    assert!(is_out_of_memory(500, r#"{"error":"RESOURCE_EXHAUSTED: failed to allocate"}"#));
    assert!(!is_out_of_memory(500, r#"{"error":"division by zero"}"#));
    assert!(!is_out_of_memory(422, r#"{"error":"out of memory"}"#), "caused by the caller");
    assert!(
        !is_out_of_memory(500, r#"{"error":"bad input","input":"my cat is out of memory"}"#),
        "echoed input is no message"
    );
}

#[test]
fn a_text_beside_the_items_counts_against_the_limit_of_the_server() {
    let body = r#"{"error":"batch size 5 > maximum allowed batch size 4","error_type":"Validation"}"#;
    for (path, limit) in [("/similarity", 3), ("/rerank", 4), ("/predict", 4)] {
        let found =
            endpoint(path, RouteProtocol::Tei).detect_too_large(StatusCode::UNPROCESSABLE_ENTITY, body.as_bytes());
        assert_eq!(found.and_then(|found| found.limit), Some(limit), "{path}");
        let published = PublishedLimits { items_max: Some(4), ..PublishedLimits::default() };
        assert_eq!(endpoint(path, RouteProtocol::Tei).published_items_max(published), Some(limit), "{path}");
        assert_eq!(endpoint(path, RouteProtocol::Tei).published_items_max(PublishedLimits::default()), None);
    }
}
