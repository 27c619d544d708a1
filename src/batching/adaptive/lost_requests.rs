//! Detection of overdue and lost requests.
//!
//! A call without a timeout stays in flight as long as its client waits. If a server loses an
//! answer, a limit that counts the lost request would stop all other requests: at a limit of one,
//! for ever. A server that has merely become slow has lost nothing. A request is therefore lost
//! only once a request that was sent after it became overdue has been answered. If all requests in
//! flight are overdue, one call is sent as a probe.

use std::time::Duration;

use super::super::class::merging::MergeLimit;
use super::super::tick::{Tick, nanos};
use super::models::{ClassModel, InFlight};

/// A request is overdue after this multiple of the expected duration, and not before this minimum.
/// The slowest regular answers and a pause of the machine are shorter than both.
const OVERDUE_FACTOR: u64 = 4;
const OVERDUE_MIN: Duration = Duration::from_secs(1);

/// Requests that a class at its limit may send in addition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ExtraPermit {
    /// No request before the given instant, at which the next one in flight becomes overdue.
    None(Option<Tick>),
    /// One call, to probe whether the server still answers.
    Probe,
    /// Regular dispatch, because lost requests occupy no slot.
    ReplaceLost,
}

// === impl ClassModel ===

impl ClassModel {
    /// Returns what a class at its limit may send beside overdue requests. `own`: its requests in
    /// flight; `mean_time`: the mean execution time, in nanoseconds.
    pub(super) fn extra_permit<'a>(
        &self,
        own: impl Iterator<Item = &'a InFlight>,
        merge: MergeLimit,
        now: Tick,
        mean_time: u64,
    ) -> ExtraPermit {
        let Some(limit) = self.flow.limit() else { return ExtraPermit::None(None) };
        // Nothing is known about the length of a generated stream.
        if self.flow.is_draining(now) || self.flow.limits_streams() {
            return ExtraPermit::None(None);
        }
        let lone = self.unloaded_nanos().unwrap_or(mean_time);
        let (mut count, mut overdue, mut lost, mut next) = (0_u32, 0_u32, 0_u32, None);
        let limit_set_at = self.flow.settled_since();
        for at in own.map(|sent| overdue_from(sent, limit_set_at, merge, lone)) {
            count += 1;
            overdue += u32::from(at <= now);
            lost += u32::from(at <= now && self.answered_sent >= at);
            next = next.into_iter().chain([at].into_iter().filter(|at| *at > now)).min();
        }
        if lost > 0 && self.flow.in_flight().saturating_sub(lost) < limit {
            ExtraPermit::ReplaceLost
        } else if count > 0 && overdue == count {
            ExtraPermit::Probe
        } else {
            ExtraPermit::None(next)
        }
    }
}

/// Returns the instant at which a request becomes overdue. `lone`: nanoseconds of a lone call. For
/// a request that was sent before the limit was set, at `limit_set_at`, time counts from then,
/// because it waited behind the requests that were in flight then.
fn overdue_from(sent: &InFlight, limit_set_at: Tick, merge: MergeLimit, lone: u64) -> Tick {
    let sent_at = sent.flight.sent_at();
    let began = sent_at.max(limit_set_at);
    // A server that does not accept lists may never answer one, so a trial of a list is compared
    // with the duration of a lone call, which is known.
    let is_list_trial = merge == MergeLimit::Unbatched(None) && sent.batch.calls > 1;
    let (expected, minimum) =
        if is_list_trial { (lone, 0) } else { (sent.due.0.saturating_sub(sent_at.0), nanos(OVERDUE_MIN)) };
    Tick(began.0.saturating_add(OVERDUE_FACTOR.saturating_mul(expected).max(minimum)))
}
