//! A strict parser for HTTP/1.1 messages (RFC 9112), without I/O.
//!
//! `httparse` parses the syntax. It accepts some input that no peer may send: bare line feeds,
//! empty lines before the start line, and chunk sizes without a digit. All of these are errors
//! here, and so are two framing headers in one message, because a proxy under test is judged by the
//! bytes that it writes. Nothing is repaired, and headers keep their case and order.
//!
//! Connections are not part of it: their owners read bytes, pass them in, and keep those that
//! belong to the next message. Every error is an [`std::io::Error`]: `InvalidData` for bytes that
//! violate the protocol, with a quotation of them, and `UnexpectedEof` for a message that is cut
//! off.

mod body;
mod head;
mod syntax;
#[cfg(test)]
mod tests;

pub use self::body::BodyDecoder;
pub(crate) use self::head::head_headers;
pub use self::head::{Framing, RequestHead, ResponseHead, request_framing, response_framing};
pub use self::syntax::{HeaderList, OwnedHeaders};
