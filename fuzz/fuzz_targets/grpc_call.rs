//! See `groupage_fuzz::grpc_call`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| groupage_fuzz::grpc_call(data));
