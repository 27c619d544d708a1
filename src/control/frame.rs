//! Length-prefixed frames: a length of four bytes, big-endian, followed by JSON of at most 1 MiB.
//!
//! The decoder accepts bytes in chunks of any size. It buffers at most one frame and the bytes that
//! arrived with it; memory is not allocated for an advertised length before its bytes arrive. The
//! content of a frame is defined in `wire`, and frame rates are limited by `token_bucket`.

use bytes::{BufMut, Bytes, BytesMut};

/// Maximum number of bytes of JSON in a frame. A policy of 256 routes has about 200 KiB.
pub const FRAME_BYTES_MAX: usize = 1 << 20;
/// Size of the length prefix.
const LENGTH_BYTES: usize = 4;

/// A framing error. No further frame can be read after it, since the start of the next frame is
/// unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StreamFrameError {
    /// The advertised length exceeds the maximum.
    #[error("a frame has {0} bytes, the maximum is {FRAME_BYTES_MAX}")]
    TooLarge(usize),
    /// The frame is empty and therefore contains no JSON.
    #[error("a frame is empty")]
    Empty,
}

/// A decoder that splits a stream of bytes into frames.
///
/// # Properties
/// The decoded frames do not depend on how the bytes are split into chunks. The decoder holds only
/// bytes that were fed and not yet taken; between frames it holds none.
#[derive(Debug, Default)]
pub struct FrameDecoder {
    /// Bytes that were fed and not yet taken.
    buffer: BytesMut,
}

/// Encodes a frame.
///
/// # Errors
/// Returns an error if `json` is empty or exceeds [`FRAME_BYTES_MAX`].
pub fn encode(json: &[u8]) -> Result<Bytes, StreamFrameError> {
    let length = check_length(json.len())?;
    let mut frame = BytesMut::with_capacity(LENGTH_BYTES + json.len());
    frame.put_u32(length);
    frame.put_slice(json);
    Ok(frame.freeze())
}

// === impl FrameDecoder ===

impl FrameDecoder {
    /// Appends received bytes. The caller then takes frames until [`Self::next_frame`] returns
    /// `None`.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the JSON of the next frame, or `None` if the frame is incomplete.
    ///
    /// # Errors
    /// Returns an error if the advertised length is zero or exceeds the maximum.
    pub fn next_frame(&mut self) -> Result<Option<Bytes>, StreamFrameError> {
        let Some(length) = self.buffer.first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
        let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
        check_length(length)?;
        if self.buffer.len() < LENGTH_BYTES + length {
            return Ok(None);
        }
        let mut frame = self.buffer.split_to(LENGTH_BYTES + length);
        if self.buffer.is_empty() {
            // Release the buffer. Otherwise each of ten thousand streams would keep the capacity of
            // its largest frame, which would be its largest cost.
            self.buffer = BytesMut::new();
        }
        Ok(Some(frame.split_off(LENGTH_BYTES).freeze()))
    }

    /// Returns `true` if the buffer contains an incomplete frame.
    #[must_use]
    pub fn has_partial_frame(&self) -> bool {
        !self.buffer.is_empty()
    }
}

/// Returns the length as it is encoded, if a frame may have it.
fn check_length(length: usize) -> Result<u32, StreamFrameError> {
    match u32::try_from(length) {
        Ok(0) => Err(StreamFrameError::Empty),
        Ok(valid) if length <= FRAME_BYTES_MAX => Ok(valid),
        _ => Err(StreamFrameError::TooLarge(length)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decode_all(decoder: &mut FrameDecoder) -> Result<Vec<Bytes>, StreamFrameError> {
        std::iter::from_fn(|| decoder.next_frame().transpose()).collect()
    }

    #[test]
    fn a_length_beyond_the_bound_is_refused_before_its_bytes_come() {
        for (length, error) in [
            ([0, 0x10, 0, 1], StreamFrameError::TooLarge(FRAME_BYTES_MAX + 1)),
            ([0xff; 4], StreamFrameError::TooLarge(0xffff_ffff)),
            ([0; 4], StreamFrameError::Empty),
            (*b"POST", StreamFrameError::TooLarge(0x504f_5354)),
        ] {
            let mut decoder = FrameDecoder::default();
            decoder.feed(&length[..3]);
            assert_eq!(decoder.next_frame(), Ok(None));
            decoder.feed(&length[3..]);
            assert_eq!(decoder.next_frame(), Err(error));
            assert_eq!(decoder.next_frame(), Err(error), "the error persists");
        }
        assert_eq!(encode(&[]), Err(StreamFrameError::Empty));
        assert_eq!(encode(&vec![b' '; FRAME_BYTES_MAX + 1]), Err(StreamFrameError::TooLarge(FRAME_BYTES_MAX + 1)));
        let largest = encode(&vec![b' '; FRAME_BYTES_MAX]).unwrap();
        let mut decoder = FrameDecoder::default();
        decoder.feed(&largest);
        assert_eq!(decoder.next_frame().unwrap().unwrap().len(), FRAME_BYTES_MAX);
    }

    #[test]
    fn half_a_frame_is_not_returned_and_the_buffer_is_released_after_a_whole_one() {
        let mut decoder = FrameDecoder::default();
        let frame = encode(&[b'x'; 1000]).unwrap();
        decoder.feed(&frame[..500]);
        assert_eq!((decoder.next_frame(), decoder.has_partial_frame()), (Ok(None), true));
        decoder.feed(&frame[500..]);
        assert_eq!(decoder.next_frame().unwrap().unwrap().len(), 1000);
        assert_eq!((decoder.has_partial_frame(), decoder.buffer.capacity()), (false, 0));
    }

    proptest! {
        #[test]
        fn frames_decode_to_their_contents_for_any_split_of_the_stream(
            frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..200), 0..12),
            cuts in prop::collection::vec(1..64_usize, 1..80),
        ) {
            let stream: Vec<u8> = frames.iter().flat_map(|frame| encode(frame).unwrap()).collect();
            let mut decoder = FrameDecoder::default();
            let (mut rest, mut decoded, mut cuts) = (&stream[..], Vec::new(), cuts.into_iter().cycle());
            while !rest.is_empty() {
                let (chunk, remaining) = rest.split_at(cuts.next().unwrap().min(rest.len()));
                decoder.feed(chunk);
                decoded.extend(decode_all(&mut decoder).unwrap());
                rest = remaining;
            }
            prop_assert_eq!(decoded.iter().map(|frame| frame.to_vec()).collect::<Vec<_>>(), frames);
            prop_assert!(!decoder.has_partial_frame());
        }

        #[test]
        fn garbage_never_panics_and_never_holds_more_than_was_fed(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut decoder = FrameDecoder::default();
            for byte in &bytes {
                decoder.feed(&[*byte]);
                if decode_all(&mut decoder).is_err() {
                    break;
                }
            }
            prop_assert!(decoder.buffer.len() <= bytes.len());
        }
    }
}
