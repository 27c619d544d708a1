//! `groupage inject` and `groupage uninject`: manifests in, manifests out, a report beside them.
//!
//! The same function as the webhook's. What the cluster would know, the file says: its Services, pools, network policies, namespaces and policies are what an
//! injection looks at.

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

use self::context::Around;
use super::yaml::{self, Document};
use crate::config::{self, EXIT_FINDINGS};
use crate::injector::{self, Holder, Outcome, Place, RedirectUse};
use crate::tls;

/// What is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// Every object, those that were not changed as they were written.
    Yaml,
    /// A list of every object.
    Json,
    /// What is changed, as JSON Patch (RFC 6902): the patch where there is one object, a map of patches by object where there are several.
    Patch,
}

/// Where manifests come from and how they are printed.
#[derive(Debug, Clone, ClapArgs)]
pub(super) struct Files {
    /// The same with a flag, as kubectl takes it; may be given more than once
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Manifests, folders of them, or - for standard input
    #[arg(value_name = "FILE", required_unless_present = "files")]
    more: Vec<PathBuf>,
    /// How to print
    #[arg(short, long, value_enum, default_value = "yaml")]
    output: Output,
    /// Say on standard error what was done, and not only what is worth a look
    #[arg(long)]
    verbose: bool,
}

/// `groupage inject`.
#[derive(Debug, Clone, ClapArgs)]
pub(super) struct InjectArgs {
    #[command(flatten)]
    files: Files,
    /// The namespace of objects that name none
    #[arg(short, long, default_value = "default")]
    namespace: String,
    /// The image of the sidecar
    #[arg(long, value_name = "IMAGE", value_parser = image)]
    image: Option<String>,
    /// Where the controller is: https://HOST:PORT, or off
    #[arg(long, value_name = "ADDR", value_parser = controller, default_value = "https://groupage-stream.groupage-system.svc:9444")]
    controller: String,
    /// The certificates that the controller is known by (PEM)
    #[arg(long, value_name = "FILE")]
    controller_ca: Option<PathBuf>,
    /// When an init container with `NET_ADMIN` is added that redirects ports, as the installation's injector.redirect says
    #[arg(long, value_name = "WhenNeeded|Never|Always", default_value = "Never")]
    redirect: RedirectUse,
    /// The cluster is older than Kubernetes 1.33: the sidecar is a plain container
    #[arg(long)]
    classic: bool,
}

/// What became of manifests.
struct Done {
    out: String,
    report: String,
    refused: bool,
}

/// One object on its way.
struct Object {
    /// As it came.
    before: Value,
    after: Value,
    /// Its place in the texts: of which file, and which document of it.
    file: usize,
    document: usize,
}

/// A manifest and what it says.
struct Source {
    name: String,
    text: String,
    documents: Vec<Document>,
}

/// What is refused of an object, and where in it that stands.
struct Wrong {
    path: Vec<String>,
    /// The namespace that says it, where it is not the object itself.
    namespace: Option<String>,
    message: String,
}

pub(super) fn inject(args: &InjectArgs) -> ExitCode {
    print(&args.files, |sources| {
        let ca = match &args.controller_ca {
            Some(path) => certificates(path)?,
            None => String::new(),
        };
        let wrong = policies::wrong(sources);
        if !wrong.is_empty() {
            return Ok(Done { out: String::new(), report: wrong, refused: true });
        }
        let untrusted = ca.is_empty() && !is_off(&args.controller);
        let around = Around::new(args, ca, sources)?;
        let mut any = false;
        let mut done = change(sources, &args.files, &mut |object, report| {
            let before = report.len();
            let added = add(object, &around, report);
            any |= report.get(before..).is_some_and(|said| said.lines().any(|line| line.ends_with(INJECTED)));
            added
        });
        if any && untrusted && !done.refused {
            done.report.push_str(&one_line(&format!(
                "‼ without --controller-ca the sidecars cannot trust the controller at {}, and keep the settings that they begin with: give its certificates, or --controller off where there is none",
                args.controller
            )));
        }
        Ok(done)
    })
}

