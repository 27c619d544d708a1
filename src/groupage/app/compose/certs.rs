//! Certificate reloading: reads certificates at the start, and again on inotify events, on SIGHUP
//! and at a fixed interval.
//!
//! Unusable files at the start end the process with an error. Later they change nothing; the error
//! is logged once and counted. Files are read outside the data path, so that an unreachable network
//! file system delays no call.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt as _, select_all};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::super::file_watch::FileWatch;
use crate::config;
use crate::telemetry::Metrics;
use crate::telemetry::names::ReloadResult;
use crate::tls::{
    CertificateFileError, DownstreamFiles, DownstreamTlsAcceptor, ReloadOutcome, ReloadableCertificate, UpstreamFiles,
    UpstreamTlsConnector,
};

/// Delay from the first event of a change until the files are read, since certificate and key are
/// written one after the other. The same as for settings.
const SETTLE: Duration = Duration::from_millis(50);
/// Interval between two unconditional reads: inotify reports no changes made on a network file
/// system by other machines.
const RELOAD_INTERVAL: Duration = Duration::from_secs(60);

/// TLS certificates in use.
#[derive(Debug, Default)]
pub(super) struct TlsCertificates {
    /// Downstream TLS.
    pub(super) callers: Option<Arc<DownstreamTlsAcceptor>>,
    /// Upstream TLS.
    pub(super) servers: Option<Arc<UpstreamTlsConnector>>,
}

// === impl TlsCertificates ===

impl TlsCertificates {
    /// Loads the certificates that the policy names.
    pub(super) fn load(proxy: &config::ProcessConfig) -> Result<Self, CertificateFileError> {
        let callers = proxy.tls.clone().map(|config::DownstreamTls { cert_file, key_file, client_ca_file }| {
            DownstreamTlsAcceptor::load(DownstreamFiles { cert: cert_file, key: key_file, client_ca: client_ca_file })
        });
        let servers = match &proxy.upstream {
            Some(config::UpstreamAddress::Http { host, tls: true, .. }) if proxy.captures.is_empty() => {
                let config::UpstreamTls { ca_file, server_name, pair } = proxy.upstream_tls.clone();
                let name = server_name.as_deref().unwrap_or(host);
                Some(UpstreamTlsConnector::load(UpstreamFiles { ca: ca_file, pair }, name))
            }
            _ => None,
        };
        Ok(Self { callers: callers.transpose()?.map(Arc::new), servers: servers.transpose()?.map(Arc::new) })
    }

    /// Returns the tasks that watch the certificates' files, one for each side. A task
    /// runs as long as the process, unless its side has no files.
    pub(super) fn watch(&self, metrics: &Arc<Metrics>) -> Vec<BoxFuture<'static, ()>> {
        let callers = self.callers.clone().map(|callers| callers as Arc<dyn ReloadableCertificate>);
        let servers = self.servers.clone().map(|servers| servers as Arc<dyn ReloadableCertificate>);
        let certificates = callers.into_iter().chain(servers);
        certificates
            .map(|certificate| {
                CertificateWatcher { certificate, metrics: metrics.clone(), last_error: None }.run().boxed()
            })
            .collect()
    }
}

/// A watched set of certificates, downstream or upstream.
struct CertificateWatcher {
    certificate: Arc<dyn ReloadableCertificate>,
    metrics: Arc<Metrics>,
    /// Error of the last read. Each error is logged once, not at every read.
    last_error: Option<CertificateFileError>,
}

// === impl CertificateWatcher ===

impl CertificateWatcher {
    async fn run(mut self) {
        self.publish_expiry();
        let files = self.certificate.files();
        if files.is_empty() {
            return;
        }
        let mut watches = Vec::new();
        for path in &files {
            match FileWatch::new(path) {
                Ok(watch) => watches.push(watch),
                Err(error) => {
                    tracing::warn!(%error, path = %path.display(), "a certificate file cannot be watched: it is checked every minute");
                }
            }
        }
        let mut hup = signal(SignalKind::hangup()).ok();
        loop {
            // The first read finds changes made between the start and the watch.
            self.reload().await;
            tokio::select! {
                () = changed(&mut watches) => tokio::time::sleep(SETTLE).await,
                () = recv_hangup(hup.as_mut()) => {}
                () = tokio::time::sleep(RELOAD_INTERVAL) => {}
            }
            for watch in &mut watches {
                watch.settle();
                // Renew the watch before the files are read, so that no later change is missed. A
                // folder that does not exist is covered by the fixed interval.
                watch.follow().ok();
            }
        }
    }

    async fn reload(&mut self) {
        let certificate = self.certificate.clone();
        let Ok(found) = tokio::task::spawn_blocking(move || certificate.reload()).await else {
            tracing::error!("checking certificates panicked");
            return;
        };
        let side = self.certificate.side();
        match found {
            Ok(ReloadOutcome::Same) => self.last_error = None,
            Ok(ReloadOutcome::Changed) => {
                self.last_error = None;
                self.metrics.record_certificate_reload(side, ReloadResult::Applied);
                self.publish_expiry();
                tracing::info!(side, expires = self.certificate.expires(), "certificates changed and are in use");
            }
            Err(error) if self.last_error.as_ref() == Some(&error) => {}
            Err(error) => {
                self.metrics.record_certificate_reload(side, ReloadResult::Refused);
                tracing::error!(side, %error, "certificates refused; the previous ones stay in use");
                self.last_error = Some(error);
            }
        }
    }

    fn publish_expiry(&self) {
        if let Some(at) = self.certificate.expires() {
            self.metrics.set_certificate_expiry(self.certificate.side(), at);
        }
    }
}

/// Resolves when one of the files may have changed. A watch that fails is removed; the fixed
/// interval remains.
async fn changed(watches: &mut Vec<FileWatch>) {
    while !watches.is_empty() {
        let (change, which, _) = select_all(watches.iter_mut().map(|watch| Box::pin(watch.changed()))).await;
        match change {
            Ok(()) => return,
            Err(error) => {
                tracing::warn!(%error, "a certificate file cannot be watched any more: it is checked every minute");
                watches.swap_remove(which);
            }
        }
    }
    std::future::pending::<()>().await;
}

/// Resolves on SIGHUP; never, if the signal handler could not be installed.
async fn recv_hangup(hup: Option<&mut Signal>) {
    if let Some(hup) = hup
        && hup.recv().await.is_some()
    {
        return;
    }
    std::future::pending::<()>().await;
}
