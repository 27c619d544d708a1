//! Bidirectional byte relay for upgraded connections and for protocols other than HTTP.

use std::future::Future;
use std::io::{IoSlice, Result};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;

use crate::body::ActivityFlag;

/// Size of the copy buffer per direction.
const BUFFER: usize = 16 << 10;
/// Maximum total size of pieces that are joined before they are written: a head with a short body,
/// and small enough for the stack.
const JOINED_MAX: usize = 2 << 10;

/// Relays bytes in both directions until both ends are closed, or nothing moved for `limit`. The
/// end of one direction is propagated to the other side, which may continue to send.
pub async fn relay(
    one: impl AsyncRead + AsyncWrite + Unpin,
    other: impl AsyncRead + AsyncWrite + Unpin,
    limit: Duration,
) {
    let (one_read, one_write) = tokio::io::split(one);
    let (other_read, other_write) = tokio::io::split(other);
    let moved = ActivityFlag::default();
    let both = async {
        tokio::join!(copy(one_read, other_write, &moved), copy(other_read, one_write, &moved));
    };
    run_while_active(both, limit, &moved).await;
}

/// Awaits `work` as long as there is activity or none is required: a request that was taken
/// completely waits for its response without a limit. Returns `None` after `limit` without
/// activity.
pub async fn run_while_active<T>(work: impl Future<Output = T>, limit: Duration, moved: &ActivityFlag) -> Option<T> {
    let mut work = pin!(work);
    loop {
        match tokio::time::timeout(limit, work.as_mut()).await {
            Ok(done) => return Some(done),
            Err(_) if moved.take() || moved.is_uploaded() => {}
            Err(_) => return None,
        }
    }
}

/// Reads at most `max` bytes.
pub fn poll_read_within(
    stream: &mut (impl AsyncRead + Unpin),
    cx: &mut Context<'_>,
    buf: &mut ReadBuf<'_>,
    max: usize,
) -> Poll<Result<()>> {
    if buf.remaining() <= max {
        return Pin::new(stream).poll_read(cx, buf);
    }
    let mut part = ReadBuf::new(buf.initialize_unfilled_to(max));
    let poll = Pin::new(stream).poll_read(cx, &mut part);
    let read = part.filled().len();
    buf.advance(read);
    poll
}

/// Writes pieces, joined if they are small: copying a head and a short body is cheaper than a
/// vectored write.
pub fn poll_write_joined(
    stream: Pin<&mut TcpStream>,
    cx: &mut Context<'_>,
    pieces: &[IoSlice<'_>],
) -> Poll<Result<usize>> {
    let whole: usize = pieces.iter().map(|piece| piece.len()).sum();
    if pieces.len() < 2 || whole > JOINED_MAX {
        return stream.poll_write_vectored(cx, pieces);
    }
    let mut joined = [0; JOINED_MAX];
    let mut end = 0;
    for piece in pieces {
        if let Some(room) = joined.get_mut(end..end + piece.len()) {
            room.copy_from_slice(piece);
            end += piece.len();
        }
    }
    stream.poll_write(cx, joined.get(..end).unwrap_or_default())
}

async fn copy(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, moved: &ActivityFlag) {
    let mut buffer = vec![0; BUFFER];
    loop {
        match from.read(&mut buffer).await {
            Ok(0) | Err(_) => break,
            Ok(read) => {
                moved.set();
                let Some(bytes) = buffer.get(..read) else { break };
                // Flushed, because a TLS stream may still buffer written bytes.
                if to.write_all(bytes).await.is_err() || to.flush().await.is_err() {
                    break;
                }
            }
        }
    }
    // Propagates the end of the stream. Fails if the other side is already closed.
    to.shutdown().await.ok();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_end_of_one_direction_is_forwarded_and_the_other_stays_open() {
        let (mut client, ours) = tokio::io::duplex(64);
        let (theirs, mut server) = tokio::io::duplex(64);
        let relayed = tokio::spawn(relay(ours, theirs, Duration::from_secs(20)));
        client.write_all(b"question").await.unwrap();
        client.shutdown().await.unwrap();
        let mut request = String::new();
        server.read_to_string(&mut request).await.unwrap();
        server.write_all(b"answer").await.unwrap();
        drop(server);
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        relayed.await.unwrap();
        assert_eq!((request.as_str(), answer.as_str()), ("question", "answer"));
    }

    #[tokio::test]
    async fn pieces_arrive_in_order_whether_they_are_joined_or_not() {
        for length in [1, JOINED_MAX / 2, JOINED_MAX] {
            let port = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let mut stream = TcpStream::connect(port.local_addr().unwrap()).await.unwrap();
            let (head, body) = (vec![b'h'; length], vec![b'b'; length]);
            let pieces = [IoSlice::new(&head), IoSlice::new(&body)];
            let written =
                std::future::poll_fn(|cx| poll_write_joined(Pin::new(&mut stream), cx, &pieces)).await.unwrap();
            assert_eq!(written, 2 * length, "an empty socket takes so little at once");
            drop(stream);
            let mut received = Vec::new();
            port.accept().await.unwrap().0.read_to_end(&mut received).await.unwrap();
            assert_eq!(received, [head, body].concat());
        }
    }

    #[tokio::test]
    async fn idle_relay_ends() {
        let (mut client, ours) = tokio::io::duplex(64);
        let (theirs, _server) = tokio::io::duplex(64);
        client.write_all(b"once").await.unwrap();
        let hang = Duration::from_secs(20);
        tokio::time::timeout(hang, relay(ours, theirs, Duration::from_millis(20))).await.unwrap();
    }
}
