//! See `groupage_fuzz::generic_spec`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| groupage_fuzz::generic_spec(data));
