use super::*;
use crate::tests::headers_of;

fn class_of(name: &'static str) -> HeaderClass {
    classify(&HeaderName::from_static(name))
}

#[test]
fn headers_fall_into_the_classes_of_the_reference() {
    for name in ["authorization", "cookie", "x-amz-date", "x-auth-request-user", "x-tenant-id", "openai-project"] {
        assert_eq!(class_of(name), HeaderClass::Identity, "{name}");
    }
    for name in ["x-acme-mode", "accept-language", "origin", "x-vllm-priority", "x_tenant", "x-amzn-sagemaker-x"] {
        assert_eq!(class_of(name), HeaderClass::Behaviour, "{name}");
    }
    for name in
        ["traceparent", "x-b3-traceid", "x-datadog-origin", "x-amz-cf-id", "x-amzn-trace-id", "x-groupage-debug"]
    {
        assert_eq!(class_of(name), HeaderClass::Ignored, "{name}");
    }
    for name in ["idempotency-key", "if-match", "range", "upgrade", "ce-id", "content-encoding", "content-md5"] {
        assert_eq!(class_of(name), HeaderClass::Unbatched, "{name}");
    }
    assert_eq!(class_of("te"), HeaderClass::HopByHop);
}

#[test]
fn every_name_of_a_list_is_of_its_class_and_of_no_other() {
    for (names, class) in &CLASSES {
        for name in names.exact {
            assert_eq!(class_of(name), *class, "{name}");
        }
        for prefix in names.prefixes {
            let name = HeaderName::from_bytes(format!("{prefix}z9").as_bytes()).unwrap();
            assert_eq!(classify(&name), *class, "{prefix}");
        }
    }
    let mut exact: Vec<_> = EXACT.iter().flatten().map(|(name, _)| *name).collect();
    exact.sort_unstable();
    assert!(exact.is_sorted_by(|one, other| one < other), "a name is in two lists");
}

#[test]
fn nominated_headers_are_removed_except_framing_host_and_identity() {
    let mut headers = headers_of(&[
        ("connection", "x-hop, content-length, host, Authorization, keep-alive"),
        ("x-hop", "1"),
        ("content-length", "3"),
        ("host", "h"),
        ("authorization", "k"),
        ("keep-alive", "5"),
        ("http2-settings", "AAMAAABkAAQAAP__"),
        ("upgrade", "h2c"),
        ("trailer", "x-sum"),
        ("te", "gzip, trailers"),
        ("x-kept", "1"),
    ]);
    strip_hop_by_hop(&mut headers);
    let mut names: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
    names.sort_unstable();
    assert_eq!(names, ["authorization", "content-length", "host", "te", "trailer", "x-kept"]);
    assert_eq!(headers["te"], "trailers");
}

#[test]
fn a_content_length_beside_a_transfer_encoding_is_removed() {
    let mut headers = headers_of(&[("content-length", "5"), ("transfer-encoding", "chunked")]);
    strip_hop_by_hop(&mut headers);
    assert!(headers.is_empty());
}

#[test]
fn a_coding_besides_chunked_keeps_its_label() {
    let mut headers = headers_of(&[("transfer-encoding", "gzip, chunked")]);
    strip_hop_by_hop(&mut headers);
    assert_eq!(headers["transfer-encoding"], "gzip, chunked");
}

#[test]
fn the_earliest_timeout_applies_and_invalid_ones_are_ignored() {
    let own = [HeaderName::from_static("x-request-timeout-ms")];
    let left = |headers: &[(&str, &str)]| parse_timeout(&headers_of(headers), &own).map(|(left, _)| left);
    let ms = Duration::from_millis;
    assert_eq!(left(&[("grpc-timeout", "2S"), ("x-request-timeout-ms", "1500")]), Some(ms(1500)));
    assert_eq!(left(&[("grpc-timeout", "100u")]), Some(Duration::from_micros(100)));
    assert_eq!(left(&[("grpc-timeout", "250m"), ("grpc-timeout", "9H")]), Some(ms(250)));
    for bad in ["", "S", "1", "123456789S", "-1S", "1.5S", "1s"] {
        assert_eq!(left(&[("grpc-timeout", bad)]), None, "{bad}");
    }
    assert_eq!(format_deadline(&GRPC_TIMEOUT, 250), "250m");
    assert_eq!(format_deadline(&GRPC_TIMEOUT, 100_000_000), "100000S");
    assert_eq!(format_deadline(&own[0], 250), "250");
}
