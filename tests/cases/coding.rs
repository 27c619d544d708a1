//! The two codings of the case format: base64 for bytes in a case, gzip for an answer. They are
//! implemented here, so that the test binary needs no crates for them.

/// Decodes base64 with the standard alphabet and padding (RFC 4648).
pub(crate) fn base64(text: &str) -> Option<Vec<u8>> {
    const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let plain = text.trim_end_matches('=');
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut held, mut bits) = (0_u32, 0_u32);
    for byte in plain.bytes() {
        let digit = u32::try_from(ALPHABET.iter().position(|b| *b == byte)?).ok()?;
        held = (held << 6 | digit) & 0xffff;
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push(u8::try_from(held >> bits & 0xff).ok()?);
        }
    }
    (text.len().is_multiple_of(4) && text.len() - plain.len() <= 2).then_some(bytes)
}

/// Encodes a gzip member (RFC 1952) of stored blocks, which is valid gzip without a compressor.
pub(crate) fn gzipped(body: &[u8]) -> Vec<u8> {
    let mut text = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff];
    let mut blocks: Vec<_> = body.chunks(usize::from(u16::MAX)).collect();
    if blocks.is_empty() {
        blocks.push(&[]);
    }
    let last = blocks.len() - 1;
    for (at, block) in blocks.into_iter().enumerate() {
        let length = u16::try_from(block.len()).unwrap_or(u16::MAX);
        text.push(u8::from(at == last));
        text.extend(length.to_le_bytes());
        text.extend((!length).to_le_bytes());
        text.extend_from_slice(block);
    }
    let mut sum = u32::MAX;
    for byte in body {
        sum ^= u32::from(*byte);
        for _ in 0..8 {
            sum = if sum & 1 == 1 { sum >> 1 ^ 0xedb8_8320 } else { sum >> 1 };
        }
    }
    text.extend((!sum).to_le_bytes());
    text.extend(u32::try_from(body.len() % (1 << 32)).unwrap_or_default().to_le_bytes());
    text
}
