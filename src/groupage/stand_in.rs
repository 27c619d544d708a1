//! The `stand-in` binary: test processes for a cluster, where a model is not available. It is a
//! simulated model server, or a client that is controlled over HTTP.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "its output is read by a test or a person")]

use std::error::Error;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser};
use groupage_policy::config::parse_duration;
use groupage_testkit::remote::{RemoteLoadGenerator, RemoteModel};
use groupage_testkit::server::{InternalBatching, ServerConfig, TooLargeResponse};
use groupage_testkit::{ListResponse, ServerAddr};
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

/// Maximum time to answer calls after SIGTERM. The default grace period of a pod is 30 s.
const DRAIN_MAX: Duration = Duration::from_secs(25);

/// Time that the front end of a self-batching model spends on a call, and on each of its items:
/// small compared with an iteration.
const FRONT_TIME: Duration = Duration::from_micros(100);
const FRONT_ITEM_TIME: Duration = Duration::from_micros(20);

/// The role of the process.
#[derive(Debug, Clone, Parser)]
#[command(name = "stand-in", version, max_term_width = 120)]
enum TestRole {
    /// Simulate a model server: t(n) = a + b·n, with answers that depend on the items alone
    Model(ModelArgs),
    /// Send calls as requested over HTTP, and check and count the answers
    Caller(CallerArgs),
}

#[derive(Debug, Clone, Args)]
struct ModelArgs {
    /// Address to serve calls on
    #[arg(long, value_name = "ADDR", default_value = "[::]:8080")]
    listen: SocketAddr,
    /// Address of the control API
    #[arg(long, value_name = "ADDR", default_value = "[::]:8099")]
    control: SocketAddr,
    /// Time a of t(n) = a + b·n
    #[arg(long, value_name = "TIME", default_value = "5ms", value_parser = duration)]
    base: Duration,
    /// Time b of t(n) = a + b·n
    #[arg(long, value_name = "TIME", default_value = "100us", value_parser = duration)]
    per_item: Duration,
    /// Number of calls computed at once
    #[arg(long, value_name = "N", default_value_t = 1)]
    slots: usize,
    /// Number of calls that may wait; any further call is answered 503
    #[arg(long, value_name = "N", default_value_t = 64)]
    queue: usize,
    /// Maximum number of items in a call; 0 for no limit
    #[arg(long, value_name = "N", default_value_t = 32)]
    items_max: usize,
    /// Refuse larger calls without naming the limit
    #[arg(long)]
    refuse_bare: bool,
    /// Batch internally: one iteration at a time for each of the calls computed at once, of at most
    /// this number of items
    #[arg(long, value_name = "ITEMS")]
    inner: Option<usize>,
    /// Use this time instead of the base time for calls with the text in their body
    #[arg(long, value_name = "TEXT=TIME", value_parser = slow)]
    slow: Option<(String, Duration)>,
    /// Accept one item per call; lists are answered with a status, reset, first, not-json or
    /// silence
    #[arg(long, value_name = "HOW")]
    lists: Option<ListResponse>,
    /// Fail a call as a whole if one of its items contains this text
    #[arg(long, value_name = "TEXT")]
    poison: Option<String>,
    /// Accept HTTP/2 with prior knowledge too
    #[arg(long)]
    http2: bool,
    /// Bind the port only on request, like a server that is loading its model
    #[arg(long)]
    closed: bool,
}

#[derive(Debug, Clone, Args)]
struct CallerArgs {
    /// Address of the control API
    #[arg(long, value_name = "ADDR", default_value = "[::]:8099")]
    control: SocketAddr,
    /// Serve the ledger's misbehaving model on this loopback port
    #[arg(long, value_name = "PORT")]
    ledger: Option<u16>,
}

fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text).ok_or_else(|| "a duration must be a number with us, ms, s, m or h".to_owned())
}

fn slow(text: &str) -> Result<(String, Duration), String> {
    let (mark, time) = text.split_once('=').ok_or_else(|| "must be TEXT=DURATION".to_owned())?;
    Ok((mark.to_owned(), duration(time)?))
}

fn main() -> ExitCode {
    let role = TestRole::parse();
    // One worker thread, as the tests share two cores with the proxy.
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
    match runtime.map_err(Into::into).and_then(|runtime| runtime.block_on(run_role(role))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("the stand-in cannot run: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run_role(role: TestRole) -> Result<(), Box<dyn Error + Send + Sync>> {
    // PID 1 of a container ignores every signal for which it has no handler.
    let mut term = signal(SignalKind::terminate())?;
    let mut int = signal(SignalKind::interrupt())?;
    let end = async {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
    };
    match role {
        TestRole::Model(args) => {
            let control = args.control;
            let closed = args.closed;
            let model = RemoteModel::start(args.config(), control, closed).await?;
            let serving = model.data_addr().map_or_else(|| "closed".to_owned(), |addr| format!("serving on {addr}"));
            println!("stand-in model {serving}, commands on {}", model.control_addr());
            end.await;
            let all = model.drain(DRAIN_MAX).await;
            println!("stand-in model ended, {}", if all { "everything answered" } else { "calls unanswered" });
        }
        TestRole::Caller(args) => {
            let caller = RemoteLoadGenerator::start(args.control, args.ledger).await?;
            println!("stand-in caller, commands on {}", caller.control());
            end.await;
        }
    }
    Ok(())
}

// === impl ModelArgs ===

impl ModelArgs {
    fn config(self) -> ServerConfig {
        ServerConfig {
            listen: ServerAddr::Tcp(self.listen),
            base: self.base,
            per_item: self.per_item,
            slots: self.slots,
            queue_max: self.queue,
            items_max: Some(self.items_max).filter(|&max| max > 0),
            too_large: if self.refuse_bare { TooLargeResponse::StatusOnly } else { TooLargeResponse::WithMessage },
            inner: self.inner.map(|items_max| InternalBatching {
                front: FRONT_TIME,
                front_item: FRONT_ITEM_TIME,
                items_max,
                admitted_items_max: self.queue.saturating_add(items_max),
            }),
            slow: self.slow,
            lists: self.lists,
            poison: self.poison,
            http2: self.http2,
            ..ServerConfig::default()
        }
    }
}
