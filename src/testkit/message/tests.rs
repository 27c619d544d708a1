//! Tests that messages are parsed according to HTTP/1.1 (RFC 9112), and that nothing else is.

use std::io::ErrorKind;

use super::*;

fn decode(framing: Framing, pieces: &[&[u8]]) -> std::io::Result<(Vec<u8>, OwnedHeaders, Vec<u8>)> {
    let (mut decoder, mut body, mut ahead) = (BodyDecoder::new(framing), Vec::new(), Vec::new());
    for piece in pieces {
        ahead.extend_from_slice(piece);
        let used = decoder.decode(&ahead, &mut body)?;
        ahead.drain(..used);
    }
    if !decoder.is_complete() {
        decoder.on_connection_end()?;
    }
    Ok((body, decoder.into_trailers(), ahead))
}

fn declared(headers: &[(&str, &str)]) -> std::io::Result<Framing> {
    response_framing("GET", 200, headers.iter().map(|(name, value)| (*name, value.as_bytes())))
}

#[test]
fn a_head_keeps_case_and_order_of_its_headers_and_leaves_the_following_bytes() {
    let bytes = b"POST /a?b=%20 HTTP/1.1\r\nX-One: \t caf\xe9 \r\nhost:h\r\nx-one:\r\n\r\nGET /next";
    let head = RequestHead::parse(bytes).unwrap().unwrap();
    assert_eq!((head.method, head.target), ("POST", "/a?b=%20"));
    let headers: [(&str, &[u8]); 3] = [("X-One", b"caf\xe9"), ("host", b"h"), ("x-one", b"")];
    assert_eq!(head.headers, headers);
    assert_eq!(&bytes[head.length..], b"GET /next");
    assert_eq!(head_headers(&bytes[..head.length]), headers);
    for cut in 0..head.length {
        assert!(RequestHead::parse(&bytes[..cut]).unwrap().is_none(), "{cut}");
    }
    let head = ResponseHead::parse(b"HTTP/1.0 299\r\na: b\r\n\r\n").unwrap().unwrap();
    assert_eq!((head.status, head.headers.len()), (299, 1));
}

#[test]
fn a_head_that_is_only_nearly_valid_is_an_error() {
    for response in [
        &b"HTTP/1.1 200 OK\n\n"[..],
        b"HTTP/1.1 200 OK\r\na: b\n\r\n",
        b"HTTP/1.1 200 OK\r\na: b\rc\r\n\r\n",
        b"\r\nHTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n a: b\r\n\r\n",
        b"HTTP/1.1 200 OK\r\na : b\r\n\r\n",
        b"HTTP/1.1 200 OK\r\na\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n: b\r\n\r\n",
        b"HTTP/1.1 200 OK\r\na: b\0\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 099 OK\r\n\r\n",
        b"HTTP/1.1  200 OK\r\n\r\n",
        b"HTTP/2.0 200 OK\r\n\r\n",
    ] {
        let error = ResponseHead::parse(response).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData, "{}", response.escape_ascii());
    }
    for request in [
        &b"GET / HTTP/1.1\n\n"[..],
        b"\r\nGET / HTTP/1.1\r\n\r\n",
        b"GET  / HTTP/1.1\r\n\r\n",
        b"GET /a b HTTP/1.1\r\n\r\n",
        b"GET /\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ] {
        let error = RequestHead::parse(request).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData, "{}", request.escape_ascii());
    }
    let endless = [&b"HTTP/1.1 200 OK\r\na: "[..], vec![b'b'; 1 << 20].as_slice()].concat();
    assert!(ResponseHead::parse(&endless).is_err());
}

