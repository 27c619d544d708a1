//! `groupage inject` and `groupage uninject`: manifests in, manifests out, a report beside them.
//!
//! The same function as the webhook's. What the cluster would know, the file says: its Services, pools, network policies, namespaces and policies are what an
//! injection looks at.

mod context;

use std::io::{self, IsTerminal, Read, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args as ClapArgs, ValueEnum};
use serde_json::{Map, Value, json};

use self::context::Around;
use super::yaml::{self, Document};
use crate::config::EXIT_FINDINGS;
use crate::injector::{self, Code, Outcome, Place};

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
    /// A manifest, - for standard input; may be given more than once
    #[arg(short = 'f', long = "file", value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
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
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,
    /// Where the controller is: https://HOST:PORT, or off
    #[arg(long, value_name = "ADDR", default_value = "https://groupage-stream.groupage-system.svc:9444")]
    controller: String,
    /// The certificates that the controller is known by (PEM)
    #[arg(long, value_name = "FILE")]
    controller_ca: Option<PathBuf>,
    /// Allow an init container with `NET_ADMIN` for capture mode Redirect
    #[arg(long)]
    allow_redirect: bool,
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

pub(super) fn inject(args: &InjectArgs) -> ExitCode {
    print(&args.files, |sources| {
        let ca = match &args.controller_ca {
            Some(path) => std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?,
            None => String::new(),
        };
        let around =
            Around::new(args, ca, sources.iter().flat_map(|source| &source.documents).map(|document| &document.value))?;
        Ok(change(sources, &args.files, &mut |object, report| add(object, &around, report)))
    })
}

pub(super) fn uninject(args: &Files) -> ExitCode {
    print(args, |sources| Ok(change(sources, args, &mut remove)))
}

/// Reads, changes, prints. Where anything is refused nothing is printed but why: half a manifest would be applied.
fn print(files: &Files, work: impl Fn(&[Source]) -> Result<Done, String>) -> ExitCode {
    let done = files.files.iter().map(read).collect::<Result<Vec<_>, _>>().and_then(|sources| work(&sources));
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

fn read(path: &PathBuf) -> Result<Source, String> {
    let name = if path.as_os_str() == "-" { "standard input".to_owned() } else { path.display().to_string() };
    let text = if path.as_os_str() == "-" {
        if io::stdin().is_terminal() {
            eprintln!("reading manifests from the terminal; end with ctrl-d");
        }
        let mut text = String::new();
        io::stdin().read_to_string(&mut text).map(|_| text)
    } else {
        std::fs::read_to_string(path)
    };
    let text = text.map_err(|error| format!("{name}: {error}"))?;
    let documents = yaml::documents(&text).map_err(|error| format!("error[{}]: {name}, {error}", Code::Unreadable))?;
    for document in &documents {
        if !(document.value.is_object() || document.value.is_null()) {
            return Err(format!(
                "error[{}]: {name}, line {}: a document is a Kubernetes object, not a {}",
                Code::Unreadable,
                document.line,
                if document.value.is_array() { "list" } else { "single value" }
            ));
        }
    }
    Ok(Source { name, text, documents })
}

/// What is done to one object: its new form, or what is refused.
type Work<'a> = &'a mut dyn FnMut(&Value, &mut String) -> Result<Value, Vec<String>>;

fn change(sources: &[Source], files: &Files, work: Work<'_>) -> Done {
    let (mut report, mut problems) = (String::new(), String::new());
    let mut objects = Vec::new();
    for (file, source) in sources.iter().enumerate() {
        for (index, document) in source.documents.iter().enumerate() {
            match each(&document.value, work, &mut report) {
                Ok(after) => objects.push(Object { before: document.value.clone(), after, file, document: index }),
                Err(found) => problems.extend(found.iter().map(|problem| located(source, document, problem))),
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
fn each(object: &Value, work: Work<'_>, said: &mut String) -> Result<Value, Vec<String>> {
    let is_list =
        object.get("kind").and_then(Value::as_str).is_some_and(|kind| kind == "List" || kind.ends_with("List"));
    let Some(items) = object.get("items").and_then(Value::as_array).filter(|_| is_list) else {
        return work(object, said);
    };
    let mut after = object.clone();
    let mut problems = Vec::new();
    let mut changed = Vec::new();
    for item in items {
        match each(item, work, said) {
            Ok(item) => changed.push(item),
            Err(more) => problems.extend(more),
        }
    }
    if let Some(items) = after.get_mut("items") {
        *items = Value::Array(changed);
    }
    if problems.is_empty() { Ok(after) } else { Err(problems) }
}

fn add(object: &Value, around: &Around, report: &mut String) -> Result<Value, Vec<String>> {
    let mut say = |line: String| report.push_str(&one_line(&line));
    let places = match injector::places(object) {
        Ok(places) => places,
        Err(why) => {
            say(format!("{} left alone: {why}", shown(object)));
            return Ok(object.clone());
        }
    };
    let mut after = object.clone();
    let mut problems = Vec::new();
    for place in places {
        let name = shown_at(object, &place);
        if let Some(hint) = misplaced(object, &place) {
            say(hint);
        }
        let template = place.of(object);
        match injector::inject(template, &around.context(object, &place)) {
            Outcome::Injected(injected) => {
                let is_new = injected.pod != *template;
                say(if is_new {
                    format!("{name} injected")
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
            Outcome::Refused(refused) => {
                problems.extend(refused.into_iter().map(|problem| {
                    format!("{}\u{0}error[{}]: {name}: {}", problem.key, problem.code, problem.message)
                }));
            }
        }
    }
    if problems.is_empty() { Ok(after) } else { Err(problems) }
}

/// Annotations that stand on the object and not on its template, where nobody reads them.
fn misplaced(object: &Value, place: &Place) -> Option<String> {
    let own = object.pointer("/metadata/annotations")?.as_object()?;
    let key = own.keys().find(|key| key.starts_with("groupage.dev/")).filter(|_| !place.path.is_empty())?;
    Some(format!("{}: {key} stands on the object and does nothing there: write it on the pod template", shown(object)))
}

/// A line of the report: names come from the file, and a terminal obeys control characters.
fn one_line(line: &str) -> String {
    let mut safe: String = line.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    safe.push('\n');
    safe
}

fn remove(object: &Value, report: &mut String) -> Result<Value, Vec<String>> {
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

/// A problem with its place: the line of the key that it is about, which stands before it.
fn located(source: &Source, document: &Document, problem: &str) -> String {
    let (key, message) = problem.split_once('\u{0}').unwrap_or(("", problem));
    let text = source.text.get(document.text.clone()).unwrap_or_default();
    let line = text.lines().position(|line| line.contains(key)).unwrap_or(0);
    let from = 1 + source.text.get(..document.text.start).unwrap_or_default().matches('\n').count();
    let message = one_line(message);
    format!("{message}   ╭─[{}:{}]\n   ╰─ groupage explain {}\n", source.name, from + line, code_of(&message))
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
                changed => Value::Object(
                    changed.iter().map(|object| (named(&object.before), patch(object))).collect::<Map<_, _>>(),
                ),
            };
            format!("{whole:#}\n")
        }
    }
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
    let marker = if document.marked { "" } else { marker };
    let end = if text.ends_with('\n') || text.is_empty() { "" } else { "\n" };
    format!("{marker}{text}{end}")
}
