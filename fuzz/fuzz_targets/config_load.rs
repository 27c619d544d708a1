//! See `groupage_fuzz::config_load`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| groupage_fuzz::config_load(data));
