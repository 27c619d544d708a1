//! The parts put together: what `groupage controller` starts, and how it ends.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::apply::{Written, apply};
use super::certs::{KeeperSettings, Served, keep, watch_files};
use super::events::{self, Notice};
use super::health::{self, Health};
use super::lease::{self, Leadership};
use super::missed::{self, Looked};
use super::reconcile::{Loop, NoStreams, Round, Source};
use super::sidecars::{Needs, Sidecars};
use super::watch::{self as following, Shared, Timing};
use super::webhook;
use crate::clock::Clock;
use crate::error::BoxError;
use crate::injector::{Context, Controller, RedirectUse, SidecarDefaults};
use crate::telemetry::ControllerMetrics;

/// Of the time to end, what is kept for those who have not heard of it yet: new questions are answered still.
const LINGER: u32 = 3;

/// How a controller is installed.
#[derive(Debug, Clone)]
pub struct Config {
    /// Its namespace.
    pub namespace: String,
    /// Its name, which no other replica has: its pod's.
    pub name: String,
    /// Where this replica answers streams, for those that are sent to the leader.
    pub stream: Option<String>,
    /// Where sidecars find the controller: `https://HOST:PORT`; empty: nowhere.
    pub stream_address: String,
    /// The Lease's name; `None`: there is one replica, and it leads.
    pub lease: Option<String>,
    /// Where the webhook listens.
    pub webhook: SocketAddr,
    /// Where probes and scrapes are answered.
    pub health: SocketAddr,
    /// Where certificates come from.
    pub certificate: Certificate,
    /// The names that callers use: of the webhook's Service and of the stream's.
    pub names: Vec<String>,
    /// Certificates, as PEM, of which a caller of the webhook has to show one; `None`: nobody has to.
    pub callers: Option<Vec<u8>>,
    /// Whether pods that say nothing, in namespaces that say nothing, get the sidecar.
    pub unless_disabled: bool,
    /// Namespaces that are left alone besides `kube-system` and its own.
    pub excluded: BTreeSet<String>,
    /// The use of capture by `Redirect`.
    pub redirect: RedirectUse,
    /// Whether pods get the native form; `None`: where the cluster knows it.
    pub native: Option<bool>,
    /// What every sidecar gets.
    pub sidecar: SidecarDefaults,
    /// Bounds of what is asked of the API server.
    pub timing: Timing,
    /// Where sidecars open their streams; `None`: nowhere, and nothing is told or tuned.
    pub streams: Option<SocketAddr>,
    /// Between two looks of the slow loop; `None`: nothing is tuned.
    pub tuner: Option<Duration>,
    /// The time to end in.
    pub drain: Duration,
}

/// Where certificates come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Certificate {
    /// Made here, kept in this Secret, and told to this `MutatingWebhookConfiguration`.
    Own {
        /// The Secret.
        secret: String,
        /// The configuration.
        webhooks: Option<String>,
    },
    /// Files that somebody else makes: `tls.crt`, `tls.key` and `ca.crt` in this folder.
    Files(PathBuf),
}

/// What the parts share.
#[derive(Clone)]
pub struct Parts {
    /// To ask the API server.
    pub client: kube::Client,
    /// What is known of the cluster.
    pub shared: Shared,
    /// Who leads.
    pub leadership: Leadership,
    /// The certificates that are shown and believed.
    pub served: Served,
    /// What each look found: the policy of every pod, and what is to be.
    pub rounds: watch::Receiver<Arc<Round>>,
    /// Where notices for events go.
    pub notices: mpsc::Sender<Notice>,
    /// Counters.
    pub metrics: ControllerMetrics,
    /// The clock of the process.
    pub clock: Clock,
    /// Becomes true when the process is to end.
    pub stop: watch::Receiver<bool>,
}

/// A controller that runs.
pub struct Running {
    /// Where the webhook is.
    pub webhook: SocketAddr,
    /// Where probes are answered.
    pub health: SocketAddr,
    /// Where sidecars open their streams.
    pub streams: Option<SocketAddr>,
    /// What its parts share.
    pub parts: Parts,
    listening: webhook::Listening,
    ending: Arc<AtomicBool>,
    stop: watch::Sender<bool>,
    /// Told last, when the webhook answers nobody any more.
    close: watch::Sender<bool>,
    elector: Option<tokio::task::JoinHandle<()>>,
    tasks: JoinSet<()>,
    drain: Duration,
}

