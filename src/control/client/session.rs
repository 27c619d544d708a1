//! A session: one stream, from the connect to its end.

use std::time::Duration;

use bytes::Bytes;
use http_body::Body;
use hyper::body::Incoming;
use std::pin::Pin;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};

use super::address::ControllerAddress;
use super::backoff::{jittered, uniform_below};
use super::connect::{OpenStream, open};
use super::{ControlClientConfig, DisconnectReason, EventSender, SessionEnd, SidecarStreamHandler, StreamStatus};
use crate::clock::Clock;
use crate::frame::FrameDecoder;
use crate::wire::{self, ACKS, ControllerMessage, FEATURES, FEATURES_HEADER, MINOR, PROTOCOL_HEADER, SidecarMessage};

/// An open stream of the sidecar.
struct Session<'a> {
    config: &'a mut ControlClientConfig,
    clock: Clock,
    handle: &'a EventSender,
    sidecar: &'a dyn SidecarStreamHandler,
    /// Frames to the controller: the request body.
    up: mpsc::Sender<Bytes>,
    /// `true` if the controller acknowledges reports and events.
    acks: bool,
    decoder: FrameDecoder,
    /// Time at which the report in flight was written on this stream; `None` if it was not, or if
    /// no report is in flight.
    report_written_at: Option<Instant>,
    /// `true` if settings were applied, and no report with their result was written yet.
    report_due: bool,
}

/// Opens a stream and serves it until it ends. `redirect_address` is the address from the `Goaway`
/// of the previous stream, which replaces the configured address.
pub(super) async fn run_session(
    config: &mut ControlClientConfig,
    clock: Clock,
    handle: &EventSender,
    sidecar: &dyn SidecarStreamHandler,
    redirect_address: Option<ControllerAddress>,
) -> SessionEnd {
    let address = redirect_address.unwrap_or_else(|| config.address.clone());
    let OpenStream { up, response, _driver } = match Box::pin(open(config, &address)).await {
        Ok(opened) => opened,
        Err(end) => return end,
    };
    let opened = clock.now();
    let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let acks = header(FEATURES_HEADER).split(',').any(|word| word.trim() == ACKS);
    sidecar
        .on_status(&StreamStatus::Open { address: address.to_string(), protocol: header(PROTOCOL_HEADER).to_owned() });
    let mut body = response.into_body();
    let mut session = Session {
        config,
        clock,
        handle,
        sidecar,
        up,
        acks,
        decoder: FrameDecoder::default(),
        report_written_at: None,
        report_due: false,
    };
    let Err(end) = session.serve(&mut body).await;
    SessionEnd { open: Some(opened), ..end }
}

// === impl Session ===

