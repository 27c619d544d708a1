//! See `groupage_fuzz::read_call`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| groupage_fuzz::read_call(data));
