//! HTTP/2 clients, in front of a server that speaks HTTP/2 and of one that does not.

use http::{HeaderMap, HeaderValue, Request, Response, Version};
use serde_json::json;

use super::http2_endpoints::{H2Client, H2ScriptedServer, empty, full, with_trailers};
use super::scripted_setup::start_with_scripted_server;
use super::setup::{TestProxy, header, within_timeout};
use super::support::wire::values;

fn get(target: &str) -> Request<super::http2_endpoints::Body> {
    Request::get(format!("http://model.example{target}")).body(empty()).unwrap()
}

#[tokio::test]
async fn streams_travel_side_by_side_before_an_http_1_server_and_reuse_their_connections() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    let client = H2Client::connect(proxy.address).await;
    let mut used = Vec::new();
    for _ in 0..2 {
        let pending: Vec<_> = (0..3).map(|n| client.fetch(get(&format!("/{n}")))).collect();
        let turns = [hand.next_request().await, hand.next_request().await, hand.next_request().await];
        let mut connections: Vec<usize> = turns.iter().map(|turn| turn.connection).collect();
        connections.sort_unstable();
        used.push(connections);
        // Answered in reverse order.
        for turn in turns.into_iter().rev() {
            let target = turn.request.target.clone();
            turn.answer(200, &target).await;
        }
        for (n, pending) in pending.into_iter().enumerate() {
            let (head, whole) = within_timeout(pending).await.unwrap();
            assert_eq!((head.status.as_u16(), whole.body.as_ref()), (200, format!("/{n}").as_bytes()));
        }
    }
    let [first, second] = &used[..] else { panic!() };
    let mut once = first.clone();
    once.dedup();
    assert_eq!(once.len(), 3, "one connection for each stream in flight");
    assert_eq!(first, second, "reused within the client connection");
    let other = H2Client::connect(proxy.address).await;
    let pending = other.fetch(get("/"));
    let turn = hand.next_request().await;
    assert!(!first.contains(&turn.connection), "and by no other client");
    turn.answer(200, "{}").await;
    within_timeout(pending).await.unwrap();
}

#[tokio::test]
async fn a_call_becomes_http_1_1_with_host_whole_cookie_and_trailers() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    let client = H2Client::connect(proxy.address).await;
    let mut trailers = HeaderMap::new();
    trailers.insert("x-sum", HeaderValue::from_static("17"));
    let request = Request::put("http://model.example:81/a/../b?q=%20")
        .header("host", "liar.example")
        .header("cookie", "a=1")
        .header("cookie", "b=2")
        .header("te", "trailers")
        .header("trailer", "x-sum")
        .header("x-bytes", HeaderValue::from_bytes(b"\xff").unwrap())
        .body(with_trailers("abc", trailers))
        .unwrap();
    let pending = client.fetch(request);
    let mut turn = hand.next_request().await;
    assert_eq!((turn.request.method.as_str(), turn.request.target.as_str()), ("PUT", "/a/../b?q=%20"));
    assert_eq!(header(&turn.request.headers, "host"), "model.example:81", "the authority wins");
    assert_eq!(header(&turn.request.headers, "cookie"), "a=1; b=2");
    assert_eq!(header(&turn.request.headers, "te"), "trailers");
    assert_eq!(values(&turn.request.headers, "x-bytes"), [b"\xff"]);
    assert_eq!((turn.request.body.as_slice(), turn.request.trailers.len()), (&b"abc"[..], 1));
    turn.send_part(
        b"HTTP/1.1 200 OK\r\nconnection: keep-alive, x-hop\r\nx-hop: 1\r\nkeep-alive: timeout=5\r\nset-cookie: a\r\nset-cookie: b\r\n\
          trailer: x-end\r\ntransfer-encoding: chunked\r\n\r\n",
    )
    .await;
    turn.chunk(b"hi").await;
    turn.send_part(b"0\r\nx-end: bye\r\n\r\n").await;
    turn.finish_response();
    let (head, whole) = within_timeout(pending).await.unwrap();
    assert_eq!(head.version, Version::HTTP_2);
    let mut names: Vec<&str> = head.headers.keys().map(http::HeaderName::as_str).collect();
    names.sort_unstable();
    assert_eq!(names, ["set-cookie", "trailer"]);
    assert_eq!(head.headers.get_all("set-cookie").iter().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(
        (whole.body.as_ref(), &whole.trailers.unwrap()["x-end"]),
        (&b"hi"[..], &HeaderValue::from_static("bye"))
    );
}

