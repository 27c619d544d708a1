//! Faults of the model server, and the responses that callers get.

use serde_json::json;
use tokio::net::TcpListener;

use super::scripted_server::ReservedPort;
use super::scripted_setup::start_with_scripted_server;
use super::setup::{
    PREDICT, TestProxy, adaptive_spec, assert_answer, assert_failure, count, instances, predictions, within_timeout,
};
use super::support::client::{Answer, Client};
use super::support::wire::End;

async fn ready(proxy: &TestProxy) -> Option<u16> {
    let mut client = Client::connect(proxy.running.admin.metrics.unwrap()).await.unwrap();
    within_timeout(client.fetch(&proxy.request("GET", "/readyz", &[], None))).await.status
}

#[tokio::test]
async fn calls_to_an_absent_server_get_a_503_at_once_and_are_served_once_it_listens() {
    let port = ReservedPort::reserve();
    let proxy = TestProxy::start_in_front_of(&port.url(), adaptive_spec(&json!({})));
    assert_eq!(ready(&proxy).await, Some(503));
    for path in [PREDICT, "/elsewhere"] {
        let mut took = Vec::new();
        for _ in 0..10 {
            let answer = proxy.fetch(&proxy.post(path, &[], &instances(&[1]))).await;
            assert_failure(&answer, 503, "GRP3301", "upstream_refused");
            took.push(answer.done.unwrap().duration_since(answer.sent.unwrap()));
        }
        // The median, because the machine may pause during any single call.
        took.sort_unstable();
        assert!(took[5] < std::time::Duration::from_millis(50), "{took:?}");
    }
    let mut hand = port.listen();
    within_timeout(async {
        while ready(&proxy).await != Some(200) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let (caller, turn) = proxy.occupy_slot(&mut hand).await;
    turn.echo().await;
    assert_answer(&caller.answer().await, 200, &predictions(&[0]));
}

#[tokio::test]
async fn a_batch_for_a_server_that_went_away_is_a_503_to_every_member_and_nothing_hangs() {
    let port = ReservedPort::reserve();
    let mut hand = port.listen();
    let proxy = TestProxy::start_in_front_of(&port.url(), json!({}));
    let (first, turn) = proxy.occupy_slot(&mut hand).await;
    let callers = proxy.queue((1..=3).map(|item| proxy.predict(item))).await;
    drop(hand);
    drop(turn);
    assert_failure(&first.answer().await, 502, "GRP3302", "upstream_broken");
    for caller in callers {
        assert_failure(&caller.answer().await, 503, "GRP3301", "upstream_refused");
    }
    proxy.wait_idle().await;
}

#[tokio::test]
async fn a_server_that_does_not_accept_is_given_up_after_the_connect_timeout() {
    // The backlog is full, so the kernel accepts no further connection.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(0).unwrap();
    let address = listener.local_addr().unwrap();
    let _held = within_timeout(tokio::net::TcpStream::connect(address)).await.unwrap();
    let spec = json!({"proxy": {"connection": {"connectTimeout": "50ms"}}});
    let proxy = TestProxy::start_in_front_of(&format!("http://{address}"), spec);
    let answer = proxy.fetch(&proxy.predict(1)).await;
    assert_failure(&answer, 503, "GRP3301", "upstream_refused");
    let took = answer.done.unwrap().duration_since(answer.sent.unwrap());
    assert!(took >= std::time::Duration::from_millis(45), "{took:?}");
}

#[tokio::test]
async fn a_truncated_response_to_an_unbatched_call_is_502() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    for response in [
        "",
        "HTTP/1.1 200 OK\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{\"pred",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n",
    ] {
        let (caller, mut turn) = proxy.occupy_slot(&mut hand).await;
        turn.send_part(response.as_bytes()).await;
        drop(turn);
        assert_failure(&caller.answer().await, 502, "GRP3302", "upstream_broken");
        proxy.wait_idle().await;
        assert_eq!(hand.pending_requests(), 0, "a call alone is not sent again");
    }
}

#[tokio::test]
async fn a_passed_answer_breaks_off_where_the_server_does() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    let caller = proxy.call(proxy.request("GET", "/x", &[], None));
    drop(hand.next_request().await);
    assert_failure(&caller.answer().await, 502, "GRP3302", "upstream_broken");
    let caller = proxy.call(proxy.request("GET", "/x", &[], None));
    let mut turn = hand.next_request().await;
    turn.send_part(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc").await;
    drop(turn);
    let answer = caller.answer().await;
    assert_eq!((answer.status, answer.body.as_slice()), (Some(200), &b"abc"[..]));
    assert_ne!(answer.end, Some(End::Proper), "never a short body that looks whole");
}

#[tokio::test]
async fn members_of_a_shared_answer_over_the_cap_are_sent_unbatched() {
    let (proxy, mut hand) =
        start_with_scripted_server(json!({"proxy": {"connection": {"answerBytesMax": 2000}}})).await;
    let (callers, turn) = proxy.form_batch(&mut hand, vec![proxy.predict(1), proxy.predict(2)]).await;
    turn.answer(200, &format!("{{\"predictions\":[1,2]{}}}", " ".repeat(4000))).await;
    for _ in 0..2 {
        hand.next_request().await.echo().await;
    }
    for (value, caller) in [1, 2].into_iter().zip(callers) {
        assert_answer(&caller.answer().await, 200, &predictions(&[value]));
    }
    proxy.wait_idle().await;
}

#[tokio::test]
async fn an_endless_shared_answer_is_cut_at_the_cap_and_its_members_are_sent_unbatched() {
    let (proxy, mut hand) =
        start_with_scripted_server(json!({"proxy": {"connection": {"answerBytesMax": 2000}}})).await;
    let (callers, mut turn) = proxy.form_batch(&mut hand, vec![proxy.predict(1), proxy.predict(2)]).await;
    turn.send_part(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n").await;
    turn.chunk(&[b' '; 1500]).await;
    turn.chunk(&[b' '; 1500]).await;
    turn.wait_closed().await;
    for _ in 0..2 {
        hand.next_request().await.echo().await;
    }
    for (value, caller) in [1, 2].into_iter().zip(callers) {
        assert_answer(&caller.answer().await, 200, &predictions(&[value]));
    }
}

#[tokio::test]
async fn an_answer_over_the_cap_to_a_call_sent_unbatched_after_its_batch_failed_streams_on() {
    let (proxy, mut hand) =
        start_with_scripted_server(json!({"proxy": {"connection": {"answerBytesMax": 2000}}})).await;
    let (callers, turn) = proxy.form_batch(&mut hand, vec![proxy.predict(1), proxy.predict(2)]).await;
    turn.answer(500, "{}").await;
    let announced = "a".repeat(4000);
    hand.next_request().await.answer(200, &announced).await;
    let mut turn = hand.next_request().await;
    turn.send_part(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n").await;
    turn.chunk(&[b'b'; 1500]).await;
    turn.chunk(&[b'c'; 1500]).await;
    // The response is not complete, but the slot is free.
    proxy.wait_idle().await;
    turn.chunk(&[b'd'; 1500]).await;
    turn.send_part(b"0\r\n\r\n").await;
    let chunked: String = ["b", "c", "d"].map(|letter| letter.repeat(1500)).concat();
    for (expected, caller) in [announced, chunked].iter().zip(callers) {
        assert_answer(&caller.answer().await, 200, expected);
    }
}

#[tokio::test]
async fn a_shared_answer_over_the_cap_is_a_502_on_a_route_that_is_not_replayed() {
    let spec = json!({
        "proxy": {"connection": {"answerBytesMax": 2000}},
        "routes": [{"path": PREDICT, "idempotent": "Never"}],
    });
    let (proxy, mut hand) = start_with_scripted_server(spec).await;
    let (callers, turn) = proxy.form_batch(&mut hand, vec![proxy.predict(1), proxy.predict(2)]).await;
    turn.answer(200, &format!("{{\"predictions\":[1,2]{}}}", " ".repeat(4000))).await;
    for caller in callers {
        assert_failure(&caller.answer().await, 502, "GRP3306", "answer_too_large");
    }
    proxy.wait_idle().await;
    assert_eq!(hand.pending_requests(), 0);
}

#[tokio::test]
async fn an_answer_to_an_unbatched_call_over_the_cap_streams_on_and_its_slot_is_free() {
    let (proxy, mut hand) =
        start_with_scripted_server(json!({"proxy": {"connection": {"answerBytesMax": 2000}}})).await;
    let mut client = proxy.client().await;
    let mut answer = Answer::default();
    client.send(&proxy.predict(0), &mut answer).await;
    let mut turn = hand.next_request().await;
    turn.send_part(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n").await;
    turn.chunk(&[b'a'; 1500]).await;
    turn.chunk(&[b'b'; 1500]).await;
    // The response is not complete, but the next call has the slot.
    let next = proxy.call(proxy.predict(1));
    hand.next_request().await.echo().await;
    assert_answer(&next.answer().await, 200, &predictions(&[1]));
    proxy.wait_idle().await;
    turn.chunk(&[b'c'; 1500]).await;
    turn.send_part(b"0\r\n\r\n").await;
    within_timeout(client.receive("POST", &mut answer)).await;
    let expected: String = ["a", "b", "c"].map(|letter| letter.repeat(1500)).concat();
    assert_answer(&answer, 200, &expected);
}

#[tokio::test]
async fn a_response_that_stalls_in_its_body_is_a_504_and_is_not_sent_again() {
    let (proxy, mut hand) =
        start_with_scripted_server(json!({"proxy": {"connection": {"bodyIdleTimeout": "60ms"}}})).await;
    let (unbatched, mut turn) = proxy.occupy_slot(&mut hand).await;
    turn.send_part(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{").await;
    assert_failure(&unbatched.answer().await, 504, "GRP3303", "upstream_timeout");
    turn.wait_closed().await;
    let (callers, mut turn) = proxy.form_batch(&mut hand, vec![proxy.predict(1), proxy.predict(2)]).await;
    turn.send_part(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{").await;
    turn.wait_closed().await;
    for caller in callers {
        assert_failure(&caller.answer().await, 504, "GRP3303", "upstream_timeout");
    }
    proxy.wait_idle().await;
    assert_eq!(hand.pending_requests(), 0);
}

#[tokio::test]
async fn an_answer_before_the_request_body_was_read_is_forwarded() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = TestProxy::start_in_front_of(&format!("http://{}", server.local_addr().unwrap()), json!({}));
    let caller = proxy.call(proxy.request("POST", "/x", &[("transfer-encoding", "chunked")], Some(&[b'x'; 4000])));
    let text = b"HTTP/1.1 413 Too Large\r\nconnection: close\r\ncontent-length: 2\r\n\r\nno";
    let served = async {
        loop {
            let (mut stream, _) = server.accept().await.unwrap();
            let mut head = [0; 64];
            if tokio::io::AsyncReadExt::read(&mut stream, &mut head).await.unwrap() > 0 {
                tokio::io::AsyncWriteExt::write_all(&mut stream, text).await.unwrap();
                return stream;
            }
        }
    };
    let _stream = within_timeout(served).await;
    assert_answer(&caller.answer().await, 413, "no");
}

#[tokio::test]
async fn an_answer_whose_head_is_too_large_is_a_502() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    let many: String = (0..101).map(|n| format!("x-{n}: 1\r\n")).collect();
    // hyper's own bound is soft: a head that arrives at once may be up to twice the limit.
    let large = format!("x-large: {}\r\n", "a".repeat(130 << 10));
    for headers in [many, large] {
        let (caller, turn) = proxy.occupy_slot(&mut hand).await;
        turn.send_raw(format!("HTTP/1.1 200 OK\r\n{headers}content-length: 0\r\n\r\n").as_bytes()).await;
        assert_failure(&caller.answer().await, 502, "GRP3302", "upstream_broken");
    }
    assert_eq!(count(&proxy.stats().batches), 2);
}
