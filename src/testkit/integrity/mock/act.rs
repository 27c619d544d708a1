//! Execution of faults: the bytes, pauses and connection ends of each kind.
//!
//! [`Fault`] describes each kind. Responses that are correct carry no fault header, so that their
//! results are checked like those without a fault.

use std::io;
use std::time::Duration;

use rand::Rng;
use rand::rngs::SmallRng;

use super::super::FAULT_HEADER;
use super::super::fault::Fault;
use super::upstream_call::{JSON, UpstreamCall, answer};
use super::{AfterResponse, MockState};
use crate::http1::HttpConnection;
use crate::refusal::ListResponse;
use crate::time::Timer;

/// Size of one chunk of an endless response.
const CHUNK_BYTES: usize = 16 * 1024;
/// Number of bytes that a response declares but never sends; any number is a fault.
const MISSING_BYTES: usize = 9;

/// Context for the execution of one fault.
pub(super) struct FaultExecution<'a> {
    pub(super) shared: &'a MockState,
    pub(super) call: &'a UpstreamCall,
    pub(super) rng: SmallRng,
}

// === impl FaultExecution ===

impl FaultExecution<'_> {
    pub(super) async fn fault(mut self, fault: Fault, conn: HttpConnection) -> io::Result<AfterResponse> {
        // The fault is named only if the call was forwarded alone: its client receives the
        // upstream's own response, however malformed.
        let fault_header =
            if self.call.members == 1 { format!("{FAULT_HEADER}: {}\r\n", fault.name()) } else { String::new() };
        let fault_header = fault_header.as_str();
        let body = self.call.body();
        let body = body.as_bytes();
        match fault {
            Fault::SilentHead | Fault::SilentBody | Fault::SlowBody => {
                self.send_silence(fault, &answer("200 OK", fault_header, body), conn).await
            }
            Fault::ResetBefore => {
                conn.reset();
                Ok(AfterResponse::Close)
            }
            Fault::EndBefore => Ok(AfterResponse::Close),
            Fault::ResetInside | Fault::EndInside => {
                self.send_truncated(fault, &answer("200 OK", fault_header, body), conn).await
            }
            Fault::ShortChunk => {
                let mut bytes = chunked_head(fault_header);
                bytes.extend_from_slice(format!("{:x}\r\n", body.len() + MISSING_BYTES).as_bytes());
                bytes.extend_from_slice(body);
                send_and_close(conn, &bytes).await
            }
            Fault::LongLength => {
                let head = format!(
                    "HTTP/1.1 200 OK\r\n{JSON}{fault_header}content-length: {}\r\n\r\n",
                    body.len() + MISSING_BYTES
                );
                send_and_close(conn, &[head.as_bytes(), body].concat()).await
            }
            Fault::Refused => {
                // The response is correct. The accept loop then closes the listener for a moment.
                let next = send_and_keep(conn, &answer("200 OK", "", body)).await;
                self.shared.refuse.notify_one();
                next
            }
            Fault::TooMany | Fault::Unavailable => {
                let status = if fault == Fault::TooMany { "429 Too Many Requests" } else { "503 Service Unavailable" };
                let extra = format!("{fault_header}retry-after: {}\r\n", self.shared.config.retry_after);
                send_and_keep(conn, &answer(status, &extra, br#"{"error":"overloaded"}"#)).await
            }
            Fault::Error => {
                send_and_keep(conn, &answer("500 Internal Server Error", fault_header, br#"{"error":"for once"}"#))
                    .await
            }
            Fault::Redirect => {
                // The link-local address of cloud metadata services: following it would leak
                // credentials.
                let extra = format!("{fault_header}location: http://169.254.169.254/\r\n");
                send_and_keep(conn, &answer("307 Temporary Redirect", &extra, b"")).await
            }
            Fault::CountLess | Fault::CountMore | Fault::CountNone | Fault::IndexTwice | Fault::IndexMissing => {
                send_and_keep(conn, &answer("200 OK", fault_header, self.call.wrong_body(fault).as_bytes())).await
            }
            Fault::IndexShuffled => {
                send_and_keep(conn, &answer("200 OK", "", self.call.wrong_body(fault).as_bytes())).await
            }
            Fault::Unasked | Fault::UnaskedSoon | Fault::UnaskedLater | Fault::UnaskedLate => {
                send_twice(fault.unsolicited_delay().unwrap_or_default(), conn, answer("200 OK", "", body)).await
            }
            Fault::Huge => {
                let padded = format!("{}{}", self.call.body(), " ".repeat(self.shared.config.answer_bytes_max * 2));
                send_and_keep(conn, &answer("200 OK", fault_header, padded.as_bytes())).await
            }
            Fault::Endless => self.send_endless(fault_header, conn).await,
            Fault::Html => {
                let page = "<!doctype html><title>model server</title><p>It works!";
                let head = format!(
                    "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\n{fault_header}content-length: {}\r\n\r\n",
                    page.len()
                );
                send_and_keep(conn, format!("{head}{page}").as_bytes()).await
            }
            Fault::BadJson => {
                let broken = body.get(..self.rng.random_range(0..body.len())).unwrap_or_default();
                send_and_keep(conn, &answer("200 OK", fault_header, broken)).await
            }
            Fault::Gzip => {
                // A gzip header followed by arbitrary content, because the proxy must not
                // decompress it.
                let packed = [&[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3], body].concat();
                send_and_keep(conn, &answer("200 OK", &format!("{fault_header}content-encoding: gzip\r\n"), &packed))
                    .await
            }
            Fault::NoContent => {
                send_and_keep(conn, format!("HTTP/1.1 204 No Content\r\n{fault_header}\r\n").as_bytes()).await
            }
            Fault::EarlyHints => {
                let first = b"HTTP/1.1 103 Early Hints\r\nlink: </style.css>; rel=preload\r\n\r\n";
                send_and_keep(conn, &[&first[..], &answer("200 OK", "", body)].concat()).await
            }
            Fault::Continue => {
                send_and_keep(conn, &[&b"HTTP/1.1 100 Continue\r\n\r\n"[..], &answer("200 OK", "", body)].concat())
                    .await
            }
            Fault::Trailers => {
                let mut bytes = chunked_head("trailer: x-stand-in-trailer\r\n");
                bytes.extend_from_slice(format!("{:x}\r\n", body.len()).as_bytes());
                bytes.extend_from_slice(body);
                bytes.extend_from_slice(b"\r\n0\r\nx-stand-in-trailer: 1\r\n\r\n");
                send_and_keep(conn, &bytes).await
            }
        }
    }

    async fn send_silence(mut self, fault: Fault, whole: &[u8], mut conn: HttpConnection) -> io::Result<AfterResponse> {
        let config = &self.shared.config;
        if fault == Fault::SilentBody {
            let n = self.random_position(whole);
            conn.outbox.send(whole.get(..n).unwrap_or_default()).await?;
        }
        let silence = async {
            if fault == Fault::SlowBody {
                let head = memchr::memmem::find(whole, b"\r\n\r\n").map_or(0, |at| at + 4);
                let (head, body) = whole.split_at(head);
                conn.outbox.send(head).await.ok();
                for byte in body {
                    conn.outbox.send(&[*byte]).await.ok();
                    if tokio::time::timeout(config.drip_interval, conn.inbox.drain_until_closed()).await.is_ok() {
                        return;
                    }
                }
            }
            conn.inbox.drain_until_closed().await;
        };
        // The proxy should close the connection first. If the limit expires, the proxy has waited
        // too long, and its client reports the call as lost.
        tokio::time::timeout(config.silence_max, silence).await.ok();
        Ok(AfterResponse::Close)
    }

    async fn send_truncated(
        mut self,
        fault: Fault,
        whole: &[u8],
        mut conn: HttpConnection,
    ) -> io::Result<AfterResponse> {
        let n = self.random_position(whole);
        conn.outbox.send(whole.get(..n).unwrap_or_default()).await?;
        if fault == Fault::ResetInside {
            conn.reset();
        }
        Ok(AfterResponse::Close)
    }

    async fn send_endless(self, fault_header: &str, mut conn: HttpConnection) -> io::Result<AfterResponse> {
        let config = &self.shared.config;
        let chunk = [format!("{CHUNK_BYTES:x}\r\n").as_bytes(), &[b' '; CHUNK_BYTES], b"\r\n"].concat();
        let sending = async {
            conn.outbox.send(&chunked_head(fault_header)).await?;
            for _ in 0..(config.answer_bytes_max * 8).div_ceil(CHUNK_BYTES) {
                conn.outbox.send(&chunk).await?;
            }
            Ok::<(), io::Error>(())
        };
        // The loop ends when the peer closes the connection, stops reading, or has received eight
        // times the limit of the proxy, which bounds a run against a proxy without one.
        tokio::time::timeout(config.silence_max, sending).await.ok();
        Ok(AfterResponse::Close)
    }

    /// Returns a random position after the first byte and before the end.
    fn random_position(&mut self, whole: &[u8]) -> usize {
        self.rng.random_range(1..whole.len())
    }
}

/// Refuses a call because it contains several client calls, in place of a server that accepts only
/// single items.
pub(super) async fn refuse(
    refusal: ListResponse,
    call: &UpstreamCall,
    silence_max: Duration,
    mut conn: HttpConnection,
) -> io::Result<AfterResponse> {
    match refusal {
        ListResponse::Status(status) => {
            send_and_keep(conn, &answer(&format!("{status} One Item A Call"), "", br#"{"error":"one item a call"}"#))
                .await
        }
        ListResponse::Reset => {
            conn.reset();
            Ok(AfterResponse::Close)
        }
        ListResponse::FirstResultOnly => send_and_keep(conn, &answer("200 OK", "", call.first_body().as_bytes())).await,
        ListResponse::NotJson => send_and_keep(conn, &answer("200 OK", "", b"one item a call")).await,
        ListResponse::NoResponse => {
            // If the limit expires, the proxy has waited too long, and its client reports the call
            // as lost.
            tokio::time::timeout(silence_max, conn.inbox.drain_until_closed()).await.ok();
            Ok(AfterResponse::Close)
        }
    }
}

fn chunked_head(extra: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\n{JSON}{extra}transfer-encoding: chunked\r\n\r\n").into_bytes()
}

async fn send_and_keep(mut conn: HttpConnection, bytes: &[u8]) -> io::Result<AfterResponse> {
    conn.outbox.send(bytes).await?;
    Ok(AfterResponse::Keep(conn))
}

async fn send_and_close(mut conn: HttpConnection, bytes: &[u8]) -> io::Result<AfterResponse> {
    conn.outbox.send(bytes).await?;
    conn.outbox.finish().await?;
    Ok(AfterResponse::Close)
}

/// Sends a response, and the same bytes again as a second, unsolicited response.
async fn send_twice(after: Duration, mut conn: HttpConnection, bytes: Vec<u8>) -> io::Result<AfterResponse> {
    if after.is_zero() {
        return send_and_keep(conn, &bytes.repeat(2)).await;
    }
    conn.outbox.send(&bytes).await?;
    Timer::new()?.sleep(after).await?;
    send_and_keep(conn, &bytes).await
}
