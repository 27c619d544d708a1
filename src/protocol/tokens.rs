//! Numbers of tokens of texts, which are the weight of text: estimated from code points at rates
//! that are learned from the `usage` of responses, or counted by the tokenizer that a route names.
//!
//! A parser measures the size of a call's texts ([`TextSize`]) and weighs them at default rates. The
//! shell holds a [`TokenCalibration`], which learns from responses ([`Endpoint::observe_tokens`])
//! and weighs the call again ([`TokenCalibration::weigh`]). Both are constant work for each call.
//!
//! [`Endpoint::observe_tokens`]: crate::Endpoint::observe_tokens

mod calibration;
mod counter;
mod rates;
mod reported;
mod size;

pub(crate) use calibration::NAME_MAX;
pub use calibration::{TokenCalibration, TokenSample};
pub(crate) use counter::TextMeter;
pub use counter::TokenCounter;
pub(crate) use size::{CallText, TextSize};
