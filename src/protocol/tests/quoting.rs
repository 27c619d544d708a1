//! Servers that quote inputs outside the results: no client receives a byte of another client's
//! input.

use super::*;

pub(super) const EMBEDDINGS: &str = "/v1/embeddings";
pub(super) const PREDICT: &str = "/v1/models/m:predict";

/// A server with the evidence collected for its endpoint.
pub(super) struct Server {
    pub(super) endpoint: Arc<Endpoint>,
    target: &'static str,
    pub(super) evidence: UnbatchedEvidence,
}

impl Server {
    pub(super) fn new(target: &'static str, protocol: RouteProtocol) -> Self {
        Self::of(endpoint(target, protocol), target)
    }

    pub(super) fn of(endpoint: Arc<Endpoint>, target: &'static str) -> Self {
        Self { endpoint, target, evidence: UnbatchedEvidence::default() }
    }

    pub(super) fn generic(fields: &[&str]) -> Self {
        Self::generic_with(fields, Some(true))
    }

    /// Creates a server on a route whose calls may not be retried.
    pub(super) fn generic_once() -> Self {
        Self::generic_with(&[], None)
    }

    fn generic_with(fields: &[&str], idempotent: Option<bool>) -> Self {
        let rules = RouteRules {
            generic: Some(texts()),
            idempotent,
            respond_with_fields: fields.iter().map(|field| pointer(field)).collect(),
            ..rules("/e", RouteProtocol::Generic)
        };
        Self::of(endpoint_of(rules, "/e"), "/e")
    }

