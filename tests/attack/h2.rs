//! Frames of HTTP/2 by hand (RFC 9113), with header blocks that no library would write (RFC 7541).

/// The preface and the settings of a client; its streams may send as much as they like, and get `window`.
pub(crate) fn preface(window: u32) -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    let mut settings = vec![0, 4];
    settings.extend(window.to_be_bytes());
    bytes.extend(frame(4, 0, 0, &settings));
    bytes
}

/// One frame.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap_or(0).to_be_bytes();
    let mut bytes = vec![length[1], length[2], length[3], kind, flags];
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// The head of a `POST`, which ends its headers and not its stream.
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
        // A literal that enters no table, with a new name.
        block.push(0);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).unwrap_or(0));
            block.extend(text.bytes());
        }
    }
    block.extend(more);
    frame(1, 4, stream, &block)
}

/// A field that enters the table, and `count` references to it of a byte each.
pub(crate) fn references(count: usize) -> Vec<u8> {
    let mut block = vec![0x40, 1, b'x', 1, b'y'];
    block.extend(std::iter::repeat_n(0x80 | 62, count));
    block
}

/// Finds in what a server sends by how much the connection's window grows.
#[derive(Debug, Default)]
pub(crate) struct WindowScanner(Vec<u8>);

// === impl WindowScanner ===

impl WindowScanner {
    /// The sum of the updates that are whole with these bytes.
    pub(crate) fn updates(&mut self, bytes: &[u8]) -> usize {
        self.0.extend(bytes);
        let mut sum = 0;
        while let Some(head) = self.0.first_chunk::<9>().copied() {
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            let Some(payload) = self.0.get(9..9 + length) else { break };
            // WINDOW_UPDATE of the connection.
            if let ([_, _, _, 8, _, 0, 0, 0, 0], Some(by)) = (head, payload.first_chunk::<4>()) {
                sum += u32::from_be_bytes(*by) as usize;
            }
            self.0.drain(..9 + length);
        }
        sum
    }
}
