//! Hand-written HTTP/2 frames (RFC 9113) with HPACK header blocks (RFC 7541) that no library
//! produces.

/// Returns the client preface and a SETTINGS frame that grants the server `window` bytes per
/// stream.
pub(crate) fn preface(window: u32) -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    let mut settings = vec![0, 4];
    settings.extend(window.to_be_bytes());
    bytes.extend(frame(4, 0, 0, &settings));
    bytes
}

/// Encodes a frame.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap_or(0).to_be_bytes();
    let mut bytes = vec![length[1], length[2], length[3], kind, flags];
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// Encodes the HEADERS frame of a `POST` with `END_HEADERS` and without `END_STREAM`. `more` is
/// appended to the header block.
pub(crate) fn post(stream: u32, path: &str, more: &[u8]) -> Vec<u8> {
    let mut block = Vec::new();
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "h"),
        ("content-type", "application/json"),
    ];
    for (name, value) in fields {
        // A literal field without indexing and with a new name (RFC 7541 section 6.2.2).
        block.push(0);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).unwrap_or(0));
            block.extend(text.bytes());
        }
    }
    block.extend(more);
    frame(1, 4, stream, &block)
}

/// Returns a header block with one field that enters the dynamic table and `count` references to it
/// of one byte each. The decoded header list is much larger than the block.
pub(crate) fn references(count: usize) -> Vec<u8> {
    let mut block = vec![0x40, 1, b'x', 1, b'y'];
    block.extend(std::iter::repeat_n(0x80 | 62, count));
    block
}

/// Scans the frames of a server for `WINDOW_UPDATE` frames of the connection.
#[derive(Debug, Default)]
pub(crate) struct WindowScanner(Vec<u8>);

// === impl WindowScanner ===

impl WindowScanner {
    /// Feeds received bytes and returns the sum of the increments in frames that are complete now.
    pub(crate) fn updates(&mut self, bytes: &[u8]) -> usize {
        self.0.extend(bytes);
        let mut sum = 0;
        while let Some(head) = self.0.first_chunk::<9>().copied() {
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            let Some(payload) = self.0.get(9..9 + length) else { break };
            // A WINDOW_UPDATE frame on stream 0, which is the connection.
            if let ([_, _, _, 8, _, 0, 0, 0, 0], Some(by)) = (head, payload.first_chunk::<4>()) {
                sum += u32::from_be_bytes(*by) as usize;
            }
            self.0.drain(..9 + length);
        }
        sum
    }
}
