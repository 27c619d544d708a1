//! The mailbox of one stream: pending messages for a sidecar, at most one of each kind.
//!
//! Each message replaces the previous one of its kind completely, so a slow reader loses nothing if
//! it receives only the newest, and nothing accumulates for a sidecar that does not read.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;

use crate::batching::Tick;
use crate::wire::{self, CaBundle, ControllerMessage, EncodeError, Goaway, SidecarConfig};

/// An encoded message. Its bytes are shared by all mailboxes that it is pushed to.
#[derive(Debug, Clone)]
pub struct EncodedPush {
    kind: PushKind,
    frame: Bytes,
}

#[derive(Debug, Clone, Copy)]
enum PushKind {
    Config,
    Bundle,
    Goaway,
}

/// The pending messages of one stream, one slot for each kind, with the waker of the stream.
#[derive(Debug, Default)]
pub(super) struct Mailbox(Mutex<MailboxSlots>);

#[derive(Debug, Default)]
struct MailboxSlots {
    bundle: Option<Bytes>,
    config: Option<Bytes>,
    ping: bool,
    goaway: Option<Bytes>,
    /// `true` once a `Goaway` was pushed: the stream ends after the pending messages.
    is_closing: bool,
    /// Instant since which at least one message has been pending without interruption.
    pending_since: Option<Tick>,
    waker: Option<Waker>,
}

/// Next step of a stream.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NextWrite {
    Frame(Bytes),
    /// Write a `Ping`. The stream encodes it, because it contains the acknowledgement of the
    /// sidecar's reports and events, which is known only when it is written.
    Ping,
    End,
}

// === impl EncodedPush ===

impl EncodedPush {
    /// Encodes settings.
    ///
    /// # Errors
    /// Returns an error if they do not fit into a frame.
    pub fn config(config: SidecarConfig) -> Result<Self, EncodeError> {
        Ok(Self { kind: PushKind::Config, frame: wire::encode_frame(&ControllerMessage::Config(Box::new(config)))? })
    }

    /// Encodes a CA bundle.
    ///
    /// # Errors
    /// Returns an error if it does not fit into a frame.
    pub fn bundle(bundle: CaBundle) -> Result<Self, EncodeError> {
        Ok(Self { kind: PushKind::Bundle, frame: wire::encode_frame(&ControllerMessage::Bundle(bundle))? })
    }

    /// Encodes a request to reconnect elsewhere. The stream ends after it.
    ///
    /// # Errors
    /// Returns an error if it does not fit into a frame.
    pub fn goaway(goaway: Goaway) -> Result<Self, EncodeError> {
        Ok(Self { kind: PushKind::Goaway, frame: wire::encode_frame(&ControllerMessage::Goaway(goaway))? })
    }
}

// === impl Mailbox ===

impl Mailbox {
    /// Puts a message into the slot of its kind, replacing an older one.
    pub(super) fn push(&self, now: Tick, push: &EncodedPush) {
        self.update(now, |slots| {
            let slot = match push.kind {
                PushKind::Config => &mut slots.config,
                PushKind::Bundle => &mut slots.bundle,
                PushKind::Goaway => {
                    slots.is_closing = true;
                    &mut slots.goaway
                }
            };
            *slot = Some(push.frame.clone());
        });
    }

    pub(super) fn ping(&self, now: Tick) {
        self.update(now, |slots| slots.ping = true);
    }

    /// Returns the next step of the stream, in the order bundle, config, ping, goaway. The bundle
    /// is ahead of the `Goaway`, because the sidecar verifies the next connection by it. Registers
    /// the waker if nothing is pending.
    pub(super) fn poll(&self, context: &Context<'_>) -> Poll<NextWrite> {
        let mut slots = self.lock();
        let frame = slots.bundle.take().or_else(|| slots.config.take());
        let next = match frame {
            Some(frame) => NextWrite::Frame(frame),
            None if std::mem::take(&mut slots.ping) => NextWrite::Ping,
            None => match slots.goaway.take() {
                Some(frame) => NextWrite::Frame(frame),
                None if slots.is_closing => NextWrite::End,
                None => {
                    if !slots.waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
                        slots.waker = Some(context.waker().clone());
                    }
                    return Poll::Pending;
                }
            },
        };
        if !slots.has_any() {
            slots.pending_since = None;
        }
        Poll::Ready(next)
    }

    /// Returns the instant since which at least one message has been pending; `None` if none is.
    pub(super) fn pending_since(&self) -> Option<Tick> {
        self.lock().pending_since
    }

    /// Changes the slots so that a message is pending, and wakes the stream.
    fn update(&self, now: Tick, change: impl FnOnce(&mut MailboxSlots)) {
        let mut slots = self.lock();
        change(&mut slots);
        slots.pending_since.get_or_insert(now);
        let waker = slots.waker.take();
        drop(slots);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, MailboxSlots> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl MailboxSlots ===

impl MailboxSlots {
    const fn has_any(&self) -> bool {
        self.bundle.is_some() || self.config.is_some() || self.goaway.is_some() || self.ping
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(generation: u64) -> EncodedPush {
        EncodedPush::config(SidecarConfig { generation, ..SidecarConfig::default() }).unwrap()
    }

    fn all(mailbox: &Mailbox) -> Vec<NextWrite> {
        let context = Context::from_waker(Waker::noop());
        std::iter::from_fn(|| match mailbox.poll(&context) {
            Poll::Ready(NextWrite::End) | Poll::Pending => None,
            Poll::Ready(next) => Some(next),
        })
        .collect()
    }

    #[test]
    fn only_the_newest_of_each_kind_is_kept_and_the_bundle_is_sent_first() {
        let mailbox = Mailbox::default();
        let bundle = EncodedPush::bundle(CaBundle { ca: "x".into(), ..CaBundle::default() }).unwrap();
        let away = EncodedPush::goaway(Goaway::default()).unwrap();
        let newest = config(3);
        for (at, push) in [&config(1), &away, &config(2), &bundle, &newest].into_iter().enumerate() {
            mailbox.push(Tick(at as u64 + 5), push);
        }
        mailbox.ping(Tick(20));
        assert_eq!(mailbox.pending_since(), Some(Tick(5)));
        let frame = |push: &EncodedPush| NextWrite::Frame(push.frame.clone());
        assert_eq!(all(&mailbox), [frame(&bundle), frame(&newest), NextWrite::Ping, frame(&away)]);
        assert_eq!(mailbox.pending_since(), None);
        let context = Context::from_waker(Waker::noop());
        assert_eq!(mailbox.poll(&context), Poll::Ready(NextWrite::End), "nothing after it");
    }

    #[test]
    fn a_frame_for_several_streams_is_not_copied() {
        let push = config(1);
        let boxes: Vec<Mailbox> = (0..3).map(|_| Mailbox::default()).collect();
        boxes.iter().for_each(|mailbox| mailbox.push(Tick(0), &push));
        for mailbox in &boxes {
            let [NextWrite::Frame(frame)] = &all(mailbox)[..] else { panic!() };
            assert_eq!(frame.as_ptr(), push.frame.as_ptr());
        }
    }
}
