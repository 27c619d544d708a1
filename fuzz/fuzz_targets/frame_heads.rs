//! See `groupage_fuzz::frame_heads`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| groupage_fuzz::frame_heads(data));
