//! Does what `life` says: has the schedulers hold nothing, tells clients to go, answers who waits for the end.
//!
//! One task, asleep while the process serves. It leaves out the end itself (`Running::drain`), after which nobody is served.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::FutureExt;
use futures_util::future::{join_all, select_all};
use tokio::sync::{mpsc, oneshot, watch};

use super::life::{Life, Now, Seen, Times};
use super::port::Reach;
use crate::batching::Tick;
use crate::clock::Clock;
use crate::proxy::{Connections, Host, Welcome};
use crate::telemetry::Metrics;

/// Words that wait: hooks of a pod's containers, of which there are a few; more of them wait to be said.
const WORDS_MAX: usize = 16;

/// Tells the process to end, or to flush.
#[derive(Debug, Clone)]
pub(super) struct Drainer {
    words: mpsc::Sender<Word>,
    shown: Arc<Shown>,
    leaving: watch::Receiver<bool>,
}

/// What can be seen of it without asking.
#[derive(Debug)]
struct Shown {
    leaving: AtomicBool,
    stage: std::sync::Mutex<&'static str>,
}

#[derive(Debug)]
enum Word {
    /// Flush, and say whether nobody was left behind once it is over.
    Flush(oneshot::Sender<bool>),
    /// End, and say since when.
    Drain(oneshot::Sender<Tick>),
}

/// What a drain reaches.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) clock: Clock,
    pub(super) ports: Vec<(Reach, Host)>,
    pub(super) connections: Arc<Connections>,
    pub(super) metrics: Arc<Metrics>,
}

// === impl Drainer ===

impl Drainer {
    /// Starts the task. Call it inside a tokio runtime.
    pub(super) fn start(times: Times, parts: Parts) -> Self {
        let (words, inbox) = mpsc::channel(WORDS_MAX);
        let shown = Arc::new(Shown { leaving: AtomicBool::new(false), stage: std::sync::Mutex::new("serving") });
        let (left, leaving) = watch::channel(false);
        tokio::spawn(attend(Life::new(times), parts, inbox, (shown.clone(), left)));
        Self { words, shown, leaving }
    }

    /// Whether the process wants calls, as far as this goes.
    pub(super) fn wants_calls(&self) -> bool {
        !self.shown.leaving.load(Ordering::Relaxed)
    }

    /// `serving`, `flushing` or `draining`.
    pub(super) fn stage(&self) -> &'static str {
        self.shown.stage.lock().map_or("draining", |stage| *stage)
    }

    /// The application is about to be stopped: resolves when it may be, with whether everybody was answered.
    pub(super) async fn flush(&self) -> bool {
        let (done, over) = oneshot::channel();
        // A process that has ended serves nobody.
        if self.words.send(Word::Flush(done)).await.is_err() {
            return true;
        }
        over.await.unwrap_or(true)
    }

    /// The process is about to be stopped; since when. It goes on serving.
    pub(super) async fn drain(&self) -> Option<Tick> {
        let (reply, since) = oneshot::channel();
        self.words.send(Word::Drain(reply)).await.ok()?;
        since.await.ok()
    }

    /// Resolves when clients are told to go.
    pub(super) async fn leaving(&self) {
        // An error means that there is nobody to tell.
        self.leaving.clone().wait_for(|leaving| *leaving).await.ok();
    }
}

async fn attend(
    mut life: Life,
    parts: Parts,
    mut inbox: mpsc::Receiver<Word>,
    (shown, left): (Arc<Shown>, watch::Sender<bool>),
) {
    let Parts { clock, ports, connections, metrics } = parts;
    let mut returns: Vec<watch::Receiver<u64>> = ports.iter().map(|(port, _)| port.upstream.returns()).collect();
    let mut waiting: Vec<oneshot::Sender<bool>> = Vec::new();
    let mut before: Option<Now> = None;
    let look = |returns: &[watch::Receiver<u64>]| Seen {
        open: connections.open(),
        returns: returns.iter().map(|port| *port.borrow()).sum(),
    };
    loop {
        let now = life.look(clock.now(), look(&returns));
        if before.is_none_or(|before| before.flushed != now.flushed) && (now.flushed || before.is_some()) {
            join_all(ports.iter().map(|(port, _)| async {
                if now.flushed { port.scheduler.drain().await } else { port.scheduler.resume().await }
            }))
            .await;
            metrics.draining(now.flushed);
        }
        if before.is_none_or(|before| before.leaving != now.leaving) {
            let welcome = if now.leaving { Welcome::Leave } else { Welcome::Stay };
            ports.iter().for_each(|(_, host)| host.welcome(welcome));
            shown.leaving.store(now.leaving, Ordering::Relaxed);
            left.send_replace(now.leaving);
        }
        if before.is_none_or(|before| before.stage != now.stage) {
            if let Ok(mut stage) = shown.stage.lock() {
                *stage = now.stage;
            }
            if before.is_some() {
                tracing::info!(stage = now.stage, "{}", story(now.stage));
            }
        }
        if let Some(whole) = now.over {
            // Who asked may have gone.
            waiting.drain(..).for_each(|hook| _ = hook.send(whole));
        }
        before = Some(now);
        let counted = returns.clone();
        let back = select_all(returns.iter_mut().map(|port| port.changed().boxed()));
        tokio::select! {
            word = inbox.recv() => match word {
                // Everybody who could say anything has gone.
                None => return,
                Some(Word::Flush(done)) => {
                    life.flush(clock.now(), look(&counted));
                    waiting.push(done);
                }
                // Who asked may have gone.
                Some(Word::Drain(reply)) => _ = reply.send(life.drain(clock.now())),
            },
            () = connections.none(), if !waiting.is_empty() && now.leaving => {}
            (back, ..) = back, if now.flushed => {
                if back.is_err() {
                    return;
                }
            }
            () = rest(clock, now.until) => {
                if now.ask {
                    // One that refuses is looked for until it is back.
                    join_all(ports.iter().map(|(port, _)| port.upstream.check())).await;
                }
            }
        }
    }
}

async fn rest(clock: Clock, until: Option<Tick>) {
    match until {
        Some(until) => tokio::time::sleep_until(clock.instant(until)).await,
        None => std::future::pending().await,
    }
}

fn story(stage: &str) -> &'static str {
    match stage {
        "flushing" => "the application is about to be stopped: nothing waits any more",
        "draining" => "draining: nothing waits any more, and everything accepted is answered",
        _ => "the application is back: serving as before",
    }
}
