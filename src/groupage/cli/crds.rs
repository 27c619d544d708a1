//! `groupage crds`: prints the `CustomResourceDefinition`s of both kinds.
//!
//! `groupage crds | kubectl apply --server-side -f -` installs them. `manifests/crds.yaml` has the
//! same content.

use std::process::ExitCode;

use clap::{Args as ClapArgs, ValueEnum};
use serde_json::{Value as Json, json};

use crate::app::EXIT_INTERNAL;
use crate::config;

/// Format of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// YAML documents.
    Yaml,
    /// A JSON list.
    Json,
}

/// Arguments of `groupage crds`.
#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// Output format
    #[arg(short, long, value_enum, ignore_case = true, default_value = "yaml")]
    output: Output,
}

pub(super) fn run(args: &Args) -> ExitCode {
    let text = match args.output {
        Output::Yaml => documents(&config::crds()),
        Output::Json => Ok(format!("{:#}\n", json!({ "apiVersion": "v1", "kind": "List", "items": config::crds() }))),
    };
    match text {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("× cannot write the CRDs: {error}");
            ExitCode::from(EXIT_INTERNAL)
        }
    }
}

/// Writes YAML that parsers of YAML 1.1 (kubectl) and YAML 1.2 read alike: the writer quotes every
/// string that one of them would read as another type.
fn documents(objects: &[Json]) -> Result<String, serde_saphyr::ser::Error> {
    let mut out = String::new();
    for object in objects {
        out.push_str("---\n");
        let options = serde_saphyr::ser_options! { folded_wrap_chars: 120 };
        out.push_str(&serde_saphyr::to_string_with_options(object, options)?);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_yaml_1_1_reads_otherwise_is_quoted() {
        for text in [
            "yes",
            "No",
            "on",
            "OFF",
            "y",
            "0755",
            "1_000",
            "1:30",
            "2026-11-20",
            "~",
            "null",
            "true",
            "1e3",
            "0x1f",
            "",
            " a",
        ] {
            let written = documents(&[json!({ "key": text })]).unwrap();
            let value = written.trim_start_matches("---\nkey: ").trim_end();
            let quoted = value.starts_with(['"', '\'']) && value.ends_with(['"', '\'']);
            assert!(quoted, "{text:?} is written as {written}");
        }
    }

    #[test]
    fn written_definitions_read_back_unchanged() {
        let objects = config::crds();
        let written = documents(&objects).unwrap();
        let read: Vec<Json> = serde_saphyr::from_multiple(&written).unwrap();
        assert_eq!(read, objects);
    }
}
