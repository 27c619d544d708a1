//! Bytes both ways, untouched: a switched protocol, or a connection that never was HTTP.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::body::Moved;

/// What is moved at once.
const BUFFER: usize = 16 << 10;

/// Carries bytes both ways until both ends are done, or nothing moved for the limit. The end of one direction is told to the other side, which may go on.
pub async fn relay(
    one: impl AsyncRead + AsyncWrite + Unpin,
    other: impl AsyncRead + AsyncWrite + Unpin,
    limit: Duration,
) {
    let (one_read, one_write) = tokio::io::split(one);
    let (other_read, other_write) = tokio::io::split(other);
    let moved = Moved::default();
    let both = async {
        tokio::join!(copy(one_read, other_write, &moved), copy(other_read, one_write, &moved));
    };
    while_moving(both, limit, &moved).await;
}

/// Waits for work for as long as something moves; `None` when nothing did for the limit.
async fn while_moving<T>(work: impl Future<Output = T>, limit: Duration, moved: &Moved) -> Option<T> {
    while_unfinished(work, limit, moved, || true).await
}

/// Waits for work; `None` when nothing moved for the limit while a part of it was unfinished that has to move.
pub async fn while_unfinished<T>(
    work: impl Future<Output = T>,
    limit: Duration,
    moved: &Moved,
    unfinished: impl Fn() -> bool,
) -> Option<T> {
    let mut work = pin!(work);
    loop {
        match tokio::time::timeout(limit, work.as_mut()).await {
            Ok(done) => return Some(done),
            Err(_) if moved.take() || !unfinished() => {}
            Err(_) => return None,
        }
    }
}

async fn copy(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, moved: &Moved) {
    let mut buffer = vec![0; BUFFER];
    loop {
        match from.read(&mut buffer).await {
            Ok(0) | Err(_) => break,
            Ok(read) => {
                moved.set();
                let Some(bytes) = buffer.get(..read) else { break };
                // Flushed: inside TLS what was written may not have left.
                if to.write_all(bytes).await.is_err() || to.flush().await.is_err() {
                    break;
                }
            }
        }
    }
    // The other side sees the end; it may be gone already.
    to.shutdown().await.ok();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_end_of_one_direction_is_told_and_the_other_goes_on() {
        let (mut client, ours) = tokio::io::duplex(64);
        let (theirs, mut server) = tokio::io::duplex(64);
        let relayed = tokio::spawn(relay(ours, theirs, Duration::from_secs(20)));
        client.write_all(b"question").await.unwrap();
        client.shutdown().await.unwrap();
        let mut asked = String::new();
        server.read_to_string(&mut asked).await.unwrap();
        server.write_all(b"answer").await.unwrap();
        drop(server);
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        relayed.await.unwrap();
        assert_eq!((asked.as_str(), answer.as_str()), ("question", "answer"));
    }

    #[tokio::test]
    async fn who_says_nothing_for_too_long_is_left() {
        let (mut client, ours) = tokio::io::duplex(64);
        let (theirs, _server) = tokio::io::duplex(64);
        client.write_all(b"once").await.unwrap();
        let hang = Duration::from_secs(20);
        tokio::time::timeout(hang, relay(ours, theirs, Duration::from_millis(20))).await.unwrap();
    }
}
