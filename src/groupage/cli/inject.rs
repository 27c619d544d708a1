//! `groupage inject` and `groupage uninject`: read manifests, write the changed manifests, and
//! report on standard error.
//!
//! Both use the injection code of the webhook. Facts that the webhook has from the cluster come
//! from the files: the injection considers their Services, pools, network policies, namespaces and
//! policies.

mod context;
mod files;
mod hints;
mod policies;

use std::collections::BTreeSet;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args as ClapArgs, ValueEnum};
use serde_json::{Map, Value, json};

use self::context::ManifestContext;
use super::yaml::{self, YamlDocument};
use crate::config::{self, EXIT_FINDINGS};
use crate::injector::{self, InjectionOutcome, KeyLocation, RedirectUse, TemplateLocation};
use crate::tls;

/// Format of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// Every object as YAML; unchanged objects keep their text.
    Yaml,
    /// Every object as JSON; several objects as one list.
    Json,
    /// Changes as JSON Patch (RFC 6902): one patch for one object, a map of patches by object for
    /// several.
    Patch,
}

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
    #[arg(short, long, value_enum, default_value = "yaml")]
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
    #[arg(long)]
    classic: bool,
}

/// Result of changing manifests.
struct ManifestResult {
    out: String,
    report: String,
    refused: bool,
}

/// An object that is being changed.
struct ManifestObject {
    /// The object as read.
    before: Value,
    after: Value,
    /// Index of its file, and of the document in that file.
    file: usize,
    document: usize,
}

/// A manifest file with its documents.
struct ManifestFile {
    name: String,
    text: String,
    documents: Vec<YamlDocument>,
}

/// A refusal of an object, with its location.
struct LocatedRefusal {
    path: Vec<String>,
    /// Namespace with the annotation or label that causes the refusal, if not the object itself.
    namespace: Option<String>,
    message: String,
}

pub(super) fn inject(args: &InjectArgs) -> ExitCode {
    print(&args.files, |sources| {
        let ca = match &args.controller_ca {
            Some(path) => certificates(path)?,
            None => String::new(),
        };
        let wrong = policies::policy_errors(sources);
        if !wrong.is_empty() {
            return Ok(ManifestResult { out: String::new(), report: wrong, refused: true });
        }
        let untrusted = ca.is_empty() && !is_off(&args.controller);
        let around = ManifestContext::new(args, ca, sources)?;
        let mut any = false;
        let mut done = change_objects(sources, &args.files, &mut |object, report| {
            let before = report.len();
            let added = inject_object(object, &around, report);
            any |= report.get(before..).is_some_and(|text| text.lines().any(|line| line.ends_with(INJECTED)));
            added
        });
        if any && untrusted && !done.refused {
            done.report.push_str(&one_line(&format!(
                "‼ without --controller-ca the sidecars cannot verify the controller at {} and keep their initial settings: pass its CA certificates, or --controller off if you run none",
                args.controller
            )));
        }
        Ok(done)
    })
}

/// End of a report line about a new sidecar.
const INJECTED: &str = " injected";

/// Reads a certificate file and checks that it contains a certificate.
fn certificates(path: &PathBuf) -> Result<String, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("--controller-ca {}: {error}", path.display()))?;
    if tls::parse_certificates(text.as_bytes()).is_empty() {
        return Err(format!(
            "--controller-ca {}: the file contains no certificate: expected PEM (BEGIN CERTIFICATE)",
            path.display()
        ));
    }
    Ok(text)
}

fn is_off(controller: &str) -> bool {
    controller.eq_ignore_ascii_case("off")
}

fn controller(text: &str) -> Result<String, String> {
    let is_good = is_off(text) || config::is_controller_address(text);
    is_good.then(|| text.to_owned()).ok_or_else(|| "expected https://HOST:PORT, HOST:PORT or off".to_owned())
}

fn image(text: &str) -> Result<String, String> {
    let is_good = !text.is_empty() && !text.contains(|c: char| c.is_whitespace() || c.is_control());
    is_good.then(|| text.to_owned()).ok_or_else(|| "expected an image reference without spaces".to_owned())
}

