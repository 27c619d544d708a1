//! Metrics of responses with generated text: time to the first token, time for each further token,
//! and numbers of tokens.

use std::sync::Arc;

use bytes::Bytes;
use http::{Response, StatusCode};

use super::Proxy;
use super::recorder::CallRecorder;
use crate::batching::Tick;
use crate::body::{Body, BodyTap};
use crate::clock::Clock;
use crate::protocol::headers::is_event_stream;
use crate::protocol::{Call, Endpoint, OutputMeter, TokenCalibration, TokenCounts, TokenSample};
use crate::scheduler::StreamRecorder;
use crate::telemetry::RouteDurations;

/// A tap on a response that arrives in pieces.
#[derive(Debug)]
struct StreamTap {
    meter: OutputMeter,
    times: TokenTimes,
    /// Reports the tokens to the scheduler.
    stream: Option<StreamRecorder>,
}

/// Times of the parts of a stream.
#[derive(Debug)]
struct TokenTimes {
    clock: Clock,
    recorder: CountRecorder,
    began: Tick,
    /// Arrival of the first part and of the latest one.
    parts: Option<(Tick, Tick)>,
}

/// Records the numbers of tokens of a call.
#[derive(Debug)]
struct CountRecorder {
    durations: RouteDurations,
    calibration: Arc<TokenCalibration>,
    /// The texts of the call, if the number of input tokens belongs to them.
    sample: Option<TokenSample>,
}

/// A tap on a response that is read whole.
#[derive(Debug)]
struct BodyMeter {
    recorder: CountRecorder,
    /// Reads a response that arrives in several pieces; `None` once it was read.
    meter: Option<OutputMeter>,
}

// === impl Proxy ===

impl Proxy {
    /// Measures the tokens of a successful response. The rates of tokens are learned here from
    /// calls that are never merged; other responses are observed where they are split.
    pub(super) fn meter_tokens(
        &self,
        call_recorder: &CallRecorder,
        (endpoint, call): (&Endpoint, &Call),
        mut response: Response<Body>,
    ) -> Response<Body> {
        if response.status() != StatusCode::OK || response.headers().contains_key(http::header::CONTENT_ENCODING) {
            return response;
        }
        let Some(durations) = call_recorder.durations().cloned() else { return response };
        let sample = TokenSample::of_call(call).filter(|_| endpoint.is_generation());
        let recorder = CountRecorder { durations, calibration: self.tokens.clone(), sample };
        let streaming = call.streaming || is_event_stream(response.headers());
        let tap: Box<dyn BodyTap> = if streaming && response.body().is_streamed() {
            let times = TokenTimes { clock: self.clock, recorder, began: call_recorder.began(), parts: None };
            let stream = response.extensions_mut().remove::<StreamRecorder>();
            Box::new(StreamTap { meter: OutputMeter::default(), times, stream })
        } else {
            Box::new(BodyMeter { recorder, meter: Some(OutputMeter::default()) })
        };
        response.map(|body| body.with_tap(tap))
    }
}

// === impl TokenTimes ===

impl TokenTimes {
    fn on_part(&mut self) {
        let now = self.clock.now();
        match &mut self.parts {
            Some((_, latest)) => *latest = now,
            None => {
                self.parts = Some((now, now));
                self.recorder.durations.record_first_token(now.since(self.began));
            }
        }
    }

    fn on_end(&self, counts: TokenCounts) {
        self.recorder.record(counts);
        let gaps = u32::try_from(counts.output.saturating_sub(1)).unwrap_or(u32::MAX);
        if let (Some((first, latest)), true) = (self.parts, gaps > 0) {
            self.recorder.durations.record_output_token_time(latest.since(first) / gaps);
        }
    }
}

impl BodyTap for StreamTap {
    fn data(&mut self, data: &Bytes) {
        self.times.on_part();
        let tokens = self.meter.push(data);
        if let Some(stream) = &self.stream {
            stream.on_tokens(tokens);
        }
    }

    fn end(&mut self, _: bool) {
        if let Some(counts) = std::mem::take(&mut self.meter).finish() {
            self.times.on_end(counts);
        }
    }
}

impl BodyTap for BodyMeter {
    fn data(&mut self, data: &Bytes) {
        if let Some(counts) = TokenCounts::of_body(data) {
            self.recorder.record(counts);
            self.meter = None;
        } else if let Some(meter) = &mut self.meter {
            meter.push(data);
        }
    }

    fn end(&mut self, _: bool) {
        let counts = self.meter.take().and_then(OutputMeter::finish);
        if let Some(counts) = counts.filter(|counts| counts.is_reported) {
            self.recorder.record(counts);
        }
    }
}

// === impl CountRecorder ===

impl CountRecorder {
    fn record(&self, counts: TokenCounts) {
        let source = if counts.is_reported { "usage" } else { "events" };
        if let Some(input) = counts.input {
            self.durations.record_tokens("input", source, input);
            if let Some(sample) = &self.sample {
                self.calibration.record(sample, input);
            }
        }
        self.durations.record_tokens("output", source, counts.output);
    }
}
