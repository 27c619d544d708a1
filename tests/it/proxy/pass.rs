//! Requests that no adapter recognises pass through byte for byte, in both directions.

use serde_json::json;

use super::scripted_setup::start_with_scripted_server;
use super::setup::{assert_answer, header, wait_while, within_timeout};
use super::support::client::{Answer, Outgoing};
use super::support::wire::{End, Headers, values};

fn lines(headers: &[(&str, &[u8])]) -> Headers {
    headers.iter().map(|(name, value)| ((*name).to_owned(), value.to_vec())).collect()
}

/// Returns a normal form of a head for comparison: names in lower case and sorted, values in order
/// within a name.
pub(super) fn by_name(headers: &Headers) -> Headers {
    let mut headers: Headers = headers.iter().map(|(name, value)| (name.to_ascii_lowercase(), value.clone())).collect();
    headers.sort_by(|(a, _), (b, _)| a.cmp(b));
    headers
}

#[tokio::test]
async fn any_method_and_any_path_arrive_as_they_were_written() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    let mut client = proxy.client().await;
    let targets = [
        "/a/../b%2e%2e%2f",
        "//",
        "//a//b",
        "/;x=1?y=;z",
        "/%C3%A9%20%0d%0a%2F",
        "/p?q=a+b&q=%20&&",
        "/~!$&'()*+,;=:@",
        "/caf%e9",
    ];
    for method in
        ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND", "M-SEARCH", "x!#$%&'*+-.^_`|~9"]
    {
        for target in targets {
            let request = proxy.request(method, target, &[], None);
            let pending = client.fetch(&request);
            let served = async {
                let turn = hand.next_request().await;
                assert_eq!((turn.request.method.as_str(), turn.request.target.as_str()), (method, target));
                assert_eq!(turn.request.body, b"");
                turn.answer(200, "{}").await;
            };
            let (answer, ()) = within_timeout(async { tokio::join!(pending, served) }).await;
            assert_answer(&answer, 200, "{}");
        }
    }
}

#[tokio::test]
async fn an_asterisk_target_is_forwarded_unchanged() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    let caller = proxy.call(proxy.request("OPTIONS", "*", &[], None));
    let turn = hand.next_request().await;
    assert_eq!(turn.request.target, "*");
    turn.answer(204, "").await;
    caller.0.abort();
}

#[tokio::test]
async fn headers_keep_their_number_their_order_and_every_byte_and_none_is_added() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    let host = proxy.address.to_string();
    let sent = lines(&[
        ("host", host.as_bytes()),
        ("X-Many", b"one"),
        ("cookie", b"a=1"),
        ("x-many", b"two"),
        ("X-Empty", b""),
        ("x-bytes", b"caf\xe9 \xff\x80"),
        ("X-MANY", b"two"),
        ("cookie", b"b=2"),
        ("accept-encoding", b"gzip, br;q=0.5"),
        ("x-forwarded-for", b"10.0.0.1"),
        ("x-groupage-other", b"1"),
        ("authorization", b"Bearer x"),
        ("user-agent", b"t/1"),
        ("content-length", b"3"),
    ]);
    let request = Outgoing { method: "PUT".into(), target: "/x".into(), headers: sent.clone(), body: b"abc".to_vec() };
    let caller = proxy.call(request);
    let turn = hand.next_request().await;
    assert_eq!(by_name(&turn.request.headers), by_name(&sent));
    assert_eq!(turn.request.body, b"abc");
    let back = b"HTTP/1.1 299 Odd reason\r\nset-cookie: a=1; Path=/\r\nX-Trace: \xc3\xa9\r\nSet-Cookie: b=2\r\nset-cookie: a=1\r\n\
        x-groupage-error: upstream's own\r\nx-empty:\r\ncontent-length: 4\r\n\r\nbody";
    turn.send_raw(back).await;
    let answer = caller.answer().await;
    assert_answer(&answer, 299, "body");
    let expected = lines(&[
        ("content-length", b"4"),
        ("set-cookie", b"a=1; Path=/"),
        ("set-cookie", b"b=2"),
        ("set-cookie", b"a=1"),
        ("x-empty", b""),
        ("x-groupage-error", b"upstream's own"),
        ("x-trace", b"\xc3\xa9"),
    ]);
    assert_eq!(by_name(&answer.headers), expected);
}

