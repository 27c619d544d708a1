//! A wait for the first message of a TLS client, the `ClientHello`, which does not read it.
//!
//! A server that limits concurrent handshakes begins one only after this wait. A client that sends
//! nothing, or a part of the message, then holds no permit that other clients wait for.

use std::io;

use rustix::net::RecvFlags;
use tokio::io::Interest;
use tokio::net::TcpStream;

/// Type of a record with a handshake message (RFC 8446, 5.1).
const HANDSHAKE_RECORD: u8 = 22;
/// Length of a record's header: its type, a version, and the length of its payload.
const RECORD_HEADER_LEN: usize = 5;
/// Maximum length of the payload of a record without encryption (RFC 8446, 5.1).
const RECORD_BYTES_MAX: usize = 1 << 14;
/// Maximum number of bytes that are waited for, including the header. A message with a post-quantum
/// key share has about 1500 bytes, and the kernel buffers more than this for every connection. A
/// longer message, such as one that resumes a session with a large ticket, has arrived for the most
/// part.
const PEEK_BYTES_MAX: usize = 2 << 10;

/// Resolves once the first record of a TLS client has arrived, or the first 2 KiB of it. No bytes
/// are read.
///
/// # Errors
/// Returns an error if the client sends anything else, or disconnects.
pub async fn wait_for_client_hello(stream: &TcpStream) -> io::Result<()> {
    loop {
        let ready = stream.ready(Interest::READABLE).await?;
        // `try_io` marks the socket as not readable if the record is incomplete, unless more bytes
        // were reported during the peek. Without it the loop would spin on the bytes that are
        // there. A closed socket stays readable, so the loop ends in that case.
        match stream.try_io(Interest::READABLE, || peek(stream)) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && !ready.is_read_closed() => {}
            result => return result,
        }
    }
}

/// Returns `WouldBlock` if the record is incomplete.
fn peek(stream: &TcpStream) -> io::Result<()> {
    let mut bytes = [0_u8; PEEK_BYTES_MAX];
    let (_, length) = rustix::net::recv(stream, bytes.as_mut_slice(), RecvFlags::PEEK)?;
    if is_complete(bytes.get(..length).unwrap_or_default())? { Ok(()) } else { Err(io::ErrorKind::WouldBlock.into()) }
}

/// Returns `true` if the first record is complete, as far as it is waited for.
fn is_complete(received: &[u8]) -> io::Result<bool> {
    match received.first() {
        None => return Err(io::ErrorKind::UnexpectedEof.into()),
        Some(&HANDSHAKE_RECORD) => {}
        Some(_) => return Err(io::ErrorKind::InvalidData.into()),
    }
    let Some((&[_, _, _, high, low], payload)) = received.split_first_chunk::<RECORD_HEADER_LEN>() else {
        return Ok(false);
    };
    let length = usize::from(u16::from_be_bytes([high, low]));
    if length == 0 || length > RECORD_BYTES_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(payload.len() >= length.min(PEEK_BYTES_MAX - RECORD_HEADER_LEN))
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio::time::timeout;

    use super::*;

    const HANG: Duration = Duration::from_secs(20);
    const MOMENT: Duration = Duration::from_millis(20);

    fn record(length: u16) -> Vec<u8> {
        let [high, low] = length.to_be_bytes();
        let mut record = vec![HANDSHAKE_RECORD, 3, 1, high, low];
        record.resize(RECORD_HEADER_LEN + usize::from(length), 1);
        record
    }

    async fn connected() -> (TcpStream, TcpStream) {
        let port = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(port.local_addr().unwrap()).await.unwrap();
        (client, port.accept().await.unwrap().0)
    }

    #[tokio::test]
    async fn a_record_in_pieces_is_waited_for_and_not_read() {
        let (mut client, mut server) = connected().await;
        let sent = record(700);
        {
            let mut waiting = pin!(wait_for_client_hello(&server));
            for piece in [&sent[..1], &sent[1..4], &sent[4..6], &sent[6..704]] {
                client.write_all(piece).await.unwrap();
                assert!(timeout(MOMENT, waiting.as_mut()).await.is_err(), "{} bytes more", piece.len());
            }
            client.write_all(&sent[704..]).await.unwrap();
            timeout(HANG, waiting).await.unwrap().unwrap();
        }
        drop(client);
        let mut received = Vec::new();
        server.read_to_end(&mut received).await.unwrap();
        assert_eq!(received, sent);
    }

    #[tokio::test]
    async fn a_client_that_sends_a_part_and_disconnects_ends_the_wait() {
        for part in [0, 1, 5, 100] {
            let (mut client, server) = connected().await;
            client.write_all(&record(700)[..part]).await.unwrap();
            drop(client);
            assert!(timeout(HANG, wait_for_client_hello(&server)).await.unwrap().is_err(), "{part} bytes");
        }
        // The wait has begun before the client disconnects.
        let (mut client, server) = connected().await;
        client.write_all(&record(700)[..9]).await.unwrap();
        let mut waiting = pin!(wait_for_client_hello(&server));
        assert!(timeout(MOMENT, waiting.as_mut()).await.is_err());
        drop(client);
        assert!(timeout(HANG, waiting).await.unwrap().is_err());
    }

    #[test]
    fn records_of_other_types_and_lengths_are_refused() {
        for other in [&b"GET / HTTP/1.1\r\n"[..], &[21], &[22, 3, 1, 0, 0], &[22, 3, 1, 0x40, 1]] {
            assert_eq!(is_complete(other).unwrap_err().kind(), io::ErrorKind::InvalidData, "{other:?}");
        }
        assert_eq!(is_complete(&[]).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_long_record_is_waited_for_up_to_a_limit() {
        let long = record(16_384);
        assert!(!is_complete(&long[..PEEK_BYTES_MAX - 1]).unwrap());
        assert!(is_complete(&long[..PEEK_BYTES_MAX]).unwrap());
        let short = record(1);
        assert!(is_complete(&short).unwrap() && !is_complete(&short[..RECORD_HEADER_LEN]).unwrap());
    }
}
