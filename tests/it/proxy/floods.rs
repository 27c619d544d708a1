//! HTTP/2 clients that send control frames: those that measure their bandwidth while they make
//! calls, and those that flood the proxy.

use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::hostile_clients::{GET, PREFACE, connect, frame, read_until_closed, until_frame};
use super::scripted_server::reply;
use super::scripted_setup::start_with_scripted_server;
use super::setup::within_timeout;

/// Flags `END_STREAM` and `END_HEADERS` of a call without a body.
const WHOLE: u8 = 0x5;
const FLOODED: &str = r#"groupage_connections_flooded_total{reason="control_frames"}"#;

/// Waits for the next DATA frame that is not empty, and returns its payload.
async fn next_data(stream: &mut TcpStream) -> Vec<u8> {
    loop {
        let data = until_frame(stream, 0).await.expect("the connection was cut off");
        if !data.is_empty() {
            return data;
        }
    }
}

#[tokio::test]
async fn a_client_that_measures_its_bandwidth_with_each_answer_is_not_cut_off() {
    let (proxy, hand) = start_with_scripted_server(json!({})).await;
    let _auto = hand.into_auto_responder(|_| reply(200, "{}"));
    let mut stream = connect(&proxy).await;
    stream.set_nodelay(true).unwrap();
    stream.write_all(&[PREFACE, &frame(4, 0, 0, &[])].concat()).await.unwrap();
    // As grpc-go after a DATA frame: it returns the window of the connection and sends a PING.
    let estimate = [frame(8, 0, 0, &2_u32.to_be_bytes()), frame(6, 0, 0, &[2; 8])].concat();
    for call in 0..3_000 {
        stream.write_all(&frame(1, WHOLE, 2 * call + 1, GET)).await.unwrap();
        assert_eq!(next_data(&mut stream).await, b"{}", "call {call}");
        stream.write_all(&estimate).await.unwrap();
    }
    assert_eq!(proxy.metric(FLOODED), 0);
}

#[tokio::test]
async fn a_flood_gets_goaway_with_the_last_call_and_calls_in_flight_are_answered() {
    let (proxy, mut hand) = start_with_scripted_server(json!({})).await;
    let mut stream = connect(&proxy).await;
    let calls = [frame(1, WHOLE, 1, GET), frame(1, WHOLE, 3, GET)].concat();
    stream.write_all(&[PREFACE, &frame(4, 0, 0, &[]), &calls].concat()).await.unwrap();
    let turns = [hand.next_request().await, hand.next_request().await];
    // The proxy stops reading in the middle, so that the call after it is not received.
    let flood = [frame(6, 0, 0, &[0; 8]).repeat(8_000), frame(1, WHOLE, 5, GET)].concat();
    within_timeout(stream.write_all(&flood)).await.unwrap();
    let goaway = until_frame(&mut stream, 7).await.unwrap();
    assert_eq!(goaway, [3_u32.to_be_bytes(), 11_u32.to_be_bytes()].concat(), "ENHANCE_YOUR_CALM");
    for turn in turns {
        turn.answer(200, "{}").await;
    }
    for _ in 0..2 {
        assert_eq!(next_data(&mut stream).await, b"{}");
    }
    read_until_closed(&mut stream).await;
    assert_eq!((hand.pending_requests(), proxy.metric(FLOODED)), (0, 1));
}
