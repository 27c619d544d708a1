//! One kind, followed: the reflector's events into its table.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use kube::Resource;
use kube::api::{Api, ApiResource, DynamicObject, PartialObjectMeta};
use kube::runtime::watcher::{self, Event, watcher};
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use super::guard::{Backoff, guarded};
use super::{Kind, Shared, Timing};
use crate::controller::world::{self, Key, NATIVE_SINCE, Owner, Table, World};
use crate::telemetry::ControllerMetrics;

/// Between two looks at the API server's own version.
const VERSION_EVERY: Duration = Duration::from_secs(600);
/// Objects in a page of a list.
const PAGE: u32 = 500;

/// What everything that is followed has in common.
#[derive(Clone)]
pub(super) struct Follower {
    pub(super) client: kube::Client,
    pub(super) shared: Shared,
    pub(super) timing: Timing,
    pub(super) metrics: ControllerMetrics,
    pub(super) stop: watch::Receiver<bool>,
}

/// How a kind gets into the world.
pub(super) struct View<K, T> {
    /// Its table; made if it is one that may be missing.
    pub(super) table: fn(&mut World) -> &mut Table<T>,
    /// What is kept of an object.
    pub(super) read: fn(K) -> (Key, T),
    /// Takes the table away, where the kind is not installed.
    pub(super) absent: Option<fn(&mut World)>,
}

/// What is kept while a list is not whole.
type Partial<T> = BTreeMap<Key, Arc<T>>;

// === impl Follower ===

impl Follower {
    /// A kind with types of its own, everywhere in the cluster.
    pub(super) async fn typed<K, T>(&self, kind: Kind, labels: &str, fields: &str, view: View<K, T>)
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
        T: PartialEq + Clone,
    {
        self.follow(kind, (labels, fields), view, Api::<K>::all).await;
    }

    /// A kind without.
    pub(super) async fn dynamic<T>(&self, resource: ApiResource, kind: Kind, view: View<DynamicObject, T>)
    where
        T: PartialEq + Clone,
    {
        self.follow(kind, ("", ""), view, |client| Api::all_with(client, &resource)).await;
    }

    /// A kind without, of which the metadata is enough.
    pub(super) async fn dynamic_metadata<T>(
        &self,
        resource: ApiResource,
        kind: Kind,
        view: View<PartialObjectMeta<DynamicObject>, T>,
    ) where
        T: PartialEq + Clone,
    {
        self.follow(kind, ("", ""), view, |client| Api::all_with(client, &resource)).await;
    }

    /// A kind of workload: its metadata is enough.
    pub(super) async fn owners<K>(&self, kind: Kind, table: fn(&mut World) -> &mut Table<Owner>)
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
    {
        let read = |object: PartialObjectMeta<K>| world::from_owner(&object.metadata);
        self.typed(kind, "", "", View { table, read, absent: None }).await;
    }

    /// Whether the API server knows native sidecars whole; asked now and then, since clusters are
    /// upgraded. While it cannot be reached this is what finds its return.
    pub(super) async fn server(&self) {
        let mut backoff = Backoff::new(self.timing.backoff);
        let work = async {
            loop {
                let asked = tokio::time::timeout(self.timing.answer, self.client.apiserver_version()).await;
                let reach = self.shared.reach();
                let wait = match asked {
                    Ok(Ok(version)) => {
                        reach.on_answer();
                        let native = world::minor(&version.git_version).is_some_and(|minor| minor >= NATIVE_SINCE);
                        self.shared.update(|world| world.server_native.replace(native) != Some(native));
                        VERSION_EVERY
                    }
                    Ok(Err(error @ (kube::Error::HyperError(_) | kube::Error::Service(_)))) => {
                        reach.on_failure(&error);
                        self.timing.probe
                    }
                    Ok(Err(_)) => {
                        reach.on_answer();
                        backoff.after_error(self.shared.clock.now(), rand::random())
                    }
                    Err(_) => {
                        reach.on_failure(&format_args!("no answer within {:?}", self.timing.answer));
                        self.timing.probe
                    }
                };
                // A request of another kind that had no answer is looked into, once in each such time.
                tokio::time::sleep(wait.min(self.timing.probe)).await;
                tokio::select! {
                    () = tokio::time::sleep(wait.saturating_sub(self.timing.probe)) => {}
                    () = reach.doubted() => {}
                }
            }
        };
        self.until_stopped(work).await;
    }

