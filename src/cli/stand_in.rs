//! `groupage stand-in`: a model server that only pretends, and a caller that is told what to call, as processes of their own. For tests and tries on a
//! cluster, where our image is at hand and a model is not; hidden from the help.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args as ClapArgs, Subcommand};
use tokio::signal::unix::{SignalKind, signal};

use super::EXIT_INTERNAL;
use crate::config::parse_duration;
use crate::error::BoxError;
use crate::standin::remote::{Caller, Model};
use crate::standin::server::{Inner, ServerConfig, TooLarge};
use crate::standin::{ListRefusal, Target};

/// What is answered after the end was asked for; a pod has 30 s by default.
const DRAIN_MAX: Duration = Duration::from_secs(25);

/// What the front end of a model that batches by itself takes for a call, and for each item of it:
/// small beside any iteration.
const FRONT: Duration = Duration::from_micros(100);
const FRONT_ITEM: Duration = Duration::from_micros(20);

/// Who to be.
#[derive(Debug, Clone, ClapArgs)]
pub(super) struct Args {
    #[command(subcommand)]
    role: Role,
}

#[derive(Debug, Clone, Subcommand)]
enum Role {
    /// A model server: t(n) = a + b·n, answers that depend on the items alone
    Model(ModelArgs),
    /// A caller that is told over HTTP whom to call, and checks and counts the answers
    Caller(CallerArgs),
}

#[derive(Debug, Clone, ClapArgs)]
struct ModelArgs {
    /// Where to serve
    #[arg(long, value_name = "ADDR", default_value = "[::]:8080")]
    listen: SocketAddr,
    /// Where to be told to change
    #[arg(long, value_name = "ADDR", default_value = "[::]:8099")]
    control: SocketAddr,
    /// The a of t(n) = a + b·n
    #[arg(long, value_name = "TIME", default_value = "5ms", value_parser = duration)]
    base: Duration,
    /// The b of t(n) = a + b·n
    #[arg(long, value_name = "TIME", default_value = "100us", value_parser = duration)]
    per_item: Duration,
    /// Calls computed at once
    #[arg(long, value_name = "N", default_value_t = 1)]
    slots: usize,
    /// Calls that may wait; one more is answered 503
    #[arg(long, value_name = "N", default_value_t = 64)]
    queue: usize,
    /// Items that one call may have; 0: any number
    #[arg(long, value_name = "N", default_value_t = 32)]
    items_max: usize,
    /// Refuse more items than that without naming the limit
    #[arg(long)]
    refuse_bare: bool,
    /// Batch by itself: one iteration at a time for each of the calls computed at once, of at most
    /// this many items
    #[arg(long, value_name = "ITEMS")]
    inner: Option<usize>,
    /// A call whose body contains the text has this time in place of the base
    #[arg(long, value_name = "TEXT=TIME", value_parser = slow)]
    slow: Option<(String, Duration)>,
    /// Take one item a call: how a list is answered, a status or reset, first, not-json, silence
    #[arg(long, value_name = "HOW")]
    lists: Option<ListRefusal>,
    /// A call with an item that contains this fails as a whole
    #[arg(long, value_name = "TEXT")]
    poison: Option<String>,
    /// Speak HTTP/2 with prior knowledge too
    #[arg(long)]
    http2: bool,
    /// Bind the port only when told to, as a server whose model takes its time to load
    #[arg(long)]
    closed: bool,
}

#[derive(Debug, Clone, ClapArgs)]
struct CallerArgs {
    /// Where to be told what to call
    #[arg(long, value_name = "ADDR", default_value = "[::]:8099")]
    control: SocketAddr,
    /// Serve the ledger's misbehaving model on this loopback port
    #[arg(long, value_name = "PORT")]
    ledger: Option<u16>,
}

fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text).ok_or_else(|| "a time is a number with us, ms, s, m or h".to_owned())
}

fn slow(text: &str) -> Result<(String, Duration), String> {
    let (mark, time) = text.split_once('=').ok_or_else(|| "a text, =, and a time".to_owned())?;
    Ok((mark.to_owned(), duration(time)?))
}

pub(super) fn run(args: Args) -> ExitCode {
    let done = super::runtime(1).map_err(Into::into).and_then(|runtime| runtime.block_on(be(args.role)));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("the stand-in cannot run: {error}");
            ExitCode::from(EXIT_INTERNAL)
        }
    }
}

async fn be(role: Role) -> Result<(), BoxError> {
    // The first process of a container ignores every signal that it has not asked for.
    let mut term = signal(SignalKind::terminate())?;
    let mut int = signal(SignalKind::interrupt())?;
    let end = async {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
    };
    match role {
        Role::Model(args) => {
            let control = args.control;
            let closed = args.closed;
            let model = Model::start(args.config(), control, closed).await?;
            let serving = model.serving().map_or_else(|| "closed".to_owned(), |addr| format!("serving on {addr}"));
            println!("stand-in model {serving}, orders on {}", model.control());
            end.await;
            let all = model.drain(DRAIN_MAX).await;
            println!("stand-in model ended, {}", if all { "everything answered" } else { "calls unanswered" });
        }
        Role::Caller(args) => {
            let caller = Caller::start(args.control, args.ledger).await?;
            println!("stand-in caller, orders on {}", caller.control());
            end.await;
        }
    }
    Ok(())
}

// === impl ModelArgs ===

impl ModelArgs {
    fn config(self) -> ServerConfig {
        ServerConfig {
            listen: Target::Tcp(self.listen),
            base: self.base,
            per_item: self.per_item,
            slots: self.slots,
            queue_max: self.queue,
            items_max: Some(self.items_max).filter(|&max| max > 0),
            too_large: if self.refuse_bare { TooLarge::Bare } else { TooLarge::Named },
            inner: self.inner.map(|items_max| Inner {
                front: FRONT,
                front_item: FRONT_ITEM,
                items_max,
                inside_max: self.queue.saturating_add(items_max),
            }),
            slow: self.slow,
            lists: self.lists,
            poison: self.poison,
            http2: self.http2,
            ..ServerConfig::default()
        }
    }
}
