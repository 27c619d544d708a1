//! The log: JSON lines or text on stderr, its level changeable while running.
//!
//! Never a body, a header value or a credential: callers pass kinds, counts and codes. Control characters in fields are escaped by the formats.

use std::io::IsTerminal;

use serde_json::Value;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::filter::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, fmt};

use super::writer::LossyWriter;
use crate::error::BoxError;

/// How lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// One JSON object a line.
    Json,
    /// For people.
    Pretty,
}

/// Changes the level while running.
#[derive(Debug, Clone)]
pub struct LevelHandle {
    handle: Option<reload::Handle<EnvFilter, Registry>>,
}

#[derive(Debug, Clone)]
struct Lines(LossyWriter);

impl<'a> MakeWriter<'a> for Lines {
    type Writer = LossyWriter;

    fn make_writer(&'a self) -> Self::Writer {
        self.0.clone()
    }
}

/// Starts the log of the process. The second call changes nothing and gives a handle that does nothing.
///
/// # Errors
/// When the level is not a filter, or no thread can be started.
pub fn init(format: Format, level: &str) -> Result<(LevelHandle, LossyWriter), BoxError> {
    let writer = LossyWriter::start("log", std::io::stderr())?;
    let (filter, handle) = reload::Layer::new(EnvFilter::try_new(level)?);
    let lines = Lines(writer.clone());
    let layer: Box<dyn tracing_subscriber::Layer<_> + Send + Sync> = match format {
        Format::Json => Box::new(fmt::layer().event_format(JsonLines).with_writer(lines)),
        Format::Pretty => Box::new(fmt::layer().with_writer(lines).with_ansi(std::io::stderr().is_terminal())),
    };
    let first = tracing_subscriber::registry().with(filter).with(layer).try_init().is_ok();
    Ok((LevelHandle { handle: first.then_some(handle) }, writer))
}

/// One object a line: `ts level target msg`, then the fields of the event. Values that are JSON already (lists of addresses) stay JSON.
#[derive(Debug, Clone, Copy)]
struct JsonLines;

impl<S, N> FormatEvent<S, N> for JsonLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> std::fmt::Result {
        let mut fields = Fields(Vec::new());
        let mut now = String::new();
        SystemTime.format_time(&mut Writer::new(&mut now))?;
        fields.0.push(("ts", now.into()));
        fields.0.push(("level", event.metadata().level().as_str().into()));
        fields.0.push(("target", event.metadata().target().into()));
        event.record(&mut fields);
        // The fields that every line has come first; a map would sort them.
        fields.0.sort_by_key(|(name, _)| !matches!(*name, "ts" | "level" | "target" | "msg"));
        for (i, (name, value)) in fields.0.iter().enumerate() {
            let before = if i == 0 { '{' } else { ',' };
            write!(writer, "{before}\"{name}\":{value}")?;
        }
        writeln!(writer, "}}")
    }
}

struct Fields(Vec<(&'static str, Value)>);

// === impl Fields ===

impl Fields {
    fn insert(&mut self, field: &Field, value: impl Into<Value>) {
        let name = if field.name() == "message" { "msg" } else { field.name() };
        self.0.push((name, value.into()));
    }
}

impl Visit for Fields {
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
        // A list of strings prints as JSON; so do numbers. Anything else is text.
        match serde_json::from_str::<Value>(&text) {
            Ok(list @ Value::Array(_)) => self.insert(field, list),
            _ => self.insert(field, text),
        }
    }
}

/// Whether every part of a filter names a level: a lone word that is none would be taken for a target, and silence all others.
fn is_filter(text: &str) -> bool {
    let level = |word: &str| {
        ["off", "error", "warn", "info", "debug", "trace"].iter().any(|known| word.trim().eq_ignore_ascii_case(known))
    };
    text.split(',').all(|part| part.rsplit('=').next().is_some_and(level))
}

// === impl LevelHandle ===

impl LevelHandle {
    /// A handle that changes nothing.
    #[must_use]
    pub const fn none() -> Self {
        Self { handle: None }
    }

    /// Sets the filter, in `RUST_LOG` syntax.
    ///
    /// # Errors
    /// When it is not a filter.
    pub fn set(&self, level: &str) -> Result<(), BoxError> {
        if !is_filter(level) {
            return Err("no level".into());
        }
        let filter = EnvFilter::try_new(level)?;
        if let Some(handle) = &self.handle {
            handle.reload(filter)?;
        }
        Ok(())
    }
}
