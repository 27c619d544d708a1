//! Vectors in base64, as in responses of OpenAI with `encoding_format: base64`.

/// Decodes floating-point numbers of 32 bits, little-endian, from padded base64 (RFC 4648, section
/// 4). `None` if the text is anything else.
pub(super) fn decode_floats(text: &[u8]) -> Option<Vec<f64>> {
    let digits = text.strip_suffix(b"==").or_else(|| text.strip_suffix(b"=")).unwrap_or(text);
    if text.is_empty() || !text.len().is_multiple_of(4) {
        return None;
    }
    let mut bytes = Vec::with_capacity(digits.len() * 3 / 4);
    let (mut bits, mut count) = (0_u32, 0);
    for digit in digits {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        (bits, count) = (bits << 6 | u32::from(value), count + 6);
        if count >= 8 {
            count -= 8;
            bytes.push(u8::try_from(bits >> count & 0xff).ok()?);
        }
    }
    let (floats, rest) = bytes.as_chunks::<4>();
    rest.is_empty().then(|| floats.iter().map(|bytes| f64::from(f32::from_le_bytes(*bytes))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_decoded_from_padded_base64() {
        // Written by Python: base64.b64encode(struct.pack("<3f", 1.0, -2.5, 0.1)).
        assert_eq!(decode_floats(b"AACAPwAAIMDNzMw9"), Some(vec![1.0, -2.5, f64::from(0.1_f32)]));
        assert_eq!(decode_floats(b"AACAPw=="), Some(vec![1.0]));
        for other in ["", "AACAPw=", "AACA", "text", "AACAP-AAIMDNzMw9"] {
            assert_eq!(decode_floats(other.as_bytes()), None, "{other}");
        }
    }
}