impl Session<'_> {
    /// Serves the stream. It ends only with an error, so that each end has its reason.
    async fn serve(&mut self, body: &mut Incoming) -> Result<std::convert::Infallible, SessionEnd> {
        self.handle.outbox().on_stream_opened();
        self.write_hello().await?;
        let times = self.config.times.clone();
        let lifetime = sleep(jittered(times.lifetime, rand::random()));
        tokio::pin!(lifetime);
        // The first report is delayed at random, so that sidecars started together report at
        // different times.
        let next_report = sleep(uniform_below(times.report, rand::random()));
        tokio::pin!(next_report);
        self.write_events().await?;
        loop {
            let frame = std::future::poll_fn(|context| Pin::new(&mut *body).poll_frame(context));
            tokio::select! {
                frame = frame => {
                    let data = match frame {
                        Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
                        Some(Err(error)) => return Err(SessionEnd::new(DisconnectReason::Broken, &format!("the stream failed: {error}"))),
                        None => return Err(SessionEnd::new(DisconnectReason::Broken, "the controller closed the stream")),
                    };
                    self.decoder.feed(&data);
                    while let Some(json) = self.decoder.next_frame().map_err(|error| malformed(&error))? {
                        self.on_message(&json).await?;
                    }
                    // Report applied settings immediately, because users wait for the status.
                    if self.report_due && self.report_written_at.is_none() {
                        self.report_due = false;
                        self.write_report().await?;
                    }
                }
                // Also sends the report in flight again if it was not written on this stream.
                () = &mut next_report => {
                    self.write_report().await?;
                    let at = self.clock.instant(self.clock.now().after(jittered(times.report, rand::random())));
                    next_report.as_mut().reset(at);
                }
                () = self.handle.shared.notify.notified() => self.write_events().await?,
                // The controller must acknowledge a report within the timeout.
                () = ack_overdue(self.report_written_at, times.silence) => {
                    return Err(SessionEnd::new(DisconnectReason::Silent, "the controller did not acknowledge a report in time"));
                }
                () = &mut lifetime => return Err(SessionEnd::new(DisconnectReason::Lifetime, "the stream reached its maximum lifetime")),
            }
        }
    }

    async fn write_hello(&self) -> Result<(), SessionEnd> {
        let mut hello = self.sidecar.hello();
        hello.version = env!("CARGO_PKG_VERSION").to_owned();
        hello.minor = MINOR;
        hello.features = FEATURES.map(str::to_owned).to_vec();
        hello.epoch = self.handle.outbox().epoch();
        self.write_message(&SidecarMessage::Hello(Box::new(hello))).await
    }

    /// Writes a report: the one in flight if it was not written on this stream yet, or a new one if
    /// none is in flight.
    async fn write_report(&mut self) -> Result<(), SessionEnd> {
        let in_flight = self.handle.outbox().report_in_flight().cloned();
        let report = match in_flight {
            Some(_) if self.report_written_at.is_some() => return Ok(()),
            Some(report) => report,
            None => {
                let report = self.sidecar.take_report().await;
                // A report that does not fit into a frame is reduced instead of dropped.
                let fits = wire::encode_frame(&SidecarMessage::Report(Box::new(report.clone()))).is_ok();
                let report = if fits { report } else { report.into_folded() };
                self.handle.outbox().push_report(report).clone()
            }
        };
        self.write_message(&SidecarMessage::Report(Box::new(report))).await?;
        if self.acks {
            self.report_written_at = Some(self.clock.instant(self.clock.now()));
        } else {
            self.handle.outbox().assume_delivered();
        }
        Ok(())
    }

    async fn write_events(&self) -> Result<(), SessionEnd> {
        loop {
            let event = self.handle.outbox().next_event().cloned();
            let Some(event) = event else { return Ok(()) };
            self.write_message(&SidecarMessage::Event(event)).await?;
        }
    }

    async fn write_message(&self, message: &SidecarMessage) -> Result<(), SessionEnd> {
        let frame = wire::encode_frame(message).map_err(|error| malformed(&error))?;
        match tokio::time::timeout(self.config.times.silence, self.up.send(frame)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(SessionEnd::new(DisconnectReason::Broken, "the stream failed during a write")),
            Err(_) => {
                Err(SessionEnd::new(DisconnectReason::Silent, "the controller did not read from the stream in time"))
            }
        }
    }

    async fn on_message(&mut self, json: &[u8]) -> Result<(), SessionEnd> {
        let decoded = wire::decode_controller_message(json).map_err(|error| malformed(&error))?;
        let unknown_kinds = u32::from(decoded.message.is_none());
        if unknown_kinds + decoded.unknown_fields > 0 {
            self.sidecar.on_status(&StreamStatus::Unknown { kinds: unknown_kinds, fields: decoded.unknown_fields });
        }
        match decoded.message {
            Some(ControllerMessage::Config(config)) => {
                self.sidecar.on_config(*config).await;
                self.report_due = true;
            }
            Some(ControllerMessage::Bundle(bundle)) => match self.config.trust.set_received(&bundle.ca) {
                Ok(()) => self.sidecar.on_bundle(bundle.ca).await,
                Err(error) => {
                    tracing::warn!(%error, "a CA bundle from the controller was refused");
                    self.handle.send_event(wire::SidecarEvent {
                        reason: "BundleRefused".to_owned(),
                        message: error.to_string(),
                        warning: true,
                        ..wire::SidecarEvent::default()
                    });
                }
            },
            Some(ControllerMessage::Ping(ping)) => {
                if let Some(acked) = ping.acked {
                    let mut outbox = self.handle.outbox();
                    outbox.on_ack(&acked);
                    if outbox.report_in_flight().is_none() {
                        self.report_written_at = None;
                    }
                }
            }
            Some(ControllerMessage::Goaway(goaway)) => {
                let redirect_address = goaway.address.as_deref().and_then(ControllerAddress::parse);
                let message = format!("the controller requested a reconnect: {:.200}", goaway.reason);
                return Err(SessionEnd { redirect_address, ..SessionEnd::new(DisconnectReason::Goaway, &message) });
            }
            None => {}
        }
        Ok(())
    }
}

/// Waits until the acknowledgement of the report written at this time is overdue; forever if none
/// was written.
async fn ack_overdue(written_at: Option<Instant>, silence: Duration) {
    match written_at {
        Some(written_at) => sleep_until(written_at + silence).await,
        None => std::future::pending().await,
    }
}

fn malformed(error: &dyn std::fmt::Display) -> SessionEnd {
    SessionEnd::new(DisconnectReason::Malformed, &format!("invalid message on the stream: {error}"))
}
