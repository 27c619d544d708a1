use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::super::AuthError;
use super::*;
use crate::wire::{SidecarConfig, SidecarEvent, SidecarReport};

#[derive(Default)]
struct RecordingHandler(Mutex<Vec<String>>);

impl ControllerStreamHandler for RecordingHandler {
    fn on_open(&self, streams: &StreamRegistry, pod: &Arc<PodIdentity>, _: &Hello) {
        assert!(streams.push(&pod.uid, &EncodedPush::config(SidecarConfig::default()).unwrap()), "it may push at once");
        self.0.lock().unwrap().push(format!("+{}", pod.uid));
    }

    fn on_report(&self, _: &Arc<PodIdentity>, _: SidecarReport) {}

    fn on_event(&self, _: &Arc<PodIdentity>, _: SidecarEvent) {}

    fn on_close(&self, pod: &Arc<PodIdentity>) {
        self.0.lock().unwrap().push(format!("-{}", pod.uid));
    }
}

struct RejectAll;

impl Authenticate for RejectAll {
    fn authenticate<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<PodIdentity, AuthError>> {
        std::future::ready(Err(AuthError::Invalid("nobody"))).boxed()
    }
}

fn streams(limits: ServerLimits) -> (StreamRegistry, Arc<RecordingHandler>) {
    let handler = Arc::new(RecordingHandler::default());
    (StreamRegistry::new(limits, Clock::start(), Arc::new(RejectAll), handler.clone()), handler)
}

const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

fn pod(uid: &str) -> Arc<PodIdentity> {
    Arc::new(PodIdentity { uid: uid.to_owned(), name: uid.to_owned(), namespace: "ns".to_owned() })
}

#[test]
fn a_second_stream_of_a_pod_takes_the_place_of_the_first() {
    let (streams, handler) = streams(ServerLimits::default());
    let (first, second) = (streams.0.add_connection(PEER).unwrap(), streams.0.add_connection(PEER).unwrap());
    streams.0.open(&first, &pod("a"), &Hello::default());
    streams.0.open(&second, &pod("a"), &Hello::default());
    streams.0.close(&first, &pod("a"));
    assert_eq!((streams.len(), streams.count(StreamEvent::Replaced)), (1, 1));
    streams.0.close(&second, &pod("a"));
    assert_eq!(*handler.0.lock().unwrap(), ["+a", "+a", "-a"], "a replaced stream is not reported as closed");
    assert!(streams.is_empty() && !streams.push("a", &EncodedPush::config(SidecarConfig::default()).unwrap()));
}

#[test]
fn connections_beyond_the_bound_are_refused() {
    let (streams, _) = streams(ServerLimits { streams_max: 2, ..ServerLimits::default() });
    let first = streams.0.add_connection(PEER).unwrap();
    let _second = streams.0.add_connection(PEER).unwrap();
    assert!(streams.0.add_connection(PEER).is_none());
    streams.0.remove_connection(&first);
    assert!(streams.0.add_connection(PEER).is_some());
}

#[test]
fn a_full_table_evicts_a_connection_without_hello() {
    let (streams, _) = streams(ServerLimits { streams_max: 2, ..ServerLimits::default() });
    let _open = streams.0.add_connection(PEER).unwrap();
    let _silent = streams.0.add_connection(PEER).unwrap();
    let _waiting = streams.0.waiting.take(PEER).unwrap();
    assert!(streams.0.add_connection(PEER).is_some());
    assert_eq!(streams.0.waiting.count(), 0);
    assert!(streams.0.add_connection(PEER).is_none(), "none is left");
}

#[test]
fn the_bound_leaves_files_for_other_ports() {
    let within = |files| ServerLimits::default().within(files).streams_max;
    assert_eq!(
        [None, Some(1 << 20), Some(4_096), Some(1_024), Some(256)].map(within),
        [12_000, 12_000, 3_584, 512, 128]
    );
}

#[test]
fn acknowledgements_survive_a_disconnect_and_expire_after_the_time_to_live() {
    let (streams, _) = streams(ServerLimits::default());
    assert!(streams.0.with_inbox("a", |inbox| inbox.accept_report(5, 1)));
    streams.0.sweep(streams.0.clock.now().after(INBOX_TTL / 2));
    assert!(!streams.0.with_inbox("a", |inbox| inbox.accept_report(5, 1)));
    assert_eq!(streams.0.acked("a").report, 1);
    streams.0.sweep(streams.0.clock.now().after(INBOX_TTL * 2));
    assert_eq!(streams.0.acked("a").report, 0);
}

#[tokio::test]
async fn a_silent_or_unread_connection_is_dropped() {
    let limits = ServerLimits::default();
    let (streams, _) = streams(limits.clone());
    let dies = |connection: &Arc<Connection>| {
        let task = tokio::spawn(std::future::pending::<()>());
        connection.set_task(task.abort_handle());
        async { task.await.unwrap_err().is_cancelled() }
    };
    let (mute, idle, slow) = (
        streams.0.add_connection(PEER).unwrap(),
        streams.0.add_connection(PEER).unwrap(),
        streams.0.add_connection(PEER).unwrap(),
    );
    let ends = [dies(&mute), dies(&idle), dies(&slow)];
    streams.0.open(&idle, &pod("idle"), &Hello::default());
    streams.0.open(&slow, &pod("slow"), &Hello::default());
    // The stream has read the message that was pushed to it when it opened.
    assert!(idle.mailbox.poll(&std::task::Context::from_waker(std::task::Waker::noop())).is_ready());
    let now = streams.0.clock.now();
    streams.0.sweep(now);
    assert_eq!((streams.count(StreamEvent::Idle), streams.count(StreamEvent::Slow)), (0, 0));
    slow.on_frame(now.after(limits.idle_timeout));
    streams.0.sweep(now.after(limits.idle_timeout + Duration::from_secs(1)));
    streams.0.sweep(now.after(limits.idle_timeout + Duration::from_secs(2)));
    assert_eq!((streams.count(StreamEvent::Idle), streams.count(StreamEvent::Slow)), (2, 1), "each once");
    for end in ends {
        assert!(end.await);
    }
}