#[tokio::test]
async fn a_call_to_an_http_2_server_uses_a_connection_of_its_client_alone() {
    let mut hand = H2ScriptedServer::start().await;
    let proxy = TestProxy::start_in_front_of(&hand.url(), json!({"proxy": {"connection": {"http2": "Always"}}}));
    let clients = [H2Client::connect(proxy.address).await, H2Client::connect(proxy.address).await];
    let mut connections = Vec::new();
    for client in clients.iter().chain(&clients) {
        let mut trailers = HeaderMap::new();
        trailers.insert("x-sum", HeaderValue::from_static("17"));
        let request = Request::post("http://model.example/grpc.Service/Call?q")
            .header("te", "trailers")
            .header("content-type", "application/grpc")
            .header("x-many", "1")
            .header("x-many", "2")
            .body(with_trailers("message", trailers))
            .unwrap();
        let pending = client.fetch(request);
        let turn = hand.turn().await;
        connections.push(turn.connection);
        assert_eq!(turn.head.version, Version::HTTP_2);
        assert_eq!(turn.head.uri, "http://model.example/grpc.Service/Call?q");
        assert_eq!(turn.head.headers["te"], "trailers");
        assert_eq!(turn.head.headers.get_all("x-many").iter().collect::<Vec<_>>(), ["1", "2"]);
        assert_eq!(turn.whole.body, "message");
        assert_eq!(turn.whole.trailers.as_ref().unwrap()["x-sum"], "17");
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
        turn.answer(
            Response::builder()
                .header("content-type", "application/grpc")
                .body(with_trailers("back", trailers))
                .unwrap(),
        );
        let (head, whole) = within_timeout(pending).await.unwrap();
        assert_eq!(head.headers.len(), 1, "{:?}", head.headers);
        assert_eq!(
            (whole.body.as_ref(), &whole.trailers.unwrap()["grpc-status"]),
            (&b"back"[..], &HeaderValue::from_static("0"))
        );
    }
    let [a, b, rest @ ..] = &connections[..] else { panic!() };
    assert_ne!(a, b);
    assert_eq!(rest, [*a, *b]);
}

#[tokio::test]
async fn an_http_1_client_is_served_by_a_server_that_speaks_http_2_only() {
    let mut hand = H2ScriptedServer::start().await;
    let proxy = TestProxy::start_in_front_of(&hand.url(), json!({"proxy": {"connection": {"http2": "Always"}}}));
    let caller = proxy.call(proxy.request("PUT", "/x?y", &[("host", "model.example")], Some(b"abc")));
    let turn = hand.turn().await;
    assert_eq!(turn.head.uri, "http://model.example/x?y");
    assert_eq!(turn.whole.body, "abc");
    turn.answer(Response::builder().status(201).body(full("made")).unwrap());
    super::setup::assert_answer(&caller.answer().await, 201, "made");
}

#[tokio::test]
async fn a_stream_that_its_client_resets_is_given_up_upstream() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    let client = H2Client::connect(proxy.address).await;
    let pending = client.fetch(get("/slow"));
    let mut turn = hand.next_request().await;
    let other = client.fetch(get("/other"));
    let another = hand.next_request().await;
    pending.abort();
    turn.wait_closed().await;
    another.answer(200, "{}").await;
    assert_eq!(within_timeout(other).await.unwrap().0.status, 200, "the connection continues");
}

#[tokio::test]
async fn a_head_answer_keeps_its_length_and_an_empty_answer_is_empty() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    let client = H2Client::connect(proxy.address).await;
    let pending = client.fetch(Request::head("http://model.example/x").body(empty()).unwrap());
    hand.next_request().await.send_raw(b"HTTP/1.1 200 OK\r\ncontent-length: 42\r\n\r\n").await;
    let (head, whole) = within_timeout(pending).await.unwrap();
    assert_eq!((&head.headers["content-length"], whole.body.len()), (&HeaderValue::from_static("42"), 0));
    let pending = client.fetch(get("/x"));
    hand.next_request().await.send_raw(b"HTTP/1.1 204 No Content\r\n\r\n").await;
    let (head, whole) = within_timeout(pending).await.unwrap();
    assert_eq!((head.status.as_u16(), head.headers.len(), whole.body.len()), (204, 0, 0));
}

#[tokio::test]
async fn a_head_with_too_many_lines_is_refused_and_cookie_pieces_count_as_one() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    let client = H2Client::connect(proxy.address).await;
    let lines = |name: &'static str, count: usize| {
        let mut request = get("/");
        (0..count).for_each(|_| {
            request.headers_mut().append(name, HeaderValue::from_static("1"));
        });
        request
    };
    for path in ["/", "/v1/models/m:predict"] {
        let mut many = lines("x-many", 101);
        *many.uri_mut() = format!("http://model.example{path}").parse().unwrap();
        let (head, whole) = within_timeout(client.fetch(many)).await.unwrap();
        assert_eq!((head.status.as_u16(), whole.body.len()), (431, 0));
    }
    assert_eq!(hand.pending_requests(), 0, "nothing of it is sent");
    let pending = client.fetch(lines("cookie", 150));
    hand.next_request().await.answer(200, "{}").await;
    assert_eq!(within_timeout(pending).await.unwrap().0.status.as_u16(), 200);
}
