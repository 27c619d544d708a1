//! Everything that is drawn from the nonce of a call or the seed of a response, so that the server
//! and the callers agree on it.

use groupage::batching::rng::SplitMix64;
/// Maximum number of chunks of a short stream.
const CHUNKS_MAX: u64 = 12;
/// One call in this number has a long stream.
const LONG_EVERY: u64 = 64;
/// Number of chunks of a long stream, and number of bytes that each has in addition. A reader that
/// takes nothing leaves room for fewer: 256 KiB in the proxy, as much in a frame that waits to be
/// written, and up to 4 MiB in the sockets (the default maximum of `net.ipv4.tcp_wmem`).
const LONG_CHUNKS: u64 = 96;
const FILLER_BYTES: usize = 64 << 10;
/// Receive buffer of the caller of a long stream.
pub(super) const LONG_BUFFER_BYTES: u32 = 64 * 1024;

/// A fault of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    None,
    Status,
    Reset,
    /// The response is no stream.
    Json,
    /// An error before the first chunk.
    FirstError,
    /// An error between chunks.
    LateError,
    /// The connection is closed between chunks.
    Cut,
    /// The stream ends properly, but too early.
    Early,
}

/// Returns the first number of the generator with this seed.
pub(super) const fn mix(seed: u64) -> u64 {
    SplitMix64::new(seed).next_u64()
}

/// Returns `true` if the stream of a nonce exceeds all buffers on the way to its caller.
pub(super) fn is_long(nonce: u64) -> bool {
    mix(nonce ^ 6).is_multiple_of(LONG_EVERY)
}

/// Returns the number of chunks of the stream of a nonce.
pub(super) fn chunks_of(nonce: u64) -> u64 {
    if is_long(nonce) { LONG_CHUNKS } else { 1 + mix(nonce ^ 1) % CHUNKS_MAX }
}

/// Returns the text of a chunk: a function of the nonce and of its place.
pub(super) fn piece(nonce: u64, place: u64) -> String {
    let filler = if is_long(nonce) { "x".repeat(FILLER_BYTES) } else { String::new() };
    format!("{:016x}.{place};{filler}", mix(nonce))
}

/// Returns the seed of the response to a request with these calls.
pub(super) fn response_seed(nonces: &[u64]) -> u64 {
    nonces[0] ^ (nonces.len() as u64) << 48
}

// === impl Fault ===

impl Fault {
    /// Draws the fault of a response. About one in four has one.
    pub(super) const fn draw(seed: u64) -> Self {
        match mix(seed) % 28 {
            0 => Self::Status,
            1 => Self::Reset,
            2 => Self::Json,
            3 => Self::FirstError,
            4 => Self::LateError,
            5 => Self::Cut,
            6 => Self::Early,
            _ => Self::None,
        }
    }
}
