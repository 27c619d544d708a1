use super::*;

#[test]
fn numbers_times_and_fixed_words_are_not_free_text() {
    for value in [
        "149984",
        "-1",
        "0.0234",
        "6m0s",
        "1h2m3.5s",
        "1.5ms",
        "100, 100;w=60",
        "2026-11-24T10:00:00Z",
        "2026-11-24T10:00:00.123456+01:00",
        "2020-10-01",
        "Tue, 24 Nov 2026 10:00:00 GMT",
        "true",
        "*",
        "gpu+optimized",
        "application/json",
    ] {
        assert!(!is_text(&HeaderValue::from_static(value)), "{value}");
    }
}

#[test]
fn any_other_text_may_quote_an_input() {
    for value in [
        "uvicorn",
        "Bearer realm=\"private\"",
        "private-0",
        "musum",
        "Tue, 24 Nov 2026 private-0 GM",
        "Tue, 24 Nov 2026 411111111 GMT",
        "4111 1111 1111 1111",
        "d.u.m",
        "12; private",
        "01 23 45 67 89",
        "24.12.90",
        "41-11-11-11-11-11-1",
        "9.9,9.8,9.7,9.6",
        "1, 2, 3",
        "5m, 6m",
        "9h41m11m11m",
        "2026-11-24T10:00:00.1234567890Z",
        "application/json; note=private",
    ] {
        assert!(is_text(&HeaderValue::from_static(value)), "{value}");
    }
}