pub(super) fn uninject(args: &InputFiles) -> ExitCode {
    print(args, |sources| Ok(change_objects(sources, args, &mut uninject_object)))
}

/// Reads, changes and prints manifests. If anything is refused, only the reasons are printed: half
/// a manifest could be applied by mistake.
fn print(files: &InputFiles, work: impl Fn(&[ManifestFile]) -> Result<ManifestResult, String>) -> ExitCode {
    let done = files::read(files.files.iter().chain(&files.more)).and_then(|sources| work(&sources));
    match done {
        Ok(done) => {
            eprint!("{}", done.report);
            if done.refused {
                return ExitCode::from(EXIT_FINDINGS);
            }
            if let Err(error) = io::stdout().write_all(done.out.as_bytes()) {
                eprintln!("× cannot write the output: {error}");
                return ExitCode::FAILURE;
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("× {error}");
            ExitCode::from(EXIT_FINDINGS)
        }
    }
}

/// Changes one object, or returns the reasons for a refusal.
type ObjectFn<'a> = &'a mut dyn FnMut(&Value, &mut String) -> Result<Value, Vec<LocatedRefusal>>;

fn change_objects(sources: &[ManifestFile], files: &InputFiles, work: ObjectFn<'_>) -> ManifestResult {
    let (mut report, mut problems) = (String::new(), String::new());
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
        // Changed objects are not printed then, so that their report is omitted too.
        return ManifestResult { out: String::new(), report: problems, refused: true };
    }
    // Facts are marked with a tick and are printed only on request.
    let filtered =
        report.lines().filter(|line| files.verbose || !line.contains('√')).flat_map(|line| [line, "\n"]).collect();
    ManifestResult { out: format_objects(sources, &objects, files.output), report: filtered, refused: false }
}

/// Applies the work to an object, or to every item of a list.
fn map_items(object: &Value, work: ObjectFn<'_>, report: &mut String) -> Result<Value, Vec<LocatedRefusal>> {
    let is_list =
        object.get("kind").and_then(Value::as_str).is_some_and(|kind| kind == "List" || kind.ends_with("List"));
    let Some(items) = object.get("items").and_then(Value::as_array).filter(|_| is_list) else {
        return work(object, report);
    };
    let mut after = object.clone();
    let mut problems = Vec::new();
    let mut changed = Vec::new();
    for (index, item) in items.iter().enumerate() {
        match map_items(item, work, report) {
            Ok(item) => changed.push(item),
            Err(more) => problems.extend(more.into_iter().map(|mut wrong| {
                wrong.path.splice(0..0, ["items".to_owned(), index.to_string()]);
                wrong
            })),
        }
    }
    if let Some(items) = after.get_mut("items") {
        *items = Value::Array(changed);
    }
    if problems.is_empty() { Ok(after) } else { Err(problems) }
}

