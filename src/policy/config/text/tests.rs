use std::collections::BTreeMap;
use std::sync::Mutex;

use proptest::prelude::*;

use super::*;

fn accepts(rule: &TextRule, texts: &[&str]) {
    for text in texts {
        assert_eq!(rule.validate(text), Ok(()), "{text}");
    }
}

fn refuses(rule: &TextRule, texts: &[&str]) {
    for text in texts {
        assert!(rule.validate(text).is_err(), "{text}");
    }
}

#[test]
fn a_route_is_a_path_or_a_prefix() {
    accepts(&ROUTE_PATH, &["/", "/*", "/v1/embeddings", "/v1/*", "/v1/models/m:predict", "/a%20b"]);
    refuses(&ROUTE_PATH, &["", "v1", "*", "/v1*", "/*/x", "/v1/**", "/a b", "/a?b", "/a#b", "/é"]);
}

#[test]
fn a_pointer_escapes_its_tildes() {
    accepts(&POINTER, &["", "/", "/a", "/a/0/b", "/a~0b~1c"]);
    refuses(&POINTER, &["a", "a/b", "/a~", "/a~2", "$.a"]);
}

#[test]
fn an_address_may_leave_out_the_host() {
    assert_eq!(parse_address(":15080"), Some(([0, 0, 0, 0], 15080).into()));
    assert_eq!(parse_address("[::]:80").map(|address| address.is_ipv6()), Some(true));
    accepts(&ADDRESS, &["127.0.0.1:0", "localhost:1", "[::1]:8080"]);
    refuses(&ADDRESS, &["", ":", ":65536", ":-1", ":+1", "8080", "host:80", "127.0.0.1", "off"]);
    accepts(&LOCAL_OR_OFF, &["off", "127.0.0.1:0", "[::1]:1"]);
    refuses(&LOCAL_OR_OFF, &["0.0.0.0:9191", ":9191", "no", "Off"]);
}

#[test]
fn an_upstream_is_a_bare_host_or_a_socket() {
    let tcp = |host: &str, port, authority: &str, tls| {
        Ok(UpstreamAddress::Http { host: host.to_owned(), port, authority: authority.to_owned(), tls })
    };
    let http = |host: &str, port, authority: &str| tcp(host, port, authority, false);
    assert_eq!(parse_upstream("http://127.0.0.1:8080"), http("127.0.0.1", 8080, "127.0.0.1:8080"));
    assert_eq!(parse_upstream("http://model/"), http("model", 80, "model"));
    assert_eq!(parse_upstream("http://[::1]:81"), http("::1", 81, "[::1]:81"));
    assert_eq!(parse_upstream("unix:/run/m.sock"), Ok(UpstreamAddress::Unix("/run/m.sock".into())));
    assert_eq!(parse_upstream("unix:///run/m.sock"), Ok(UpstreamAddress::Unix("/run/m.sock".into())));
    refuses(
        &UPSTREAM,
        &[
            "",
            "http://",
            "http:///x",
            "http://h:0",
            "http://h:",
            "http://h:70000",
            "http://h/v1",
            "http://u:p@h",
            "unix:x",
            "unix:",
            "ftp://h",
            "127.0.0.1:8080",
            "http://a b",
            "https://",
            "https://h/v1",
        ],
    );
    assert_eq!(parse_upstream("https://h"), tcp("h", 443, "h", true));
    assert_eq!(parse_upstream("https://[::1]:8443/"), tcp("::1", 8443, "[::1]:8443", true));
}

#[test]
fn a_misspelt_level_is_not_a_target() {
    accepts(&LEVEL, &["info", "INFO", "off", "debug,hyper=warn", "groupage_proxy=trace", "info,h2=off", "3"]);
    refuses(&LEVEL, &["", "inof", "debgu", "groupage=loud", "warning", "info,trcae", "verbose", "none", "trace$X"]);
}

#[test]
fn header_names_and_methods_are_tokens() {
    accepts(&HEADER, &["x-a", "X-A", "authorization"]);
    refuses(&HEADER, &["", "x a", "x:", "é"]);
    accepts(&METHOD, &["POST", "GET", "M-SEARCH"]);
    refuses(&METHOD, &["", "post", "P OST"]);
}

