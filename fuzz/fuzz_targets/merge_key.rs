//! See `groupage_fuzz::merge_key`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| groupage_fuzz::merge_key(data));
