//! Tests of message framing according to HTTP/1.1 (RFC 9112).

use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;

use super::*;

fn pair() -> (HttpConnection, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    (HttpConnection::unix(ours), theirs)
}

#[tokio::test]
async fn answers_are_framed_by_length_chunks_or_close_and_informational_ones_are_skipped() {
    let (mut conn, mut peer) = pair();
    peer.write_all(
        b"HTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nabHTTP/1.1 503 x\r\n\
          transfer-encoding: chunked\r\nConnection: close\r\n\r\n2\r\nde\r\n1;x=y\r\nf\r\n0\r\nt: 1\r\n\r\nHTTP/1.1 204 n\r\n\r\n\
          HTTP/1.1 200 OK\r\nx: y\r\n\r\nto the end",
    )
    .await
    .unwrap();
    drop(peer);
    let read = async |conn: &mut HttpConnection| {
        let answer = conn.inbox.read_answer().await.unwrap();
        (answer.status, answer.body.to_vec(), answer.close)
    };
    assert_eq!(read(&mut conn).await, (200, b"ab".to_vec(), false));
    assert_eq!(read(&mut conn).await, (503, b"def".to_vec(), true));
    assert_eq!(read(&mut conn).await, (204, Vec::new(), false));
    assert_eq!(read(&mut conn).await, (200, b"to the end".to_vec(), true));
}

#[tokio::test]
async fn a_truncated_answer_is_an_error_and_its_bytes_stay_readable() {
    let (mut conn, mut peer) = pair();
    peer.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc").await.unwrap();
    drop(peer);
    assert_eq!(conn.inbox.read_answer().await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    assert!(conn.inbox.unread().ends_with(b"abc"));
}

#[tokio::test]
async fn requests_come_one_by_one_until_the_peer_closes() {
    let (mut conn, mut peer) = pair();
    peer.write_all(b"POST /a HTTP/1.1\r\nX-Tenant: t\r\ncontent-length: 1\r\n\r\nxGET /b HTTP/1.1\r\n\r\n")
        .await
        .unwrap();
    drop(peer);
    let first = conn.inbox.read_request().await.unwrap().unwrap();
    assert_eq!((first.target(), first.header("x-tenant"), first.body), (("POST", "/a"), Some(&b"t"[..]), &b"x"[..]));
    assert_eq!(conn.inbox.read_request().await.unwrap().unwrap().target().1, "/b");
    assert!(conn.inbox.read_request().await.unwrap().is_none());
}
