//! See `groupage_fuzz::admission_review`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| groupage_fuzz::admission_review(data));
