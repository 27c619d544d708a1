//! A minimal HTTP client for the admin port of a proxy on this machine.
//!
//! It uses HTTP/1.0, so that responses have neither chunks nor a persistent connection. A client of
//! a few lines suffices, and the command needs no async runtime.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// Timeout of connecting and of each read and write.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of bytes that are read of a response. The largest one of the proxy is far
/// smaller.
pub(super) const ANSWER_BYTES_MAX: u64 = 16 << 20;

/// Sends a GET request and returns the body of a successful response.
///
/// # Errors
/// A message if the request or the response failed.
pub(super) fn get(address: &str, path: &str) -> Result<Vec<u8>, String> {
    ask(address, path, &get_request(path))
}

/// Returns the text of a GET request, for any connection.
pub(super) fn get_request(path: &str) -> String {
    format!("GET {path} HTTP/1.0\r\nhost: localhost\r\n\r\n")
}

/// Sends a POST request with a JSON body and returns the body of a successful response.
///
/// # Errors
/// See [`get`].
pub(super) fn post(address: &str, path: &str, json: &str) -> Result<Vec<u8>, String> {
    let length = json.len();
    let head = format!(
        "POST {path} HTTP/1.0\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    );
    ask(address, path, &(head + json))
}

fn ask(address: &str, path: &str, request: &str) -> Result<Vec<u8>, String> {
    let answer = exchange(address, request).map_err(|error| {
        format!("cannot query {address}: {error}; is a proxy running there with its admin port enabled (--admin ADDR)?")
    })?;
    body(address, path, &answer).map(<[u8]>::to_vec)
}

/// Returns the body of a response.
///
/// # Errors
/// If the status is not 200.
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
    let mut last = std::io::Error::new(std::io::ErrorKind::InvalidInput, "the address does not resolve");
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
        // The request has `host: localhost`, since the admin port accepts only names of this
        // machine, even through a port-forward.
        stream.write_all(request.as_bytes())?;
        let mut answer = Vec::new();
        stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)?;
        return Ok(answer);
    }
    Err(last)
}
