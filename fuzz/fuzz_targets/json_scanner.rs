//! See `groupage_fuzz::json_scanner`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| groupage_fuzz::json_scanner(data));
