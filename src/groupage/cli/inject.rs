//! `groupage inject` and `groupage uninject`: read manifests, write the changed manifests, and
//! report on standard error.
//!
//! Both use the injection code of the webhook. In place of the objects of a cluster, the injection
//! considers those in the files: Services, inference pools, network policies, namespaces and batch
//! policies.

mod context;
mod files;
mod hints;
mod object;
mod output;
mod policies;
mod refusal;
mod report;

use std::fmt;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args as ClapArgs;
use serde_json::Value;

use self::context::ManifestContext;
use self::object::{ObjectFn, inject_object, map_items, uninject_object};
use self::output::{ManifestObject, Output, format_objects};
use self::refusal::format_refusal;
use self::report::ObjectReport;
use super::yaml::YamlDocument;
use crate::config::{self, EXIT_FINDINGS, EXIT_NO_INPUT};
use crate::injector::RedirectUse;
use crate::tls;

/// Input files and output format.
#[derive(Debug, Clone, ClapArgs)]
pub(super) struct InputFiles {
    /// Manifests given by a flag, as in kubectl; may be repeated
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Manifests, folders of manifests, or - for standard input
    #[arg(value_name = "FILE", required_unless_present = "files")]
    more: Vec<PathBuf>,
    /// Output format
    #[arg(short, long, value_enum, ignore_case = true, default_value = "yaml")]
    output: Output,
    /// Report everything that was done on standard error, not only warnings
    #[arg(long)]
    verbose: bool,
}

/// Arguments of `groupage inject`.
#[derive(Debug, Clone, ClapArgs)]
pub(super) struct InjectArgs {
    #[command(flatten)]
    files: InputFiles,
    /// Namespace of objects that have none
    #[arg(short, long, default_value = "default")]
    namespace: String,
    /// Image of the sidecar
    #[arg(long, value_name = "IMAGE", value_parser = image)]
    image: Option<String>,
    /// Address of the controller: https://HOST:PORT, or off
    #[arg(long, value_name = "ADDR", value_parser = controller, default_value = "https://groupage-stream.groupage-system.svc:9444")]
    controller: String,
    /// CA certificates of the controller (PEM)
    #[arg(long, value_name = "FILE")]
    controller_ca: Option<PathBuf>,
    /// Add an init container with `NET_ADMIN` that redirects ports; use the value of the
    /// installation's injector.redirect
    #[arg(long, value_name = "WhenNeeded|Never|Always", default_value = "Never")]
    redirect: RedirectUse,
    /// Add the sidecar as a plain container, for clusters older than Kubernetes 1.33
    #[arg(long, alias = "classic")]
    plain_container: bool,
}

/// Result of changing manifests.
struct ManifestResult {
    /// The changed manifests, for standard output; empty if `refused`.
    out: String,
    /// Lines for standard error: what was changed, or the reasons of the refusal.
    report: String,
    /// `true` if at least one object was refused, so that no manifest is written.
    refused: bool,
    /// `true` if at least one pod template of the output has a new sidecar.
    any_injected: bool,
}

/// Reason for which no object is changed.
enum InputError {
    /// An input cannot be read.
    Unreadable {
        /// Name of the file or folder for messages.
        name: String,
        reason: String,
    },
    /// The contents of an input are not accepted.
    Refused(String),
}

/// A manifest file with its documents.
struct ManifestFile {
    name: String,
    text: String,
    documents: Vec<YamlDocument>,
}

// === impl InputError ===

impl InputError {
    fn unreadable(path: &Path, reason: &dyn fmt::Display) -> Self {
        Self::Unreadable { name: path.display().to_string(), reason: reason.to_string() }
    }

    fn exit_code(&self) -> u8 {
        match self {
            Self::Unreadable { .. } => EXIT_NO_INPUT,
            Self::Refused(_) => EXIT_FINDINGS,
        }
    }
}

impl fmt::Display for InputError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { name, reason } => write!(f, "cannot read {name}: {reason}"),
            Self::Refused(reason) => f.write_str(reason),
        }
    }
}

// === impl ManifestResult ===

impl ManifestResult {
    /// Creates the result for input that is refused, with the reasons.
    fn refused(reasons: String) -> Self {
        Self { out: String::new(), report: reasons, refused: true, any_injected: false }
    }
}

