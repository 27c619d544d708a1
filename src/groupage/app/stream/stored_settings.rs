//! State of the control stream that outlives the process: the last good settings and their CA
//! bundle.
//!
//! A sidecar that starts while no controller is reachable begins with them. Settings that are
//! unreadable or no longer valid are ignored and logged. An arm of an experiment is not stored: it
//! ends unless the controller renews it.

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::super::sources::SettingsSources;
use super::super::state_dir::{self, StateDir};
use super::validate::{ValidatedConfig, judge};
use crate::config::Origin;
use crate::control::wire::SidecarConfig;

const SETTINGS: &str = "stream.json";
const BUNDLE: &str = "ca.pem";
/// Version of the file format. It changes with the meaning of any field.
const FORMAT: u32 = 1;

/// Contents of the state folder.
#[derive(Debug, Default)]
pub(super) struct StoredStreamState {
    /// Valid settings.
    pub(super) settings: Option<(SidecarConfig, ValidatedConfig)>,
    /// A CA bundle; it is validated where it is used.
    pub(super) bundle: Option<String>,
    /// Reason why stored settings are not used.
    pub(super) ignored: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct File {
    format: u32,
    config: SidecarConfig,
}

// === impl StoredStreamState ===

impl StoredStreamState {
    /// Reads the state folder that flags or environment name, if any.
    pub(super) fn read(sources: &SettingsSources) -> Self {
        let Some(folder) = sources.overrides.state.as_ref().map(|given| Path::new(&given.value)) else {
            return Self::default();
        };
        let bundle = state_dir::read_file(folder, BUNDLE).and_then(|bytes| String::from_utf8(bytes).ok());
        let Some(bytes) = state_dir::read_file(folder, SETTINGS) else { return Self { bundle, ..Self::default() } };
        match settings(&bytes, sources) {
            Ok(settings) => Self { settings: Some(settings), bundle, ignored: None },
            Err(reason) => Self { settings: None, bundle, ignored: Some(reason) },
        }
    }
}

fn settings(bytes: &[u8], sources: &SettingsSources) -> Result<(SidecarConfig, ValidatedConfig), String> {
    let file: File = serde_json::from_slice(bytes).map_err(|error| format!("they cannot be read: {error}"))?;
    if file.format != FORMAT {
        return Err(format!("they have format {}, but this version reads {FORMAT}", file.format));
    }
    let judged =
        judge(&file.config, None, Origin::State, sources).map_err(|error| format!("they are wrong: {error}"))?;
    Ok((file.config, judged))
}

/// Stores settings that are in force. May block.
pub(super) fn keep_settings(folder: &StateDir, config: &SidecarConfig) -> io::Result<()> {
    let mut config = config.clone();
    config.experiment = None;
    config.settings.start = None;
    folder.store_file(SETTINGS, &serde_json::to_vec(&File { format: FORMAT, config })?)
}

/// Stores a bundle that is trusted. May block.
pub(super) fn keep_bundle(folder: &StateDir, pem: &str) -> io::Result<()> {
    folder.store_file(BUNDLE, pem.as_bytes())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::{Overrides, SourcedValue};
    use crate::control::wire::{ExperimentArm, StartValues, TunedSettings};

    fn sources(folder: &Path) -> SettingsSources {
        let state = Some(SourcedValue::flag("--state", folder.display().to_string()));
        SettingsSources { overrides: Overrides { state, ..Overrides::default() }, ..SettingsSources::default() }
    }

    #[test]
    fn stored_settings_are_restored_without_experiment_and_start_values() {
        let dir = tempfile::tempdir().unwrap();
        let folder = StateDir::new(dir.path().to_owned(), "http://m".to_owned());
        let config = SidecarConfig {
            generation: 4,
            policy: json!({"limits": {"batchItemsMax": 9}}),
            settings: TunedSettings {
                slots_max: Some(2),
                start: Some(StartValues::default()),
                ..TunedSettings::default()
            },
            experiment: Some(ExperimentArm {
                spec: json!({"limits": {"batchItemsMax": 1}}),
                ..ExperimentArm::default()
            }),
            ..SidecarConfig::default()
        };
        keep_settings(&folder, &config).unwrap();
        keep_bundle(&folder, "pem").unwrap();
        let stored = StoredStreamState::read(&sources(dir.path()));
        let (found, judged) = stored.settings.unwrap();
        assert_eq!((found.generation, found.experiment, found.settings.start), (4, None, None));
        assert_eq!((judged.policy.limits.batch_items_max, judged.policy.limits.slots_max), (9, Some(2)));
        assert_eq!(stored.bundle.as_deref(), Some("pem"));
        assert!(keep_bundle(&folder, &"x".repeat(70_000)).unwrap_err().to_string().contains("65536"));
        assert_eq!(
            StoredStreamState::read(&sources(dir.path())).bundle.as_deref(),
            Some("pem"),
            "the previous contents stay"
        );
    }

    #[test]
    fn a_corrupt_state_is_ignored_with_a_reason() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(SETTINGS);
        assert!(StoredStreamState::read(&sources(dir.path())).ignored.is_none(), "an empty folder is not an error");
        for (text, reason) in [
            (&b"\xff\xfe"[..], "cannot be read"),
            (b"{\"format\":1,\"config\":{\"policy\":{\"limits\":{\"ba", "cannot be read"),
            (b"", "cannot be read"),
            (b"{\"format\":2,\"config\":{}}", "format 2"),
            (b"{\"format\":1,\"config\":{\"policy\":{\"limits\":{\"batchItemsMax\":0}}}}", "wrong"),
        ] {
            std::fs::write(&path, text).unwrap();
            let stored = StoredStreamState::read(&sources(dir.path()));
            assert!(
                stored.settings.is_none() && stored.ignored.as_ref().is_some_and(|text| text.contains(reason)),
                "{stored:?}"
            );
        }
        assert!(StoredStreamState::read(&SettingsSources::default()).settings.is_none());
    }
}
