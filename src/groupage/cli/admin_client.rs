//! A minimal HTTP client for the admin port of a proxy on this machine.
//!
//! It uses HTTP/1.0, so that responses have neither chunks nor a persistent connection. A client of
//! a few lines around `httparse` suffices, and the command needs no async runtime.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use httparse::{EMPTY_HEADER, Response, Status};

/// Timeout of connecting and of each read and write.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of bytes that are read of a response. The largest one of the proxy is far
/// smaller.
pub(super) const ANSWER_BYTES_MAX: u64 = 16 << 20;
/// Maximum number of headers of a response. The proxy sends fewer than ten.
const HEADERS_MAX: usize = 64;

/// Sends a GET request and returns the body of a successful response.
///
/// # Errors
/// A message if the request or the response failed.
pub(super) fn get(address: &str, path: &str) -> Result<Vec<u8>, String> {
    query(address, path, &get_request(path))
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
    query(address, path, &(head + json))
}

fn query(address: &str, path: &str, request: &str) -> Result<Vec<u8>, String> {
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
    let mut headers = [EMPTY_HEADER; HEADERS_MAX];
    let mut response = Response::new(&mut headers);
    let head = match response.parse(answer) {
        Ok(Status::Complete(length)) => length,
        // The body is empty if the response is cut off within its head.
        Ok(Status::Partial) | Err(_) => answer.len(),
    };
    if response.code != Some(200) {
        let status = response.code.map(|code| format!("{code:03}")).unwrap_or_default();
        return Err(format!("{address} answers {path} with {status:?}: is it the admin port of a groupage proxy?"));
    }
    Ok(answer.get(head..).unwrap_or_default())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_returned_only_with_status_200() {
        let of = |answer: &'static str| body("a:1", "/p", answer.as_bytes());
        assert_eq!(of("HTTP/1.0 200 OK\r\na: b\r\n\r\n{}\r\n\r\n"), Ok(&b"{}\r\n\r\n"[..]));
        assert_eq!(of("HTTP/1.1 200 OK\r\na:"), Ok(&b""[..]));
        for (answer, status) in [
            ("HTTP/1.1 404 Not Found\r\n\r\n{}", "404"),
            ("HTTP/1.1 503\r\n\r\n", "503"),
            ("SSH-2.0-OpenSSH_9.2\r\n", ""),
            ("", ""),
        ] {
            let error = format!("a:1 answers /p with {status:?}: is it the admin port of a groupage proxy?");
            assert_eq!(of(answer).unwrap_err(), error);
        }
    }
}