#[tokio::test]
async fn hop_by_hop_headers_are_not_forwarded() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    let own = [
        ("connection", "keep-alive, x-hop"),
        ("x-hop", "mine"),
        ("keep-alive", "timeout=5"),
        ("proxy-connection", "keep-alive"),
        ("te", "trailers, deflate"),
        ("http2-settings", "AAMAAABkAAQAAP__"),
        ("x-end", "theirs"),
    ];
    let caller = proxy.call(proxy.request("GET", "/x", &own, None));
    let turn = hand.next_request().await;
    let names: Vec<&str> = turn.request.headers.iter().map(|(name, _)| name.as_str()).collect();
    let mut sorted = names.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, ["host", "te", "x-end"]);
    assert_eq!(header(&turn.request.headers, "te"), "trailers");
    turn.send_raw(b"HTTP/1.1 200 OK\r\nconnection: x-gone\r\nx-gone: 1\r\nkeep-alive: timeout=9\r\nx-stays: 1\r\ncontent-length: 0\r\n\r\n").await;
    let answer = caller.answer().await;
    assert_eq!(by_name(&answer.headers), lines(&[("content-length", b"0"), ("x-stays", b"1")]));
}

#[tokio::test]
async fn a_connection_header_cannot_nominate_away_framing_host_or_identity() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    let own = [("connection", "content-length, host, authorization"), ("authorization", "Bearer x")];
    let caller = proxy.call(proxy.request("POST", "/x", &own, Some(b"abc")));
    let turn = hand.next_request().await;
    assert_eq!(header(&turn.request.headers, "authorization"), "Bearer x");
    assert_eq!(header(&turn.request.headers, "host"), proxy.address.to_string());
    assert_eq!(turn.request.body, b"abc");
    turn.answer(200, "{}").await;
    assert_answer(&caller.answer().await, 200, "{}");
}

#[tokio::test]
async fn chunked_bodies_and_their_trailers_go_through_both_ways() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    let mut client = proxy.client().await;
    let head = format!(
        "POST /x HTTP/1.1\r\nhost: {}\r\nte: trailers\r\ntrailer: x-sum, x-more\r\ntransfer-encoding: chunked\r\n\r\n",
        proxy.address
    );
    client.write_raw(head.as_bytes()).await.unwrap();
    client.write_raw(b"3\r\nabc\r\n4;ext=1\r\ndefg\r\n0\r\nx-sum: 17\r\nx-more: \xe9\r\n\r\n").await.unwrap();
    let turn = hand.next_request().await;
    assert_eq!(turn.request.body, b"abcdefg");
    assert_eq!(by_name(&turn.request.trailers), lines(&[("x-more", b"\xe9"), ("x-sum", b"17")]));
    assert_eq!(header(&turn.request.headers, "trailer"), "x-sum, x-more");
    turn.send_raw(
        b"HTTP/1.1 200 OK\r\ntrailer: x-end\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nx-end: bye\r\n\r\n",
    )
    .await;
    let mut answer = Answer::default();
    within_timeout(client.receive("POST", &mut answer)).await;
    assert_answer(&answer, 200, "hi");
    assert_eq!(by_name(&answer.trailers), lines(&[("x-end", b"bye")]));
}

#[tokio::test]
async fn a_head_answer_keeps_the_length_of_the_body_it_does_not_have() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    let mut client = proxy.client().await;
    for length in ["0", "42", "123456789012"] {
        let request = proxy.request("HEAD", "/x", &[], None);
        let pending = client.fetch(&request);
        let served = async {
            let turn = hand.next_request().await;
            assert_eq!(turn.request.method, "HEAD");
            turn.send_raw(format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\netag: \"e\"\r\n\r\n").as_bytes())
                .await;
        };
        let (answer, ()) = within_timeout(async { tokio::join!(pending, served) }).await;
        assert_answer(&answer, 200, "");
        assert_eq!(header(&answer.headers, "content-length"), length);
    }
}

