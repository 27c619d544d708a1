//! See `groupage_fuzz::split_batch`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| groupage_fuzz::split_batch(data));