#[test]
fn framing_is_declared_once_or_follows_from_method_and_status() {
    assert_eq!(declared(&[("Content-Length", "12"), ("a", "b")]).unwrap(), Framing::Length(12));
    assert_eq!(declared(&[("transfer-encoding", "Chunked")]).unwrap(), Framing::Chunked);
    assert_eq!(declared(&[]).unwrap(), Framing::UntilClose);
    assert_eq!(request_framing([]).unwrap(), Framing::Empty);
    let length: [(&str, &[u8]); 1] = [("content-length", b"7")];
    for (method, status) in [("HEAD", 200), ("GET", 103), ("GET", 204), ("GET", 304)] {
        assert_eq!(response_framing(method, status, length).unwrap(), Framing::Empty, "{method} {status}");
    }
    for wrong in [
        &[("content-length", "1"), ("content-length", "1")][..],
        &[("content-length", "1"), ("transfer-encoding", "chunked")],
        &[("transfer-encoding", "chunked"), ("Transfer-Encoding", "chunked")],
        &[("transfer-encoding", "gzip, chunked")],
        &[("transfer-encoding", "identity")],
        &[("content-length", "1, 1")],
        &[("content-length", "+1")],
        &[("content-length", "-1")],
        &[("content-length", "0x1")],
        &[("content-length", "")],
        &[("content-length", "18446744073709551616")],
    ] {
        assert_eq!(declared(wrong).unwrap_err().kind(), ErrorKind::InvalidData, "{wrong:?}");
        let headers = wrong.iter().map(|(name, value)| (*name, value.as_bytes()));
        assert!(response_framing("HEAD", 200, headers).is_err(), "{wrong:?}");
    }
}

#[test]
fn a_body_ends_as_framed_and_leaves_the_following_bytes() {
    let none = OwnedHeaders::new;
    assert_eq!(decode(Framing::Empty, &[b"next"]).unwrap(), (Vec::new(), none(), b"next".to_vec()));
    assert_eq!(decode(Framing::Length(3), &[b"a", b"bcnext"]).unwrap(), (b"abc".to_vec(), none(), b"next".to_vec()));
    assert_eq!(decode(Framing::UntilClose, &[b"ab", b"c"]).unwrap(), (b"abc".to_vec(), none(), Vec::new()));
    let text = b"2\r\nde\r\n0A;x=\"y z\"\r\n0123456789\r\n00\r\nT-One: 1\r\nt-one:\xe9\r\n\r\nnext";
    let trailers = vec![("T-One".to_owned(), b"1".to_vec()), ("t-one".to_owned(), b"\xe9".to_vec())];
    let expected = (b"de0123456789".to_vec(), trailers, b"next".to_vec());
    assert_eq!(decode(Framing::Chunked, &[text]).unwrap(), expected);
    let bytes: Vec<&[u8]> = text.chunks(1).collect();
    assert_eq!(decode(Framing::Chunked, &bytes).unwrap(), expected);
}

#[test]
fn a_body_that_is_cut_off_is_incomplete() {
    let cut = |framing, text: &[u8]| decode(framing, &[text]).unwrap_err().kind();
    assert_eq!(cut(Framing::Length(3), b"ab"), ErrorKind::UnexpectedEof);
    let text = b"2;x\r\nde\r\n0\r\nt: 1\r\n\r\n";
    for length in 0..text.len() {
        assert_eq!(cut(Framing::Chunked, &text[..length]), ErrorKind::UnexpectedEof, "{length}");
    }
}

#[test]
fn a_chunk_that_is_only_nearly_valid_is_an_error() {
    for text in [
        &b"\r\n"[..],
        b"\r\n\r\n",
        b";x\r\n\r\n",
        b" 2\r\nde\r\n0\r\n\r\n",
        b"2 \r\nde\r\n0\r\n\r\n",
        b"2 ;x\r\nde\r\n0\r\n\r\n",
        b"0x2\r\nde\r\n0\r\n\r\n",
        b"+2\r\nde\r\n0\r\n\r\n",
        b"2\nde\r\n0\r\n\r\n",
        b"2;x\ny\r\nde\r\n0\r\n\r\n",
        b"2\r\ndef\r\n0\r\n\r\n",
        b"2\r\nde\n0\r\n\r\n",
        b"3\r\nde\r\n0\r\n\r\n",
        b"10000000000000000\r\n",
        b"0\r\nt : 1\r\n\r\n",
        b"0\r\nt\r\n\r\n",
        b"0\r\nt: 1\n\r\n",
        b"0\r\n\n",
    ] {
        let error = decode(Framing::Chunked, &[text]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData, "{}", text.escape_ascii());
    }
}