#[tokio::test]
async fn answers_without_a_body_have_no_framing_and_the_connection_stays_usable() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    let mut client = proxy.client().await;
    for head in ["HTTP/1.1 204 No Content\r\nx-a: 1\r\n\r\n", "HTTP/1.1 304 Not Modified\r\netag: \"e\"\r\n\r\n"] {
        let request = proxy.request("GET", "/x", &[], None);
        let served = async { hand.next_request().await.send_raw(head.as_bytes()).await };
        let (answer, ()) = within_timeout(async { tokio::join!(client.fetch(&request), served) }).await;
        assert_eq!((answer.body.as_slice(), answer.end), (&b""[..], Some(End::Proper)));
        assert!(values(&answer.headers, "content-length").is_empty());
        assert!(values(&answer.headers, "transfer-encoding").is_empty());
    }
}

#[tokio::test]
async fn an_expectation_is_answered_by_the_proxy_and_not_forwarded() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    let caller = proxy.call(proxy.request("PUT", "/x", &[("expect", "100-continue")], Some(b"body")));
    let turn = hand.next_request().await;
    assert_eq!(turn.request.body, b"body");
    assert!(values(&turn.request.headers, "expect").is_empty());
    turn.answer(200, "{}").await;
    let answer = caller.answer().await;
    assert_eq!(answer.interim, [100]);
    assert_answer(&answer, 200, "{}");
}

#[tokio::test]
async fn interim_answers_of_the_server_are_swallowed() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    let caller = proxy.call(proxy.request("GET", "/x", &[], None));
    let mut turn = hand.next_request().await;
    turn.send_part(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </a.css>\r\n\r\n").await;
    turn.answer(200, "{}").await;
    let answer = caller.answer().await;
    assert_eq!(answer.interim, [0_u16; 0]);
    assert!(values(&answer.headers, "link").is_empty());
    assert_answer(&answer, 200, "{}");
}

#[tokio::test]
async fn a_redirect_is_an_answer_like_any_other() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    let caller = proxy.call(proxy.request("GET", "/x", &[], None));
    let location = "http://169.254.169.254/latest/meta-data/";
    let text = format!("HTTP/1.1 302 Found\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n");
    hand.next_request().await.send_raw(text.as_bytes()).await;
    let answer = caller.answer().await;
    assert_answer(&answer, 302, "");
    assert_eq!(header(&answer.headers, "location"), location);
    assert_eq!(hand.pending_requests(), 0, "the redirect was not followed");
}

#[tokio::test]
async fn a_client_of_http_1_0_gets_a_body_that_ends_with_the_connection() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    let mut client = proxy.client().await;
    client.write_raw(b"GET /old HTTP/1.0\r\nhost: h\r\n\r\n").await.unwrap();
    let turn = hand.next_request().await;
    assert_eq!(turn.request.target, "/old");
    turn.send_raw(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n1\r\n!\r\n0\r\n\r\n").await;
    let mut answer = Answer::default();
    within_timeout(client.receive("GET", &mut answer)).await;
    assert_eq!((answer.status, answer.body.as_slice()), (Some(200), &b"hi!"[..]));
    assert_eq!(answer.end, Some(End::Closed));
    assert!(values(&answer.headers, "transfer-encoding").is_empty());
}

#[tokio::test]
async fn a_target_in_absolute_form_wins_over_the_host_header() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    let own = [("host", "other.example")];
    let caller = proxy.call(proxy.request("GET", "http://model.example:81/abs?q=1", &own, None));
    let turn = hand.next_request().await;
    assert_eq!(turn.request.target, "/abs?q=1");
    assert_eq!(header(&turn.request.headers, "host"), "model.example:81");
    turn.answer(200, "{}").await;
    assert_answer(&caller.answer().await, 200, "{}");
}