/// How a line of the report ends that is about a new sidecar.
const INJECTED: &str = " injected";

/// The certificates of a file, as it says them.
fn certificates(path: &PathBuf) -> Result<String, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("--controller-ca {}: {error}", path.display()))?;
    if tls::certificates(text.as_bytes()).is_empty() {
        return Err(format!(
            "--controller-ca {}: there is no certificate in it (PEM, BEGIN CERTIFICATE)",
            path.display()
        ));
    }
    Ok(text)
}

fn is_off(controller: &str) -> bool {
    controller.eq_ignore_ascii_case("off")
}

fn controller(text: &str) -> Result<String, String> {
    let is_good = is_off(text) || config::is_controller(text);
    is_good.then(|| text.to_owned()).ok_or_else(|| "give https://HOST:PORT, HOST:PORT or off".to_owned())
}

fn image(text: &str) -> Result<String, String> {
    let is_good = !text.is_empty() && !text.contains(|c: char| c.is_whitespace() || c.is_control());
    is_good.then(|| text.to_owned()).ok_or_else(|| "an image has a name, and no spaces".to_owned())
}

pub(super) fn uninject(args: &Files) -> ExitCode {
    print(args, |sources| Ok(change(sources, args, &mut remove)))
}

/// Reads, changes, prints. Where anything is refused nothing is printed but why: half a manifest would be applied.
fn print(files: &Files, work: impl Fn(&[Source]) -> Result<Done, String>) -> ExitCode {
    let done = files::read(files.files.iter().chain(&files.more)).and_then(|sources| work(&sources));
    match done {
        Ok(done) => {
            eprint!("{}", done.report);
            if done.refused {
                return ExitCode::from(EXIT_FINDINGS);
            }
            if let Err(error) = io::stdout().write_all(done.out.as_bytes()) {
                eprintln!("× cannot print: {error}");
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

/// What is done to one object: its new form, or what is refused.
type Work<'a> = &'a mut dyn FnMut(&Value, &mut String) -> Result<Value, Vec<Wrong>>;

fn change(sources: &[Source], files: &Files, work: Work<'_>) -> Done {
    let (mut report, mut problems) = (String::new(), String::new());
    let mut objects = Vec::new();
    for (file, source) in sources.iter().enumerate() {
        for (index, document) in source.documents.iter().enumerate() {
            match each(&document.value, work, &mut report) {
                Ok(after) => objects.push(Object { before: document.value.clone(), after, file, document: index }),
                Err(found) => problems.extend(found.iter().map(|wrong| located(sources, source, document, wrong))),
            }
        }
    }
    if !problems.is_empty() {
        // What was done to other objects is not printed, so nothing is said of it.
        return Done { out: String::new(), report: problems, refused: true };
    }
    // Facts are marked with a tick, and said where they are asked for.
    let said =
        report.lines().filter(|line| files.verbose || !line.contains('√')).flat_map(|line| [line, "\n"]).collect();
    Done { out: written(sources, &objects, files.output), report: said, refused: false }
}

/// Applies the work to an object, or to every item of a list of them.
fn each(object: &Value, work: Work<'_>, said: &mut String) -> Result<Value, Vec<Wrong>> {
    let is_list =
        object.get("kind").and_then(Value::as_str).is_some_and(|kind| kind == "List" || kind.ends_with("List"));
    let Some(items) = object.get("items").and_then(Value::as_array).filter(|_| is_list) else {
        return work(object, said);
    };
    let mut after = object.clone();
    let mut problems = Vec::new();
    let mut changed = Vec::new();
    for (index, item) in items.iter().enumerate() {
        match each(item, work, said) {
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

fn add(object: &Value, around: &Around, report: &mut String) -> Result<Value, Vec<Wrong>> {
    let mut say = |line: String| report.push_str(&one_line(&line));
    let places = match injector::places(object) {
        Ok(places) => places,
        Err(why) => {
            say(format!("{} left alone: {why}", shown(object)));
            return Ok(object.clone());
        }
    };
    hints::misplaced(object, &places).into_iter().for_each(|hint| say(format!("{}: {hint}", shown(object))));
    if places.is_empty() && hints::has_pods(object) {
        say(format!("{} left alone: {NOT_FOUND}", shown(object)));
    }
    let mut after = object.clone();
    let mut problems = Vec::new();
    for place in places {
        let name = shown_at(object, &place);
        let template = place.of(object);
        let context = around.context(object, &place);
        match injector::inject(template, &context) {
            Outcome::Injected(injected) => {
                let is_new = injected.pod != *template;
                say(if is_new {
                    format!("{name}{INJECTED}")
                } else {
                    format!("{name} unchanged: it has the sidecar already")
                });
                injected.report.facts.iter().for_each(|fact| say(format!("    √ {fact}")));
                injected.report.warnings.iter().for_each(|warning| say(format!("    ‼ {warning}")));
                place.put(&mut after, injected.pod);
            }
            Outcome::Skipped(skipped) => {
                say(format!("{name} skipped ({}): {}", skipped.reason.as_str(), skipped.detail));
            }
            Outcome::Refused(refused) => problems.extend(refused.into_iter().map(|problem| {
                let map = if problem.holder == Holder::Annotation { "annotations" } else { "labels" };
                let within = if problem.holder == Holder::Namespace { &[] } else { &place.path[..] };
                let path = within.iter().chain(&["metadata", map, &problem.key]).map(|&key| key.to_owned()).collect();
                let namespace = (problem.holder == Holder::Namespace).then(|| context.namespace.name.clone());
                let message = format!("error[{}]: {name}: {}", problem.code, problem.message);
                Wrong { path, namespace, message }
            })),
        }
    }
    if problems.is_empty() { Ok(after) } else { Err(problems) }
}

/// What is said of an object that runs pods and whose templates stand where none is looked for.
const NOT_FOUND: &str = "its pod templates stand where none is looked for; annotate them, and the webhook adds the sidecar to the pods themselves";

/// A line of the report: names come from the file, and a terminal obeys control characters.
fn one_line(line: &str) -> String {
    let mut safe: String = line.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    safe.push('\n');
    safe
}

fn remove(object: &Value, report: &mut String) -> Result<Value, Vec<Wrong>> {
    let mut after = object.clone();
    for place in injector::places(object).unwrap_or_default() {
        if let Some(uninjected) = injector::uninject(place.of(object)) {
            report.push_str(&one_line(&format!("{} uninjected", shown_at(object, &place))));
            for warning in uninjected.warnings {
                report.push_str(&one_line(&format!("    ‼ {warning}")));
            }
            place.put(&mut after, uninjected.pod);
        }
    }
    Ok(after)
}

/// An object as people name it.
fn shown(object: &Value) -> String {
    let text = |path: &str| object.pointer(path).and_then(Value::as_str);
    let kind = text("/kind").unwrap_or("object").to_ascii_lowercase();
    format!("{kind}/{}", text("/metadata/name").or_else(|| text("/metadata/generateName")).unwrap_or("?"))
}

/// An object as it is told from all others of a file.
fn named(object: &Value) -> String {
    let namespace = object.pointer("/metadata/namespace").and_then(Value::as_str);
    namespace.map_or_else(|| shown(object), |namespace| format!("{namespace}/{}", shown(object)))
}

/// An object with what tells one of its templates from the others.
fn shown_at(object: &Value, place: &Place) -> String {
    match place.shown() {
        "" => shown(object),
        template => format!("{} {template}", shown(object)),
    }
}

/// A problem with its place: the line of the key that it is about.
fn located(sources: &[Source], source: &Source, document: &Document, wrong: &Wrong) -> String {
    let Wrong { path, namespace, message } = wrong;
    let namespaces = namespace.as_ref().and_then(|name| namespace_of(sources, name));
    let (source, document, path) = match namespaces {
        Some((source, document, within)) => (source, document, [&within[..], &path[..]].concat()),
        None => (source, document, path.clone()),
    };
    let text = source.text.get(document.text.clone()).unwrap_or_default();
    let before = source.text.get(..document.text.start).unwrap_or_default().matches('\n').count();
    let message = one_line(message);
    let line = before + yaml::line(text, &path);
    format!("{message}   ╭─[{}:{line}]\n   ╰─ groupage explain {}\n", source.name, code_of(&message))
}

/// Where a namespace is written down: the manifest, the document, and the way to it in a list. The last one counts, as for `kubectl`.
fn namespace_of<'a>(sources: &'a [Source], name: &str) -> Option<(&'a Source, &'a Document, Vec<String>)> {
    let documents = sources.iter().flat_map(|source| source.documents.iter().map(move |document| (source, document)));
    documents.rev().find_map(|(source, document)| Some((source, document, way_to(&document.value, name)?)))
}

fn way_to(object: &Value, name: &str) -> Option<Vec<String>> {
    let is = |pointer: &str, text: &str| object.pointer(pointer).and_then(Value::as_str) == Some(text);
    if is("/kind", "Namespace") && is("/metadata/name", name) {
        return Some(Vec::new());
    }
    let items = object.get("items").and_then(Value::as_array)?;
    items.iter().enumerate().rev().find_map(|(index, item)| {
        let within = way_to(item, name)?;
        Some([vec!["items".to_owned(), index.to_string()], within].concat())
    })
}

fn code_of(message: &str) -> &str {
    message.split_once("error[").and_then(|(_, rest)| rest.split_once(']')).map_or("", |(code, _)| code)
}

fn written(sources: &[Source], objects: &[Object], output: Output) -> String {
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
            let changed: Vec<&Object> = objects.iter().filter(|object| object.before != object.after).collect();
            let patch = |object: &Object| json!(injector::patch(&object.before, &object.after));
            let is_one = objects.iter().filter(|object| !object.before.is_null()).count() == 1;
            let whole = match changed.as_slice() {
                [] if is_one => json!([]),
                [one] if is_one => patch(one),
                changed => {
                    let mut taken = BTreeSet::new();
                    let keyed = changed.iter().map(|object| (unique(named(&object.before), &mut taken), patch(object)));
                    Value::Object(keyed.collect::<Map<_, _>>())
                }
            };
            format!("{whole:#}\n")
        }
    }
}

/// A name, with a number after it where others have it too: of those with `generateName` several may.
fn unique(name: String, taken: &mut BTreeSet<String>) -> String {
    let again = (2..).map(|again| format!("{name}#{again}"));
    let free = std::iter::once(name.clone()).chain(again).find(|name| !taken.contains(name)).unwrap_or(name);
    taken.insert(free.clone());
    free
}

/// An object as it was written, where nothing is changed.
fn as_yaml(sources: &[Source], object: &Object, first: bool) -> String {
    let Some(source) = sources.get(object.file) else { return String::new() };
    let Some(document) = source.documents.get(object.document) else { return String::new() };
    let marker = if document.marked || !first { "---\n" } else { "" };
    if object.before != object.after {
        // A value of JSON can be written; what cannot would be seen in the first test.
        return format!("{marker}{}", yaml::write(&object.after).unwrap_or_else(|error| format!("# {error}\n")));
    }
    let text = source.text.get(document.text.clone()).unwrap_or_default();
    // A directive needs the end of what stands before it.
    let is_directed = !first && text.trim_start().starts_with('%');
    let marker = match (is_directed, document.marked) {
        (true, _) => "...\n",
        (false, true) => "",
        (false, false) => marker,
    };
    let end = if text.ends_with('\n') || text.is_empty() { "" } else { "\n" };
    format!("{marker}{text}{end}")
}