    pub(super) fn call(&self, text: &str) -> Call {
        let body = match self.target {
            PREDICT => format!(r#"{{"instances":["{text}"]}}"#),
            EMBEDDINGS => format!(r#"{{"input":"{text}"}}"#),
            "/embed" => format!(r#"{{"inputs":"{text}"}}"#),
            _ => format!(r#"{{"texts":["{text}"]}}"#),
        };
        read(&self.endpoint, self.target, &body)
    }

    /// Splits a response to two calls with these texts, for which `body` is written.
    pub(super) fn shared(
        &self,
        texts: [&str; 2],
        status: u16,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Result<Vec<Reply>, MismatchKind> {
        self.split(&texts.map(|text| self.call(text)), status, headers, body)
    }

    /// Splits a response to these calls.
    pub(super) fn split(
        &self,
        calls: &[Call],
        status: u16,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Result<Vec<Reply>, MismatchKind> {
        let members: Vec<&Call> = calls.iter().collect();
        let sent = self.endpoint.write_batch(&members, None);
        let status = StatusCode::from_u16(status).unwrap();
        let (headers, body) = (headers_of(headers), Bytes::from(body.to_owned()));
        let answer = BatchResponse { status, headers: &headers, body: &body };
        if is_overload(status) {
            return Ok(self.endpoint.overload_replies(&members, &sent, answer, &self.evidence));
        }
        let split = self.endpoint.split_batch(&members, &sent, answer, Some((Tick(0), &self.evidence)));
        split.map_err(|mismatch| mismatch.what)
    }

    /// Records the response to an unbatched call with this text.
    pub(super) fn observe(&self, text: &str, status: u16, headers: &[(&str, &str)], body: &str) {
        let (status, headers, body) =
            (StatusCode::from_u16(status).unwrap(), headers_of(headers), Bytes::from(body.to_owned()));
        let answer = BatchResponse { status, headers: &headers, body: &body };
        self.endpoint.observe_unbatched(&self.call(text), answer, &self.evidence);
    }

    pub(super) fn is_unbatched(&self, now: Tick) -> bool {
        self.evidence.is_unbatched(now, &self.call("a"))
    }
}

#[test]
fn an_undeclared_member_is_given_to_no_caller_without_evidence() {
    let places = [
        r#""warning":"private-0""#,
        r#""inputs":["private-0","private-1"]"#,
        r#""inputs":["private-0"]"#,
        r#""map":{"private-0":1}"#,
        r#""debug":{"deep":{"text":"private-0"}}"#,
        r#""count":2"#,
        r#""model":"private-0""#,
        r#""model":["private-0"]"#,
        r#""object":"about private-0""#,
        r#""id":"private-00000000""#,
        r#""id":{"of":"private-0"}"#,
        r#""usage":{"total_tokens":2,"text":"private-0"}"#,
        r#""usage":{"private-0":0}"#,
        r#""usage":{"details":[{"of":"private-0"}]}"#,
        r#""usage":4111111111111111"#,
        r#""usage":{"total_tokens":0e4111111111111111}"#,
        r#""created":4111111111111111"#,
        r#""model":4111111111111111"#,
    ];
    for place in places {
        let body = format!(r#"{{"data":[{{"index":0}},{{"index":1}}],{place}}}"#);
        let server = Server::new(EMBEDDINGS, RouteProtocol::OpenAi);
        assert_eq!(
            server.shared(["private-0", "private-1"], 200, &[], &body).map(|_| ()),
            Err(MismatchKind::Undeclared),
            "{place}"
        );
    }
    let predictions = r#"{"predictions":[1,2],"warning":"private-0"}"#;
    let server = Server::new(PREDICT, RouteProtocol::KServeV1);
    assert!(server.shared(["private-0", "private-1"], 200, &[], predictions).is_err());
    let vectors = r#"{"vectors":[1,2],"warning":"private-0"}"#;
    assert!(Server::generic(&[]).shared(["private-0", "private-1"], 200, &[], vectors).is_err());
    let replies = Server::generic(&["/warning"]).shared(["private-0", "private-1"], 200, &[], vectors).unwrap();
    assert_eq!(
        bodies(&replies),
        [r#"{"vectors":[1],"warning":"private-0"}"#, r#"{"vectors":[2],"warning":"private-0"}"#]
    );
}

#[test]
fn text_before_an_echoed_id_is_kept_only_if_it_is_a_known_prefix() {
    let server = Server::new(EMBEDDINGS, RouteProtocol::Vllm);
    let calls = ["a", "b"].map(|text| server.call(text));
    let members: Vec<&Call> = calls.iter().collect();
    let sent = server.endpoint.write_batch(&members, None);
    for (before, expected) in [("embd-", "embd-"), ("4111111111111111-", ""), ("embd-secret1.", "embd-")] {
        let body = format!(r#"{{"id":"{before}{}","data":[{{}},{{}}]}}"#, sent.request_id);
        for reply in
            split_sent(&server.endpoint, &members, &sent, StatusCode::OK, &HeaderMap::new(), &body.into()).unwrap()
        {
            let body = String::from_utf8(reply.body.to_vec()).unwrap();
            assert!(body.starts_with(&format!(r#"{{"id":"{expected}"#)), "{body}");
            assert!(!body.contains("4111111111111111") && !body.contains("secret"), "{body}");
        }
    }
}

#[test]
fn a_member_that_unbatched_responses_show_to_be_constant_is_given_to_all() {
    let server = Server::new(PREDICT, RouteProtocol::KServeV1);
    let shared =
        |server: &Server| server.shared(["a", "b"], 200, &[], r#"{"predictions":[1,2],"version":"2026.11.3"}"#);
    // Members are not observed before a batch response had such a member.
    server.observe("a", 200, &[], r#"{"predictions":[1],"version":"2026.11.3"}"#);
    assert!(shared(&server).is_err());
    server.observe("a", 200, &[], r#"{"predictions":[1],"version":"2026.11.3"}"#);
    server.observe("a", 200, &[], r#"{"predictions":[1],"version":"2026.11.3"}"#);
    assert!(shared(&server).is_err(), "one input shows nothing");
    server.observe("b", 200, &[], r#"{"predictions":[2],"version":"2026.11.3"}"#);
    assert_eq!(bodies(&shared(&server).unwrap())[1], r#"{"predictions":[2],"version":"2026.11.3"}"#);
    assert!(!server.is_unbatched(Tick(0)));
}

#[test]
fn calls_are_sent_unbatched_for_a_while_where_unbatched_responses_differ() {
    let server = Server::new(PREDICT, RouteProtocol::KServeV1);
    let shared = |warning: &str| {
        server.shared(["a", "b"], 200, &[], &format!(r#"{{"predictions":[1,2],"warning":"{warning}"}}"#))
    };
    assert!(shared("a b").is_err());
    server.observe("a", 200, &[], r#"{"predictions":[1],"warning":"a"}"#);
    server.observe("b", 200, &[], r#"{"predictions":[2],"warning":"b"}"#);
    assert!(!server.is_unbatched(Tick(0)));
    assert!(shared("b").is_err(), "the last value is no constant");
    let minute = Tick(0).after(std::time::Duration::from_secs(60));
    assert!(server.is_unbatched(Tick(0)) && !server.is_unbatched(minute));
    // Another key is not affected.
    let other = read(&server.endpoint, PREDICT, r#"{"instances":["a"],"signature_name":"s"}"#);
    assert!(!server.evidence.is_unbatched(Tick(0), &other));
}

#[test]
fn members_that_are_named_after_inputs_end_merging_for_a_while() {
    let server = Server::new(PREDICT, RouteProtocol::KServeV1);
    for round in 0..3 {
        assert!(!server.is_unbatched(Tick(0)), "{round}");
        let body = format!(r#"{{"predictions":[1,2],"of-{round}":1}}"#);
        assert!(server.shared(["a", "b"], 200, &[], &body).is_err());
        server.observe("a", 200, &[], r#"{"predictions":[1],"of-a":1}"#);
        server.observe("b", 200, &[], r#"{"predictions":[2],"of-b":1}"#);
    }
    assert!(server.is_unbatched(Tick(0)));
}

#[test]
fn an_overload_is_answered_with_a_body_of_ours_in_the_callers_form() {
    let overload = r#"{"error":"overloaded while reading private-0, private-1"}"#;
    let headers = [
        ("retry-after", "7"),
        ("server", "private-0"),
        ("content-type", "text/plain; private-0"),
        ("x-note", "private-0"),
    ];
    for (target, protocol, expected) in [
        (
            EMBEDDINGS,
            RouteProtocol::OpenAi,
            r#"{"error":{"message":"upstream overloaded","type":"upstream_overloaded","param":null,"code":429}}"#,
        ),
        (PREDICT, RouteProtocol::KServeV1, r#"{"error":"upstream overloaded"}"#),
        ("/embed", RouteProtocol::Tei, r#"{"error":"upstream overloaded","error_type":"Overloaded"}"#),
    ] {
        let server = Server::new(target, protocol);
        let replies = server.shared(["private-0", "private-1"], 429, &headers, overload).unwrap();
        for reply in &replies {
            assert_eq!((reply.status.as_u16(), &reply.body[..]), (429, expected.as_bytes()));
            assert_eq!(reply.headers["retry-after"], "7");
            assert_eq!(reply.headers["content-type"], "application/json");
            assert_eq!(reply.headers["x-groupage-error"], "GRP3308");
            assert!(!format!("{:?}", reply.headers).contains("private"), "{:?}", reply.headers);
        }
        let replies = server.shared(["private-0", "private-1"], 503, &headers[1..], overload).unwrap();
        let hinted =
            |reply: &Reply| ["retry-after", "retry-after-ms"].iter().any(|name| reply.headers.contains_key(*name));
        assert!(!replies.iter().any(hinted), "the server sent no hint");
    }
}

#[test]
fn an_overload_body_is_forwarded_once_unbatched_answers_had_the_same() {
    let server = Server::new(PREDICT, RouteProtocol::KServeV1);
    let busy = r#"{"error":"busy"}"#;
    server.observe("a", 503, &[], busy);
    server.observe("b", 503, &[], busy);
    let replies = server.shared(["a", "b"], 503, &[("content-type", "application/json")], busy).unwrap();
    assert_eq!(bodies(&replies), [busy, busy]);
    assert!(!replies[0].headers.contains_key("x-groupage-error"));
    let other_status = server.shared(["a", "b"], 429, &[], busy).unwrap();
    assert_eq!(bodies(&other_status)[0], r#"{"error":"upstream overloaded"}"#);
}

#[test]
fn a_free_text_header_is_forwarded_once_unbatched_answers_had_the_same() {
    let server = Server::new(PREDICT, RouteProtocol::KServeV1);
    let headers = [("server", "uvicorn"), ("openai-version", "private"), ("x-ratelimit-limit-requests", "60")];
    let shared = || server.shared(["a", "b"], 200, &headers, r#"{"predictions":[1,2]}"#).unwrap();
    assert!(!shared()[0].headers.contains_key("server"));
    server.observe("a", 200, &[("server", "uvicorn"), ("openai-version", "a")], r#"{"predictions":[1]}"#);
    server.observe("b", 200, &[("server", "uvicorn"), ("openai-version", "b")], r#"{"predictions":[1]}"#);
    let replies = shared();
    assert_eq!(replies[1].headers["server"], "uvicorn");
    assert_eq!(replies[1].headers["x-ratelimit-limit-requests"], "60");
    assert!(!replies[1].headers.contains_key("openai-version"));
}