#[tokio::test]
async fn compressed_bodies_pass_through_unchanged() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    let squeezed: Vec<u8> = (0..=255).rev().collect();
    let own = [("content-encoding", "gzip"), ("content-type", "application/json"), ("accept-encoding", "gzip, zstd")];
    // One path that no adapter recognises, and one that is merged if it is not compressed.
    for target in ["/other", super::setup::PREDICT] {
        let caller = proxy.call(proxy.request("POST", target, &own, Some(&squeezed)));
        let turn = hand.next_request().await;
        assert_eq!(turn.request.body, squeezed);
        assert_eq!(header(&turn.request.headers, "content-encoding"), "gzip");
        assert_eq!(header(&turn.request.headers, "accept-encoding"), "gzip, zstd");
        let mut text =
            b"HTTP/1.1 200 OK\r\ncontent-encoding: br\r\nvary: accept-encoding\r\ncontent-length: 256\r\n\r\n".to_vec();
        text.extend(&squeezed);
        turn.send_raw(&text).await;
        let answer = caller.answer().await;
        assert_eq!((answer.status, &answer.body), (Some(200), &squeezed));
        assert_eq!(header(&answer.headers, "content-encoding"), "br");
        assert_eq!(header(&answer.headers, "vary"), "accept-encoding");
    }
}

#[tokio::test]
async fn a_client_connection_has_an_upstream_connection_of_its_own() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    let mut connections = Vec::new();
    let mut clients = [proxy.client().await, proxy.client().await];
    for _ in 0..3 {
        for client in &mut clients {
            let request = proxy.request("GET", "/x", &[], None);
            let served = async {
                let turn = hand.next_request().await;
                let connection = turn.connection;
                turn.answer(200, "{}").await;
                connection
            };
            let (answer, connection) = within_timeout(async { tokio::join!(client.fetch(&request), served) }).await;
            assert_answer(&answer, 200, "{}");
            connections.push(connection);
        }
    }
    let [a, b, rest @ ..] = &connections[..] else { panic!() };
    assert_ne!(a, b);
    assert_eq!(rest, [*a, *b, *a, *b]);
    drop(clients);
    wait_while(|| hand.open_connections() > 0).await;
}

#[tokio::test]
async fn a_server_that_closes_idle_connections_costs_a_connect_and_no_answer() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    let mut client = proxy.client().await;
    let mut last = usize::MAX;
    for round in 0..20 {
        let request = proxy.request("GET", "/x", &[], None);
        let served = async {
            let mut turn = hand.next_request().await;
            let connection = turn.connection;
            // Every other time the server announces it first.
            let close = if round % 2 == 0 { "connection: close\r\n" } else { "" };
            turn.send_part(format!("HTTP/1.1 200 OK\r\n{close}content-length: 2\r\n\r\n{{}}").as_bytes()).await;
            connection
        };
        let (answer, connection) = within_timeout(async { tokio::join!(client.fetch(&request), served) }).await;
        assert_answer(&answer, 200, "{}");
        assert!(values(&answer.headers, "connection").is_empty());
        assert_ne!(connection, last);
        last = connection;
        wait_while(|| hand.open_connections() > 0).await;
    }
}

#[tokio::test]
async fn a_method_of_a_recognised_path_that_no_adapter_knows_passes() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    for (method, target) in
        [("GET", super::setup::PREDICT), ("POST", "/v1/models/m:predict/"), ("POST", "/V1/models/m:predict")]
    {
        let body: Option<&[u8]> = (method == "POST").then_some(b"{\"instances\": [1]}");
        let caller = proxy.call(proxy.request(method, target, &[("content-type", "application/json")], body));
        let turn = hand.next_request().await;
        assert_eq!(turn.request.target, target);
        turn.answer(404, "{}").await;
        assert_answer(&caller.answer().await, 404, "{}");
    }
    assert_eq!(proxy.metric(r#"groupage_calls_passed_total{reason="not_recognised"}"#), 3);
}

#[tokio::test]
async fn connect_is_refused_and_never_tunnelled() {
    let (proxy, hand) = start_with_scripted_server(json!({})).await;
    let mut client = proxy.client().await;
    client.write_raw(b"CONNECT 10.0.0.1:22 HTTP/1.1\r\nhost: 10.0.0.1:22\r\n\r\n").await.unwrap();
    let mut answer = Answer::default();
    within_timeout(client.receive("CONNECT", &mut answer)).await;
    assert_eq!(answer.status, Some(405));
    assert_eq!(hand.pending_requests(), 0);
}