/// Rules with an exact pattern.
const EXACT_RULES: [&TextRule; 13] = [
    &ANY,
    &NAME,
    &FILE,
    &ROUTE_PATH,
    &PATH,
    &METHOD,
    &HEADER,
    &POINTER,
    &FIELD,
    &WEIGHT,
    &RESULT_WEIGHT,
    &CAPTURED_PORT,
    &APP_LISTEN,
];
/// Rules with a pattern that accepts more texts than the rule.
const APPROXIMATE_RULES: [&TextRule; 6] = [&ADDRESS, &ADDRESS_OR_OFF, &LOCAL_OR_OFF, &UPSTREAM, &LEVEL, &DEVICE_MEMORY];

fn matches(rule: &TextRule, text: &str) -> bool {
    /// The compiled patterns. To compile a long one for each text would take most of the time.
    static COMPILED: Mutex<BTreeMap<&'static str, regex::Regex>> = Mutex::new(BTreeMap::new());
    let mut compiled = COMPILED.lock().unwrap();
    let pattern = compiled.entry(rule.pattern).or_insert_with(|| regex::Regex::new(rule.pattern).unwrap());
    text.chars().count() <= rule.chars_max && pattern.is_match(text)
}

fn nearly_a_text() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        "/|\\*|~|~0|~1|%|:|\\[|\\]|@|=|,|-|_|\\.| |\n|\u{a0}|\u{85}|\u{2028}|\u{200b}|\u{7f}|é|\u{0}",
        "[a-z]{1,4}",
        "[A-Z]{1,4}",
        "[0-9]{1,6}",
        "Items|Bytes|Chars|ListLen|off|info|localhost|127\\.0\\.0\\.1|::1|http://|https://|unix:|env:HOST=|arg:--port |Mi|m|65535|65536",
        "\\PC",
    ];
    prop::collection::vec(part, 0..6).prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3_000))]

    #[test]
    fn patterns_match_the_texts_that_their_rules_accept(text in nearly_a_text()) {
        for rule in EXACT_RULES {
            prop_assert_eq!(matches(rule, &text), rule.validate(&text).is_ok(), "{}: {:?}", rule.allowed, text);
        }
        for rule in APPROXIMATE_RULES {
            prop_assert!(matches(rule, &text) || rule.validate(&text).is_err(), "{}: {:?}", rule.allowed, text);
        }
    }
}

#[test]
fn a_text_is_at_most_as_long_as_its_rule_allows() {
    for (rule, unit) in [(&NAME, "é"), (&HEADER, "x"), (&POINTER, "/"), (&METHOD, "A"), (&ANY, "é")] {
        let (fits, over) = (unit.repeat(rule.chars_max), unit.repeat(rule.chars_max + 1));
        assert!(rule.validate(&fits).is_ok() && matches(rule, &fits), "{}", rule.allowed);
        assert!(rule.validate(&over).is_err() && !matches(rule, &over), "{}", rule.allowed);
    }
}

#[test]
fn approximate_rules_refuse_clearly_wrong_texts() {
    for rule in APPROXIMATE_RULES.iter().filter(|rule| rule.allowed != LEVEL.allowed) {
        for text in ["", "x", "yes", "[", "/x y", "::"] {
            assert!(!matches(rule, text), "{}: {text}", rule.allowed);
        }
    }
}

#[test]
fn ports_and_ways_to_listen_are_read_as_kubernetes_does() {
    accepts(&CAPTURED_PORT, &["1", "65535", "http", "h2-c", "0080"]);
    refuses(&CAPTURED_PORT, &["", "0", "65536", "99999999999", "+80", "HTTP", "a_b", "sixteen-letters-"]);
    accepts(&APP_LISTEN, &["env:MLSERVER_HOST=127.0.0.1", "env:UVICORN_PORT=9000", "arg:--host=127.0.0.1"]);
    accepts(
        &APP_LISTEN,
        &["arg:--http-host=::1,arg:--grpc-host ::1, env:HOST=localhost", "a/env:HOST=::1,arg:-bind=::1"],
    );
    refuses(
        &APP_LISTEN,
        &[" arg:--host=::1", "arg:--host=::1,\u{85}arg:--bind=::1", "arg:--host=::1 --grpc=::1", "env:HOST=::1,arg:"],
    );
    refuses(&APP_LISTEN, &["", "env:", "env:=::1", "env:HOST", "arg:", "MLSERVER_HOST=::1", "Server/env:HOST=::1"]);
    refuses(&APP_LISTEN, &["a/env:HOST=::1,c/env:HOST=::1", "env:HOST=\n", "env:X_PORT=9000"]);
}
