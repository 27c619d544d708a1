//! Shared parts of the black-box test binaries: the proxy as a process, a scripted upstream on raw
//! sockets, HTTP/1.1 clients that control every byte, a JSON reader that keeps spellings, and the
//! report. No HTTP implementation is used between a test and the bytes that it judges: it would
//! repair, merge or hide what the tests look for. Only the syntax is parsed by a library.
//!
//! Include it with `#[path = "../support/all.rs"] mod support;`.

pub(crate) mod client;
pub(crate) mod command;
pub(crate) mod json;
pub(crate) mod proxy;
pub(crate) mod report;
pub(crate) mod upstream;
pub(crate) mod wire;
