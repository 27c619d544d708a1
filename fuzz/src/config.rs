//! Fuzz target for policy files.

use groupage::config::{self, MachineLimits, Overrides};

/// Loads arbitrary text as a policy file. A valid file can be built and lists every value with its
/// source. An invalid one has findings with reasons, as text and as JSON.
pub fn config_load(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match config::load(text, "policy.yaml") {
        Ok(loaded) => {
            let policy = config::build(Some(&loaded), &Overrides::default(), &MachineLimits::default());
            let policy =
                policy.unwrap_or_else(|errors| panic!("a valid policy cannot be built: {}", errors.render(false)));
            assert!(!policy.effective().is_empty());
        }
        Err(errors) => {
            assert!(!errors.findings.is_empty(), "a policy was rejected without a finding");
            assert!(errors.render(false).contains("GRP1"), "a policy was rejected without a code");
            assert_eq!(errors.json().as_array().map(Vec::len), Some(errors.findings.len()));
        }
    }
}
