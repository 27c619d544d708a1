//! One request to the admin port of a proxy on this machine.
//!
//! It asks in HTTP/1.0, so the answer has neither chunks nor a connection that stays: a client of a few lines will do, and the command needs no runtime.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// How long connecting, and each read and write, may take.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The most that is read of an answer: the largest that the proxy makes is far below.
pub(super) const ANSWER_BYTES_MAX: u64 = 16 << 20;

/// The body of a good answer.
///
/// # Errors
/// What went wrong, in words.
pub(super) fn get(address: &str, path: &str) -> Result<Vec<u8>, String> {
    ask(address, path, &get_request(path))
}

/// The request for a page, whatever connection it goes over.
pub(super) fn get_request(path: &str) -> String {
    format!("GET {path} HTTP/1.0\r\nhost: localhost\r\n\r\n")
}

/// Changes something, and gives the body of a good answer.
///
/// # Errors
/// As [`get`].
pub(super) fn post(address: &str, path: &str, json: &str) -> Result<Vec<u8>, String> {
    let length = json.len();
    let head = format!(
        "POST {path} HTTP/1.0\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    );
    ask(address, path, &(head + json))
}

fn ask(address: &str, path: &str, request: &str) -> Result<Vec<u8>, String> {
    let answer = exchange(address, request).map_err(|error| {
        format!("cannot ask {address}: {error}; is a proxy running there with its admin port on (--admin ADDR)?")
    })?;
    body(address, path, &answer).map(<[u8]>::to_vec)
}

/// The body of an answer.
///
/// # Errors
/// Its status is another than 200.
pub(super) fn body<'a>(address: &str, path: &str, answer: &'a [u8]) -> Result<&'a [u8], String> {
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n");
    let (head, body) = end.and_then(|end| answer.split_at_checked(end + 4)).unwrap_or((answer, &[]));
    let status = head.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
    if status != b"200" {
        let status = String::from_utf8_lossy(status.get(..3).unwrap_or_default());
        return Err(format!("{address} answers {path} with {status:?}: is it the admin port of a groupage proxy?"));
    }
    Ok(body)
}

fn exchange(address: &str, request: &str) -> std::io::Result<Vec<u8>> {
    let mut last = std::io::Error::new(std::io::ErrorKind::InvalidInput, "no such address");
    for target in address.to_socket_addrs()? {
        let mut stream = match TcpStream::connect_timeout(&target, TIMEOUT) {
            Ok(stream) => stream,
            Err(error) => {
                last = error;
                continue;
            }
        };
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        // The port answers to names of this machine only, whatever forwarding led here.
        stream.write_all(request.as_bytes())?;
        let mut answer = Vec::new();
        stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)?;
        return Ok(answer);
    }
    Err(last)
}