fn inject_object(object: &Value, around: &ManifestContext, report: &mut String) -> Result<Value, Vec<LocatedRefusal>> {
    let mut say = |line: String| report.push_str(&one_line(&line));
    let places = match injector::template_locations(object) {
        Ok(places) => places,
        Err(reason) => {
            say(format!("{} left unchanged: {reason}", display_name(object)));
            return Ok(object.clone());
        }
    };
    hints::misplaced_keys(object, &places)
        .into_iter()
        .for_each(|hint| say(format!("{}: {hint}", display_name(object))));
    if places.is_empty() && hints::has_pods(object) {
        say(format!("{} left unchanged: {NOT_FOUND}", display_name(object)));
    }
    let mut after = object.clone();
    let mut problems = Vec::new();
    for place in places {
        let name = template_name(object, &place);
        let template = place.get(object);
        let context = around.context(object, &place);
        match injector::inject(template, &context) {
            InjectionOutcome::Injected(injected) => {
                let is_new = injected.pod != *template;
                say(if is_new {
                    format!("{name}{INJECTED}")
                } else {
                    format!("{name} unchanged: it already has the sidecar")
                });
                injected.report.facts.iter().for_each(|fact| say(format!("    √ {fact}")));
                injected.report.warnings.iter().for_each(|warning| say(format!("    ‼ {warning}")));
                place.set(&mut after, injected.pod);
            }
            InjectionOutcome::Skipped(skipped) => {
                say(format!("{name} skipped ({}): {}", skipped.reason.as_str(), skipped.detail));
            }
            InjectionOutcome::Refused(refused) => problems.extend(refused.into_iter().map(|problem| {
                let map = if problem.holder == KeyLocation::Annotation { "annotations" } else { "labels" };
                let within = if problem.holder == KeyLocation::Namespace { &[] } else { &place.path[..] };
                let path = within.iter().chain(&["metadata", map, &problem.key]).map(|&key| key.to_owned()).collect();
                let namespace = (problem.holder == KeyLocation::Namespace).then(|| context.namespace.name.clone());
                let message = format!("error[{}]: {name}: {}", problem.code, problem.message);
                LocatedRefusal { path, namespace, message }
            })),
        }
    }
    if problems.is_empty() { Ok(after) } else { Err(problems) }
}

/// Report of an object that runs pods but has no pod template at a known place.
const NOT_FOUND: &str =
    "its pod templates are not at a known path; annotate them, and the webhook adds the sidecar to the pods";

/// Formats a line of the report. Names come from the file, and control characters in them would
/// affect the terminal.
fn one_line(line: &str) -> String {
    let mut safe: String = line.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    safe.push('\n');
    safe
}

fn uninject_object(object: &Value, report: &mut String) -> Result<Value, Vec<LocatedRefusal>> {
    let mut after = object.clone();
    for place in injector::template_locations(object).unwrap_or_default() {
        if let Some(uninjected) = injector::uninject(place.get(object)) {
            report.push_str(&one_line(&format!("{} uninjected", template_name(object, &place))));
            for warning in uninjected.warnings {
                report.push_str(&one_line(&format!("    ‼ {warning}")));
            }
            place.set(&mut after, uninjected.pod);
        }
    }
    Ok(after)
}

/// Returns the name of an object for messages.
fn display_name(object: &Value) -> String {
    let text = |path: &str| object.pointer(path).and_then(Value::as_str);
    let kind = text("/kind").unwrap_or("object").to_ascii_lowercase();
    format!("{kind}/{}", text("/metadata/name").or_else(|| text("/metadata/generateName")).unwrap_or("?"))
}

/// Returns a name that distinguishes an object from all others of a file.
fn qualified_name(object: &Value) -> String {
    let namespace = object.pointer("/metadata/namespace").and_then(Value::as_str);
    namespace.map_or_else(|| display_name(object), |namespace| format!("{namespace}/{}", display_name(object)))
}

/// Returns the name of an object, followed by the name of the template if it has several.
fn template_name(object: &Value, place: &TemplateLocation) -> String {
    match place.label() {
        "" => display_name(object),
        template => format!("{} {template}", display_name(object)),
    }
}

/// Formats a refusal with its location: the line of the key that causes it.
fn format_refusal(
    sources: &[ManifestFile],
    source: &ManifestFile,
    document: &YamlDocument,
    wrong: &LocatedRefusal,
) -> String {
    let LocatedRefusal { path, namespace, message } = wrong;
    let namespaces = namespace.as_ref().and_then(|name| namespace_of(sources, name));
    let (source, document, path) = match namespaces {
        Some((source, document, within)) => (source, document, [&within[..], &path[..]].concat()),
        None => (source, document, path.clone()),
    };
    let text = source.text.get(document.text.clone()).unwrap_or_default();
    let before = source.text.get(..document.text.start).unwrap_or_default().matches('\n').count();
    let message = one_line(message);
    let line = before + yaml::line_of(text, &path);
    format!("{message}  --> {}:{line}\n   = help: groupage explain {}\n", source.name, code_of(&message))
}