    async fn follow<K, T>(
        &self,
        kind: Kind,
        (labels, fields): (&str, &str),
        view: View<K, T>,
        api: impl Fn(kube::Client) -> Api<K>,
    ) where
        K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
        T: PartialEq + Clone,
    {
        let api = api(guarded(&self.client, kind, &self.shared, self.timing));
        let seconds = u32::try_from(self.timing.watch.as_secs()).unwrap_or(200);
        let mut config = watcher::Config::default().timeout(seconds).page_size(PAGE);
        config.label_selector = (!labels.is_empty()).then(|| labels.to_owned());
        config.field_selector = (!fields.is_empty()).then(|| fields.to_owned());
        let mut backoff = Backoff::new(self.timing.backoff);
        let mut said = String::new();
        let work = async {
            let mut events = pin!(watcher(api.clone(), config.clone()));
            let mut partial = Partial::new();
            while let Some(event) = events.next().await {
                self.shared.heard(kind);
                let error = match event {
                    Ok(event) => {
                        self.take(kind, event, &mut partial, &view);
                        continue;
                    }
                    Err(error) => error,
                };
                let wait = if let Some(absent) = view.absent.filter(|_| is_absent(&error)) {
                    self.absent(kind, absent);
                    self.timing.absent.mul_f64(1.0 + rand::random::<f64>())
                } else {
                    self.metrics.watch_error(kind.as_str());
                    if !is_unanswered(&error) {
                        say(&mut said, kind, &error);
                    }
                    backoff.after_error(self.shared.clock.now(), rand::random())
                };
                // The reflector would go on to ask for the version that is gone, and where a kind went what was listed of it means nothing any more.
                if is_gone(&error) || is_absent(&error) {
                    events.set(watcher(api.clone(), config.clone()));
                }
                if self.pause(wait).await && is_unanswered(&error) {
                    backoff.reset();
                }
            }
        };
        self.until_stopped(work).await;
    }

    /// Waits between tries, no longer than until the API server is back; returns whether that
    /// ended it. Not all kinds send their requests in the same moment then.
    async fn pause(&self, wait: Duration) -> bool {
        let returned = tokio::select! {
            () = tokio::time::sleep(wait) => false,
            () = self.shared.reach().returned() => true,
        };
        if returned {
            tokio::time::sleep(self.timing.probe.mul_f64(rand::random())).await;
        }
        returned
    }

    async fn until_stopped(&self, work: impl Future<Output = ()>) {
        let mut stop = self.stop.clone();
        tokio::select! {
            () = work => {}
            // An error means the same: the process ends.
            _ = stop.wait_for(|stop| *stop) => {}
        }
    }

    fn take<K, T: PartialEq + Clone>(&self, kind: Kind, event: Event<K>, partial: &mut Partial<T>, view: &View<K, T>) {
        match event {
            Event::Init => partial.clear(),
            Event::InitApply(object) => {
                let (key, value) = (view.read)(object);
                partial.insert(key, Arc::new(value));
            }
            Event::InitDone => {
                let whole = std::mem::take(partial);
                self.shared.update(|world| {
                    let table = (view.table)(world);
                    // What says the same stays the same object, also for those who hold it.
                    let changed = **table != whole;
                    if changed {
                        *table = Arc::new(whole);
                    }
                    changed
                });
                self.shared.listed(kind);
            }
            Event::Apply(object) => {
                let (key, value) = (view.read)(object);
                self.shared.update(|world| {
                    let table = (view.table)(world);
                    let changed = table.get(&key).is_none_or(|before| **before != value);
                    if changed {
                        Arc::make_mut(table).insert(key, Arc::new(value));
                    }
                    changed
                });
            }
            Event::Delete(object) => {
                let (key, _) = (view.read)(object);
                self.shared.update(|world| {
                    let table = (view.table)(world);
                    table.contains_key(&key) && Arc::make_mut(table).remove(&key).is_some()
                });
            }
        }
    }

    fn absent(&self, kind: Kind, absent: fn(&mut World)) {
        self.shared.update(|world| {
            absent(world);
            true
        });
        self.shared.listed(kind);
    }
}

/// Whether the API server does not know the kind.
fn is_absent(error: &watcher::Error) -> bool {
    let (watcher::Error::InitialListFailed(error) | watcher::Error::WatchStartFailed(error)) = error else {
        return false;
    };
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

/// Whether a watch cannot begin where the last one ended: 410 as the answer, not as its first frame, which the reflector knows by itself.
fn is_gone(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::WatchStartFailed(kube::Error::Api(status)) if status.code == 410)
}

/// Returns `true` if there was no answer: an unreachable API server is logged for all kinds
/// together.
fn is_unanswered(error: &watcher::Error) -> bool {
    use kube::Error::{HyperError, ReadEvents, Service};
    use watcher::Error::{InitialListFailed, WatchFailed, WatchStartFailed};
    let (InitialListFailed(error) | WatchStartFailed(error) | WatchFailed(error)) = error else { return false };
    matches!(error, HyperError(_) | ReadEvents(_) | Service(_))
}

/// Says a thing once, not at every try.
fn say(said: &mut String, kind: Kind, error: &watcher::Error) {
    let text = error.to_string();
    if *said == text {
        return;
    }
    let hint = match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status)) if status.code == 404 => {
            "are the definitions installed? groupage crds prints them"
        }
        watcher::Error::InitialListFailed(kube::Error::Api(status)) if status.code == 403 => {
            "the controller's roles do not allow it"
        }
        _ => "it is tried again",
    };
    tracing::warn!(kind = kind.as_str(), error = text, hint, "following failed");
    *said = text;
}
