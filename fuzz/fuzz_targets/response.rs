#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| runcap_fuzz::response(data));