/// Finds the definition of a namespace: its manifest, its document, and its path in a list. The
/// last one applies, as for `kubectl`.
fn namespace_of<'a>(
    sources: &'a [ManifestFile],
    name: &str,
) -> Option<(&'a ManifestFile, &'a YamlDocument, Vec<String>)> {
    let documents = sources.iter().flat_map(|source| source.documents.iter().map(move |document| (source, document)));
    documents.rev().find_map(|(source, document)| Some((source, document, namespace_path(&document.value, name)?)))
}

fn namespace_path(object: &Value, name: &str) -> Option<Vec<String>> {
    let is = |pointer: &str, text: &str| object.pointer(pointer).and_then(Value::as_str) == Some(text);
    if is("/kind", "Namespace") && is("/metadata/name", name) {
        return Some(Vec::new());
    }
    let items = object.get("items").and_then(Value::as_array)?;
    items.iter().enumerate().rev().find_map(|(index, item)| {
        let within = namespace_path(item, name)?;
        Some([vec!["items".to_owned(), index.to_string()], within].concat())
    })
}

fn code_of(message: &str) -> &str {
    message.split_once("error[").and_then(|(_, rest)| rest.split_once(']')).map_or("", |(code, _)| code)
}

fn format_objects(sources: &[ManifestFile], objects: &[ManifestObject], output: Output) -> String {
    match output {
        Output::Yaml => {
            objects.iter().enumerate().map(|(index, object)| as_yaml(sources, object, index == 0)).collect()
        }
        Output::Json => {
            let items: Vec<&Value> =
                objects.iter().map(|object| &object.after).filter(|value| !value.is_null()).collect();
            let whole = match items.as_slice() {
                [one] => (*one).clone(),
                items => json!({"apiVersion": "v1", "kind": "List", "items": items}),
            };
            format!("{whole:#}\n")
        }
        Output::Patch => {
            let changed: Vec<&ManifestObject> = objects.iter().filter(|object| object.before != object.after).collect();
            let patch = |object: &ManifestObject| json!(injector::patch(&object.before, &object.after));
            let is_one = objects.iter().filter(|object| !object.before.is_null()).count() == 1;
            let whole = match changed.as_slice() {
                [] if is_one => json!([]),
                [one] if is_one => patch(one),
                changed => {
                    let mut taken = BTreeSet::new();
                    let keyed = changed
                        .iter()
                        .map(|object| (unique(qualified_name(&object.before), &mut taken), patch(object)));
                    Value::Object(keyed.collect::<Map<_, _>>())
                }
            };
            format!("{whole:#}\n")
        }
    }
}

/// Returns the name, with a number appended if it is taken: several objects may have the same
/// `generateName`.
fn unique(name: String, taken: &mut BTreeSet<String>) -> String {
    let again = (2..).map(|again| format!("{name}#{again}"));
    let free = std::iter::once(name.clone()).chain(again).find(|name| !taken.contains(name)).unwrap_or(name);
    taken.insert(free.clone());
    free
}

/// Formats an object; an unchanged one keeps its text.
fn as_yaml(sources: &[ManifestFile], object: &ManifestObject, first: bool) -> String {
    let Some(source) = sources.get(object.file) else { return String::new() };
    let Some(document) = source.documents.get(object.document) else { return String::new() };
    let marker = if document.marked || !first { "---\n" } else { "" };
    if object.before != object.after {
        // Every JSON value can be written, so that an error here would fail the first test.
        return format!("{marker}{}", yaml::write(&object.after).unwrap_or_else(|error| format!("# {error}\n")));
    }
    let text = source.text.get(document.text.clone()).unwrap_or_default();
    // A directive requires an end marker of the document before it.
    let is_directed = !first && text.trim_start().starts_with('%');
    let marker = match (is_directed, document.marked) {
        (true, _) => "...\n",
        (false, true) => "",
        (false, false) => marker,
    };
    let end = if text.ends_with('\n') || text.is_empty() { "" } else { "\n" };
    format!("{marker}{text}{end}")
}