/// Runs `groupage inject`.
pub(super) fn inject(args: &InjectArgs) -> ExitCode {
    run_and_print(&args.files, |sources| {
        let ca = match &args.controller_ca {
            Some(path) => certificates(path)?,
            None => String::new(),
        };
        let policy_errors = policies::policy_errors(sources);
        if !policy_errors.is_empty() {
            return Ok(ManifestResult::refused(policy_errors));
        }
        let is_unverified = ca.is_empty() && !is_off(&args.controller);
        let context = ManifestContext::new(args, ca, sources).map_err(InputError::Refused)?;
        let mut result =
            change_objects(sources, &args.files, &mut |object, report| inject_object(object, &context, report));
        if result.any_injected && is_unverified {
            result.report.push_str(&one_line(&format!(
                "‼ without --controller-ca the sidecars cannot verify the controller at {} and keep their initial settings: pass its CA certificates, or --controller off if you run none",
                args.controller
            )));
        }
        Ok(result)
    })
}

/// Reads a certificate file and checks that it contains a certificate.
fn certificates(path: &Path) -> Result<String, InputError> {
    let text = std::fs::read_to_string(path).map_err(|error| InputError::unreadable(path, &error))?;
    if tls::parse_certificates(text.as_bytes()).is_empty() {
        return Err(InputError::Refused(format!(
            "--controller-ca {}: the file contains no certificate: expected PEM (BEGIN CERTIFICATE)",
            path.display()
        )));
    }
    Ok(text)
}

/// Returns `true` if the value of `--controller` means that there is no controller.
fn is_off(controller: &str) -> bool {
    controller.eq_ignore_ascii_case("off")
}

/// Parses the value of `--controller`.
fn controller(text: &str) -> Result<String, String> {
    let is_good = is_off(text) || config::is_controller_address(text);
    is_good.then(|| text.to_owned()).ok_or_else(|| "expected https://HOST:PORT, HOST:PORT or off".to_owned())
}

/// Parses the value of `--image`.
fn image(text: &str) -> Result<String, String> {
    let is_good = !text.is_empty() && !text.contains(|c: char| c.is_whitespace() || c.is_control());
    is_good.then(|| text.to_owned()).ok_or_else(|| "expected an image reference without spaces".to_owned())
}

/// Runs `groupage uninject`.
pub(super) fn uninject(args: &InputFiles) -> ExitCode {
    run_and_print(args, |sources| Ok(change_objects(sources, args, &mut uninject_object)))
}

/// Reads manifests, changes them with `work` and prints them. If any object is refused, only the
/// reasons are printed, because an incomplete manifest could be applied by mistake.
fn run_and_print(files: &InputFiles, work: impl Fn(&[ManifestFile]) -> Result<ManifestResult, InputError>) -> ExitCode {
    let result = files::read(files.files.iter().chain(&files.more)).and_then(|sources| work(&sources));
    match result {
        Ok(result) => {
            eprint!("{}", result.report);
            if result.refused {
                return ExitCode::from(EXIT_FINDINGS);
            }
            if let Err(error) = io::stdout().write_all(result.out.as_bytes()) {
                eprintln!("× cannot write the output: {error}");
                return ExitCode::FAILURE;
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("× {error}");
            ExitCode::from(error.exit_code())
        }
    }
}

/// Changes every object of the files with `work`, and formats the result.
fn change_objects(sources: &[ManifestFile], files: &InputFiles, work: ObjectFn<'_>) -> ManifestResult {
    let (mut report, mut problems) = (ObjectReport::default(), String::new());
    let mut objects = Vec::new();
    for (file, source) in sources.iter().enumerate() {
        for (index, document) in source.documents.iter().enumerate() {
            match map_items(&document.value, work, &mut report) {
                Ok(after) => {
                    objects.push(ManifestObject { before: document.value.clone(), after, file, document: index });
                }
                Err(found) => {
                    problems.extend(found.iter().map(|wrong| format_refusal(sources, source, document, wrong)));
                }
            }
        }
    }
    if !problems.is_empty() {
        // Changed objects are not printed in this case, so the report about them is omitted too.
        return ManifestResult::refused(problems);
    }
    ManifestResult {
        out: format_objects(sources, &objects, files.output),
        report: report.format(files.verbose),
        refused: false,
        any_injected: report.any_injected(),
    }
}

/// Formats a line of the report, and replaces control characters: the names in it are from a file
/// that may be hostile, and a terminal would interpret them.
fn one_line(line: &str) -> String {
    let mut safe: String = line.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    safe.push('\n');
    safe
}

/// Returns the kind and name of an object for messages, as in `deployment/web`.
fn display_name(object: &Value) -> String {
    let text = |path: &str| object.pointer(path).and_then(Value::as_str);
    let kind = text("/kind").unwrap_or("object").to_ascii_lowercase();
    format!("{kind}/{}", text("/metadata/name").or_else(|| text("/metadata/generateName")).unwrap_or("?"))
}
