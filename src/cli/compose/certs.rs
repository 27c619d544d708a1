//! Certificates of a process: read at the start, and again when their files change, by inotify, by SIGHUP, and now and then in any case.
//!
//! Files that cannot be used at the start end it with what is wrong; later they change nothing, and that is said once and counted. Looking is done beside the data
//! path: a file on a server that is away keeps no call waiting.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt as _, select_all};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::super::reload::watch::Watch;
use crate::config;
use crate::telemetry::Metrics;
use crate::telemetry::names::Reload;
use crate::tls::{CallerFiles, Callers, Kept, Look, ServerFiles, Servers, Unusable};

/// From the first sign of a change to the look at it: certificate and key are written one after the other. As for settings.
const SETTLE: Duration = Duration::from_millis(50);
/// Between two looks that nothing asked for: what a network's file system changes, no inotify tells.
const EVERY: Duration = Duration::from_secs(60);

/// Certificates in use.
#[derive(Debug, Default)]
pub(super) struct Certs {
    /// Towards callers.
    pub(super) callers: Option<Arc<Callers>>,
    /// Towards the model server.
    pub(super) servers: Option<Arc<Servers>>,
}

// === impl Certs ===

impl Certs {
    /// Reads what the policy names.
    pub(super) fn load(proxy: &config::Proxy) -> Result<Self, Unusable> {
        let callers = proxy.tls.clone().map(|config::Tls { cert_file, key_file, client_ca_file }| {
            Callers::load(CallerFiles { cert: cert_file, key: key_file, client_ca: client_ca_file })
        });
        let servers = match &proxy.upstream {
            Some(config::Upstream::Http { host, tls: true, .. }) if proxy.captures.is_empty() => {
                let config::UpstreamTls { ca_file, server_name, pair } = proxy.upstream_tls.clone();
                let name = server_name.as_deref().unwrap_or(host);
                Some(Servers::load(ServerFiles { ca: ca_file, pair }, name))
            }
            _ => None,
        };
        Ok(Self { callers: callers.transpose()?.map(Arc::new), servers: servers.transpose()?.map(Arc::new) })
    }

    /// Work that looks at them for as long as it runs.
    pub(super) fn watch(&self, metrics: &Arc<Metrics>) -> Vec<BoxFuture<'static, ()>> {
        let callers = self.callers.clone().map(|callers| callers as Arc<dyn Kept>);
        let servers = self.servers.clone().map(|servers| servers as Arc<dyn Kept>);
        let kept = callers.into_iter().chain(servers);
        kept.map(|kept| Watching { kept, metrics: metrics.clone(), said: None }.run().boxed()).collect()
    }
}

/// One side as it is watched.
struct Watching {
    kept: Arc<dyn Kept>,
    metrics: Arc<Metrics>,
    /// What was wrong at the last look: it is said once, not at each of them.
    said: Option<Unusable>,
}

// === impl Watching ===

impl Watching {
    async fn run(mut self) {
        self.expires();
        let files = self.kept.files();
        if files.is_empty() {
            return;
        }
        let mut watches = Vec::new();
        for path in &files {
            match Watch::new(path) {
                Ok(watch) => watches.push(watch),
                Err(error) => {
                    tracing::warn!(%error, path = %path.display(), "a certificate's file cannot be watched: it is looked at every minute");
                }
            }
        }
        let mut hup = signal(SignalKind::hangup()).ok();
        loop {
            // The first one for what changed between the start and the watch.
            self.look().await;
            tokio::select! {
                () = changed(&mut watches) => tokio::time::sleep(SETTLE).await,
                () = told(hup.as_mut()) => {}
                () = tokio::time::sleep(EVERY) => {}
            }
            for watch in &mut watches {
                watch.settle();
                // Before the files are read: what happens from here on is told. A folder that is gone is looked for every minute.
                watch.follow().ok();
            }
        }
    }

    async fn look(&mut self) {
        let kept = self.kept.clone();
        let Ok(found) = tokio::task::spawn_blocking(move || kept.look()).await else {
            tracing::error!("looking at certificates panicked");
            return;
        };
        let side = self.kept.side();
        match found {
            Ok(Look::Same) => self.said = None,
            Ok(Look::Changed) => {
                self.said = None;
                self.metrics.certificates_reloaded(side, Reload::Applied);
                self.expires();
                tracing::info!(side, expires = self.kept.expires(), "certificates changed and are in use");
            }
            Err(error) if self.said.as_ref() == Some(&error) => {}
            Err(error) => {
                self.metrics.certificates_reloaded(side, Reload::Refused);
                tracing::error!(side, %error, "certificates refused; those before stay in use");
                self.said = Some(error);
            }
        }
    }

    fn expires(&self) {
        if let Some(at) = self.kept.expires() {
            self.metrics.certificate_expires(self.kept.side(), at);
        }
    }
}

/// Resolves when one of the files may say something else. A watch that ends is taken out: a look every minute is left.
async fn changed(watches: &mut Vec<Watch>) {
    while !watches.is_empty() {
        let (seen, which, _) = select_all(watches.iter_mut().map(|watch| Box::pin(watch.changed()))).await;
        match seen {
            Ok(()) => return,
            Err(error) => {
                tracing::warn!(%error, "a certificate's file cannot be watched any more: it is looked at every minute");
                watches.swap_remove(which);
            }
        }
    }
    std::future::pending::<()>().await;
}

/// Never where signals cannot be heard.
async fn told(hup: Option<&mut Signal>) {
    if let Some(hup) = hup
        && hup.recv().await.is_some()
    {
        return;
    }
    std::future::pending::<()>().await;
}