/// What is to be asked of the API server with, however it is reached: no tries of its own, since every part has its own pace, and an end to every silence.
#[must_use]
pub fn prepared(mut config: kube::Config) -> kube::Config {
    config.default_retry = false;
    config.connect_timeout = Some(Duration::from_secs(10));
    // Above the longest watch, which would be cut otherwise.
    config.read_timeout = Some(Timing::default().watch + Duration::from_secs(30));
    config.reset_reader_on_write = true;
    config
}

/// Starts all parts.
///
/// # Errors
/// When an address cannot be bound, or the certificates of callers cannot be read.
#[expect(clippy::needless_pass_by_value, reason = "the parts are started with what is theirs")]
pub fn start(client: kube::Client, config: Config, clock: Clock) -> Result<Running, BoxError> {
    let webhook = bind(config.webhook, "webhook")?;
    let health = bind(config.health, "health")?;
    let port = config.streams.map(|address| bind(address, "stream")).transpose()?;
    let streams = port.as_ref().map(TcpListener::local_addr).transpose()?;
    let addresses = (webhook.local_addr()?, health.local_addr()?);
    let metrics = ControllerMetrics::new();
    let shared = Shared::new(clock);
    let served = Served::none();
    let tls = served.tls(config.callers.as_deref(), &["h2", "http/1.1"])?;
    let (stop, stopped) = watch::channel(false);
    let (close, closed) = watch::channel(false);
    let (notices, queue) = mpsc::channel(events::QUEUE_MAX);
    let (tell_round, rounds) = watch::channel(Arc::new(Round::default()));
    let mut tasks = JoinSet::new();
    let (leadership, elector) = elect(&client, &config, clock, stopped.clone());
    let parts = Parts {
        client: client.clone(),
        shared: shared.clone(),
        leadership: leadership.clone(),
        served: served.clone(),
        rounds: rounds.clone(),
        notices: notices.clone(),
        metrics: metrics.clone(),
        clock,
        stop: stopped.clone(),
    };
    let source: Arc<dyn Source> = match port {
        None => Arc::new(NoStreams),
        Some(port) => {
            let sidecars = Sidecars::new(Needs {
                shared: shared.clone(),
                leadership: leadership.clone(),
                served: served.clone(),
                notices: notices.clone(),
                metrics: metrics.clone(),
                clock,
                mode: config.sidecar.mode,
                tuner: config.tuner,
            });
            tasks.spawn(sidecars.listen(port, client.clone(), stopped.clone())?);
            sidecars
        }
    };
    tasks.spawn(certificates(&client, &config, &leadership, &served, stopped.clone()));
    tasks.spawn(following::follow(client.clone(), shared.clone(), config.timing, metrics.clone(), stopped.clone()));
    tasks.spawn(events::publish(client.clone(), config.name.clone(), queue, (clock, metrics.clone()), stopped.clone()));
    let (written, looked) = (Written::default(), Looked::default());
    let mut excluded = config.excluded.clone();
    excluded.insert(config.namespace.clone());
    let every = Loop {
        shared: shared.clone(),
        leadership: leadership.clone(),
        written: written.clone(),
        looked: looked.clone(),
        source,
        unless_disabled: config.unless_disabled,
        excluded,
        clock,
        metrics: metrics.clone(),
        notices: notices.clone(),
    };
    tasks.spawn(every.run(tell_round, stopped.clone()));
    let known = (clock, metrics.clone(), shared.reach().subscribe());
    tasks.spawn(apply(client.clone(), rounds.clone(), leadership.clone(), written, known, stopped.clone()));
    let base = base(&config, &served);
    let looking = (client, shared.clone(), leadership.clone());
    let installed =
        missed::Installed { base: base.clone(), own_namespace: config.namespace.clone(), native: config.native };
    tasks.spawn(missed::look(looking, looked, installed, clock, rounds, stopped));
    let ending = Arc::new(AtomicBool::new(false));
    let probes =
        Health { shared: shared.clone(), served, leadership, metrics: metrics.clone(), ending: ending.clone() };
    tasks.spawn(health::serve(health, probes, closed));
    let asked = webhook::Config {
        shared,
        base,
        own_namespace: config.namespace.clone(),
        clock,
        metrics,
        news: notices,
        native: config.native,
    };
    let listening = webhook::serve(webhook, tls, asked);
    let drain = config.drain;
    let (webhook, health) = addresses;
    Ok(Running { webhook, health, streams, parts, listening, ending, stop, close, elector, tasks, drain })
}

