//! See `groupage_fuzz::split_leak`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| groupage_fuzz::split_leak(data));
