//! What the black-box test binaries share: the proxy as a process, a scripted upstream before raw sockets, clients that
//! speak HTTP/1.1 byte by byte, a JSON reader that keeps spellings, and the report. No HTTP library stands between a
//! test and the bytes it judges: a library would repair, merge or hide what the tests look for.
//!
//! Include it with `#[path = "../support/all.rs"] mod support;`.

pub(crate) mod client;
pub(crate) mod json;
pub(crate) mod proxy;
pub(crate) mod report;
pub(crate) mod upstream;
pub(crate) mod wire;