fn bind(address: SocketAddr, what: &str) -> io::Result<TcpListener> {
    let bound = crate::socket::bind(address).and_then(TcpListener::from_std);
    bound.map_err(|error| {
        io::Error::new(error.kind(), format!("cannot listen on the {what} address {address}: {error}"))
    })
}

fn elect(
    client: &kube::Client,
    config: &Config,
    clock: Clock,
    stop: watch::Receiver<bool>,
) -> (Leadership, Option<tokio::task::JoinHandle<()>>) {
    let Some(name) = &config.lease else { return (Leadership::always(clock), None) };
    let settings = lease::Settings {
        namespace: config.namespace.clone(),
        name: name.clone(),
        me: config.name.clone(),
        address: config.stream.clone(),
    };
    let (leadership, work) = lease::elect(client.clone(), settings, clock, stop);
    (leadership, Some(tokio::spawn(work)))
}

fn certificates(
    client: &kube::Client,
    config: &Config,
    leadership: &Leadership,
    served: &Served,
    stop: watch::Receiver<bool>,
) -> impl Future<Output = ()> + Send + use<> {
    let (client, leadership, served) = (client.clone(), leadership.clone(), served.clone());
    let (namespace, names, certificate) = (config.namespace.clone(), config.names.clone(), config.certificate.clone());
    async move {
        match certificate {
            Certificate::Own { secret, webhooks } => {
                let settings = KeeperSettings { namespace, secret, names, webhooks };
                keep(client, settings, leadership, served, stop).await;
            }
            Certificate::Files(folder) => watch_files(folder, served, stop).await,
        }
    }
}

/// The installation's values, with the certificates of the moment.
fn base(config: &Config, served: &Served) -> Arc<dyn Fn() -> Context + Send + Sync> {
    let (sidecar, address) = (config.sidecar.clone(), config.stream_address.clone());
    let (unless_disabled, redirect) = (config.unless_disabled, config.redirect);
    let presented = served.watch();
    Arc::new(move || {
        let ca = presented.borrow().as_ref().map(|presented| presented.bundle.clone()).unwrap_or_default();
        let controller = (!address.is_empty()).then(|| Controller { address: address.clone(), ca });
        Context { sidecar: sidecar.clone(), controller, unless_disabled, redirect, ..Context::default() }
    })
}

// === impl Parts ===

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parts")
            .field("shared", &self.shared)
            .field("leadership", &self.leadership)
            .finish_non_exhaustive()
    }
}

// === impl Running ===

impl Running {
    /// Resolves if a part ends by itself, which is a defect: the process is of no use without it.
    pub async fn failed(&mut self) -> String {
        let Self { elector, tasks, .. } = self;
        let elected = async {
            match elector {
                Some(elector) => elector.await,
                None => std::future::pending().await,
            }
        };
        let ended = tokio::select! {
            ended = tasks.join_next() => ended.unwrap_or(Ok(())),
            ended = elected => ended,
        };
        match ended {
            Err(error) if error.is_panic() => format!("a part panicked: {error}"),
            _ => "a part ended by itself".to_owned(),
        }
    }

    /// Ends in good order: not ready, leading no more, answering what is asked for a while still, then gone.
    pub async fn end(self) {
        let Self { listening, ending, stop, close, elector, mut tasks, drain, .. } = self;
        ending.store(true, Ordering::Relaxed);
        // Nobody listens when all have ended.
        stop.send(true).ok();
        let linger = drain / LINGER;
        if let Some(elector) = elector {
            // So that another replica leads at once. What panicked was told by `failed`.
            tokio::time::timeout(linger, elector).await.ok();
        }
        // The API server may not know yet that this replica is no endpoint any more.
        tokio::time::sleep(linger).await;
        listening.drain(linger).await;
        close.send(true).ok();
        let all = async { while tasks.join_next().await.is_some() {} };
        // What is left is dropped with the set.
        tokio::time::timeout(linger / LINGER, all).await.ok();
    }
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running").field("webhook", &self.webhook).field("health", &self.health).finish_non_exhaustive()
    }
}
