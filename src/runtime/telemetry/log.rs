//! The log: JSON lines or text on stderr, with a level that can be changed at run time.
//!
//! Bodies, header values and credentials are never logged: callers pass kinds, counts and codes.
//! Control characters in fields are escaped by both formats.

use std::io::IsTerminal;

use serde_json::Value;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::filter::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, fmt};

use super::writer::LossyWriter;
use crate::error::BoxError;

/// Format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineFormat {
    /// One JSON object per line.
    Json,
    /// Readable text.
    Pretty,
}

/// Handle to change the log level at run time.
#[derive(Debug, Clone)]
pub struct LevelHandle {
    handle: Option<reload::Handle<EnvFilter, Registry>>,
}

/// Starts the log of the process. A second call changes nothing, and its handle has no effect.
///
/// # Errors
/// Returns an error if `level` is not a valid filter, or if the writer thread cannot be started.
pub fn init(format: LineFormat, level: &str) -> Result<(LevelHandle, LossyWriter), BoxError> {
    let writer = LossyWriter::start("log", std::io::stderr())?;
    let (filter, handle) = reload::Layer::new(parse_filter(level)?);
    let shared = writer.clone();
    let lines = move || shared.clone();
    let layer: Box<dyn tracing_subscriber::Layer<_> + Send + Sync> = match format {
        LineFormat::Json => Box::new(fmt::layer().event_format(JsonLines).with_writer(lines)),
        LineFormat::Pretty => Box::new(fmt::layer().with_writer(lines).with_ansi(std::io::stderr().is_terminal())),
    };
    let first = tracing_subscriber::registry().with(filter).with(layer).try_init().is_ok();
    Ok((LevelHandle { handle: first.then_some(handle) }, writer))
}

/// Formats one JSON object per line: `ts`, `level`, `target` and `msg`, then the fields of the
/// event. Values that are already JSON (lists of addresses) are embedded as JSON.
#[derive(Debug, Clone, Copy)]
struct JsonLines;

impl<S, N> FormatEvent<S, N> for JsonLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> std::fmt::Result {
        let mut fields = FieldVisitor(Vec::new());
        let mut now = String::new();
        SystemTime.format_time(&mut Writer::new(&mut now))?;
        fields.0.push(("ts", now.into()));
        fields.0.push(("level", event.metadata().level().as_str().into()));
        fields.0.push(("target", event.metadata().target().into()));
        event.record(&mut fields);
        // The common fields come first. A map would sort them by name.
        fields.0.sort_by_key(|(name, _)| !matches!(*name, "ts" | "level" | "target" | "msg"));
        for (i, (name, value)) in fields.0.iter().enumerate() {
            let before = if i == 0 { '{' } else { ',' };
            write!(writer, "{before}\"{name}\":{value}")?;
        }
        writeln!(writer, "}}")
    }
}

struct FieldVisitor(Vec<(&'static str, Value)>);

// === impl FieldVisitor ===

impl FieldVisitor {
    fn insert(&mut self, field: &Field, value: impl Into<Value>) {
        let name = if field.name() == "message" { "msg" } else { field.name() };
        self.0.push((name, value.into()));
    }
}

impl Visit for FieldVisitor {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.insert(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.insert(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.insert(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.insert(field, value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.insert(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let text = format!("{value:?}");
        // The debug format of a list of strings or numbers is valid JSON. Anything else is logged
        // as text.
        match serde_json::from_str::<Value>(&text) {
            Ok(list @ Value::Array(_)) => self.insert(field, list),
            _ => self.insert(field, text),
        }
    }
}

/// Parses a filter in `RUST_LOG` syntax. Every part must contain a level: a single word that is not
/// one would be parsed as a target, and would disable all other targets.
fn parse_filter(text: &str) -> Result<EnvFilter, BoxError> {
    let is_level = |word: &str| {
        ["off", "error", "warn", "info", "debug", "trace"].iter().any(|known| word.trim().eq_ignore_ascii_case(known))
    };
    if !text.split(',').all(|part| part.rsplit('=').next().is_some_and(is_level)) {
        return Err(format!("log level {text:?} has a part without a level: write info, or groupage=debug").into());
    }
    Ok(EnvFilter::try_new(text)?)
}

// === impl LevelHandle ===

impl LevelHandle {
    /// Returns a handle that has no effect.
    #[must_use]
    pub const fn disabled() -> Self {
        Self { handle: None }
    }

    /// Sets the filter, in `RUST_LOG` syntax.
    ///
    /// # Errors
    /// Returns an error if `level` is not a valid filter.
    pub fn set(&self, level: &str) -> Result<(), BoxError> {
        let filter = parse_filter(level)?;
        if let Some(handle) = &self.handle {
            handle.reload(filter)?;
        }
        Ok(())
    }
}
