//! Conversion of learned values between the sidecar's report, the status and the tuner. Pure.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::registry::{SidecarState, from_wire};
use crate::api::v1alpha1::{CurvePoint, DurationText, LearnedState, ShareText};
use crate::config::{parse_duration, parse_share};
use crate::rollout::UnixSeconds;
use crate::rollout::status::{from_time, to_share_text, to_time};
use crate::tuner::TunedSettings;
use crate::tuner::learned::{LearnedCurve, LearnedProfile, LimiterConclusion};

/// Returns the values that a pod has learned under its profile on this machine type; `None` if
/// there are none yet.
pub(super) fn from_sidecar(sidecar: &SidecarState, node_class: &str) -> Option<LearnedProfile> {
    let (upstream, class) = sidecar.best_learned()?;
    let in_force = sidecar.in_force.as_ref()?;
    let curve = LearnedCurve {
        class: class.class.clone(),
        points: class.points.iter().map(|(items, micros, _)| (*items, *micros)).collect(),
        tail_permille: class.tail_permille,
        weight_milli: class.weight_milli,
    };
    Some(
        LearnedProfile {
            profile: in_force.profile.clone(),
            node_class: node_class.to_owned(),
            // A report without limiters contains one number of slots for all classes.
            slots: class.limiter.as_ref().map_or(upstream.slots, |limiter| limiter.limit),
            limiter: class.limiter.as_ref().map(|limiter| LimiterConclusion {
                base_micros: limiter.base_us,
                no_gain_permille: limiter.item_permille,
            }),
            lead_micros: upstream.lead_us,
            mean_micros: upstream.mean_us,
            curve: Some(curve),
            settings: from_wire(&in_force.settings),
            batches: class.samples,
            at: 0,
        }
        .truncate_to_bounds(),
    )
}

/// Converts to the form of the status.
pub(super) fn to_status(learned: &LearnedProfile) -> LearnedState {
    let curve = learned.curve.as_ref();
    let point =
        |(items, micros): &(u32, u64)| CurvePoint { items: *items, weight: None, duration: format_micros(*micros) };
    LearnedState {
        profile: learned.profile.clone(),
        accelerator: learned.node_class.clone(),
        slots: (learned.slots > 0).then_some(learned.slots),
        base: learned.limiter.map(|limiter| limiter.base_micros).filter(|base| *base > 0).map(format_micros),
        no_gain_permille: learned.limiter.and_then(|limiter| limiter.no_gain_permille),
        lead: Some(format_micros(learned.lead_micros)),
        execution: Some(format_micros(learned.mean_micros)),
        class: curve.map(|curve| curve.class.clone()),
        curve: curve.iter().flat_map(|curve| curve.points.iter().map(point)).collect(),
        tail_permille: curve.map(|curve| curve.tail_permille),
        deadline_shift: to_share_text(learned.settings.shift_permille.into(), 1000)
            .filter(|_| learned.settings.shift_permille > 0),
        slots_max: learned.settings.slots_max,
        samples: Some(learned.batches),
        updated: to_time(UnixSeconds(learned.at)),
    }
}

/// Converts to the form of the tuner. Values that cannot be parsed count as absent.
pub(super) fn from_status(state: &LearnedState) -> LearnedProfile {
    let micros = |text: Option<&DurationText>| {
        let time = text.and_then(|text| parse_duration(&text.0)).unwrap_or_default();
        u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
    };
    let permille = |text: &ShareText| parse_share(&text.0).map(|share| share.ppm() / 1000);
    let points: Vec<(u32, u64)> =
        state.curve.iter().map(|point| (point.items, micros(Some(&point.duration)))).collect();
    let curve = state.class.clone().filter(|_| !points.is_empty()).map(|class| LearnedCurve {
        class,
        points,
        tail_permille: state.tail_permille.unwrap_or_default(),
        weight_milli: 1000,
    });
    LearnedProfile {
        profile: state.profile.clone(),
        node_class: state.accelerator.clone(),
        slots: state.slots.unwrap_or_default(),
        limiter: (state.base.is_some() || state.no_gain_permille.is_some()).then(|| LimiterConclusion {
            base_micros: micros(state.base.as_ref()),
            no_gain_permille: state.no_gain_permille,
        }),
        lead_micros: micros(state.lead.as_ref()),
        mean_micros: micros(state.execution.as_ref()),
        curve,
        settings: TunedSettings {
            shift_permille: state.deadline_shift.as_ref().and_then(permille).unwrap_or_default(),
            slots_max: state.slots_max,
            batch_weight_max: None,
        },
        batches: state.samples.unwrap_or_default(),
        at: state.updated.as_ref().map(|time: &Time| from_time(time)).unwrap_or_default().0,
    }
    .truncate_to_bounds()
}

/// Formats a duration to the microsecond, since it is parsed again.
fn format_micros(micros: u64) -> DurationText {
    DurationText(crate::config::format_duration(Duration::from_micros(micros)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_learned_profile_round_trips_through_the_status() {
        let learned = LearnedProfile {
            profile: "emb-1".to_owned(),
            node_class: "l4".to_owned(),
            slots: 2,
            limiter: Some(LimiterConclusion { base_micros: 3900, no_gain_permille: None }),
            lead_micros: 1500,
            mean_micros: 12_345,
            curve: Some(LearnedCurve {
                class: "m".to_owned(),
                points: vec![(1, 4000), (8, 6001)],
                tail_permille: 1100,
                weight_milli: 1000,
            }),
            settings: TunedSettings { shift_permille: 125, slots_max: Some(3), batch_weight_max: None },
            batches: 400,
            at: 1_795_000_000,
        };
        let status = to_status(&learned);
        let text = serde_json::to_string(&status).unwrap();
        assert_eq!(from_status(&serde_json::from_str(&text).unwrap()), learned, "{text}");
        let no_gain = Some(LimiterConclusion { base_micros: 3900, no_gain_permille: Some(970) });
        let open = LearnedProfile { slots: 0, limiter: no_gain, ..learned };
        let text = serde_json::to_string(&to_status(&open)).unwrap();
        assert_eq!(from_status(&serde_json::from_str(&text).unwrap()), open, "{text}");
        for point in &status.curve {
            assert!(parse_duration(&point.duration.0).is_some(), "{text}");
        }
    }
}
