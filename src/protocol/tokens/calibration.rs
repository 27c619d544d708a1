//! The learned rates of all models of a server.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::rates::TokenRates;
use super::size::{CallText, TextSize};
use crate::batching::Weight;
use crate::call::Call;

/// Maximum number of models with rates: as many as cost curves. Beyond it, the least recently used
/// one is dropped.
const MODELS_MAX: usize = 64;
/// Maximum length of a model's name, so that the names take at most 16 KiB.
pub(crate) const NAME_MAX: usize = 256;
/// Number of responses of a model that are all read. Afterwards, one in [`READ_EVERY`] is enough to
/// follow changes, and the others cost nothing.
const READ_ALL: u32 = 64;
const READ_EVERY: u32 = 16;

/// Rates of tokens that were learned from responses, by model. Shared by all connections.
#[derive(Debug, Default)]
pub struct TokenCalibration {
    models: Mutex<ModelTable>,
}

/// The texts of a call, kept until its response reports their number of tokens.
#[derive(Debug, Clone)]
pub struct TokenSample {
    model: Box<[u8]>,
    size: TextSize,
}

#[derive(Debug, Default)]
struct ModelTable {
    models: HashMap<Box<[u8]>, ModelEntry>,
    uses: u64,
}

#[derive(Debug, Default)]
struct ModelEntry {
    rates: TokenRates,
    /// Number of the last use, by which the least recently used model is found.
    used: u64,
    /// Number of responses that could be read.
    seen: u32,
}

// === impl TokenCalibration ===

impl TokenCalibration {
    /// Returns the weight of a call at the rates of its model. `None` if nothing is known, or if the
    /// weight of the call is not an estimate.
    #[must_use]
    pub fn weigh(&self, call: &Call) -> Option<Weight> {
        let CallText { model, sum, heaviest, output_max, .. } = call.text.as_deref()?;
        let table = self.lock();
        let rates = &table.models.get(model)?.rates;
        let sum = rates.estimate(sum)?.saturating_add(*output_max).max(1);
        let max = rates.estimate(heaviest)?.saturating_add(*output_max).clamp(1, sum);
        Some(Weight { sum, max })
    }

    /// Records the number of tokens that a response reported for these texts.
    pub fn record(&self, sample: &TokenSample, tokens: u64) {
        let mut table = self.lock();
        table.entry(&sample.model).rates.observe(&sample.size, tokens);
    }

    /// Returns the sample of calls that are answered together, if their response is to be read.
    pub(crate) fn begin_sample(&self, calls: &[&Call]) -> Option<TokenSample> {
        let mut texts = calls.iter().map(|call| call.text.as_deref().filter(|text| text.is_whole));
        let mut sample = TokenSample::of(texts.next()??);
        for text in texts {
            sample.size += text?.sum;
        }
        self.lock().is_due(&sample.model).then_some(sample)
    }

    fn lock(&self) -> MutexGuard<'_, ModelTable> {
        self.models.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl TokenSample ===

impl TokenSample {
    fn of(text: &CallText) -> Self {
        Self { model: text.model.clone(), size: text.sum }
    }

    /// Returns the sample of a call, if the number of tokens that its response reports belongs to
    /// its texts.
    #[must_use]
    pub fn of_call(call: &Call) -> Option<Self> {
        call.text.as_deref().filter(|text| text.is_whole).map(Self::of)
    }
}

// === impl ModelTable ===

impl ModelTable {
    fn is_due(&mut self, model: &[u8]) -> bool {
        let entry = self.entry(model);
        entry.seen = entry.seen.wrapping_add(1);
        entry.rates.responses() < READ_ALL || entry.seen.is_multiple_of(READ_EVERY)
    }

    fn entry(&mut self, model: &[u8]) -> &mut ModelEntry {
        self.uses += 1;
        if !self.models.contains_key(model) && self.models.len() >= MODELS_MAX {
            let oldest = self.models.iter().min_by_key(|(_, entry)| entry.used).map(|(name, _)| name.clone());
            oldest.into_iter().for_each(|name| _ = self.models.remove(&name));
        }
        let entry = self.models.entry(model.into()).or_default();
        entry.used = self.uses;
        entry
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_bounded_and_the_oldest_is_dropped() {
        let calibration = TokenCalibration::default();
        let sample = |model: usize| TokenSample {
            model: model.to_string().into_bytes().into(),
            size: TextSize { texts: 1, latin: 100, ..TextSize::default() },
        };
        for model in 0..MODELS_MAX * 2 {
            calibration.record(&sample(model), 50);
            calibration.record(&sample(0), 50);
        }
        let table = calibration.lock();
        assert_eq!(table.models.len(), MODELS_MAX);
        assert!(table.models.contains_key(&b"0"[..]) && !table.models.contains_key(&b"1"[..]));
    }

    #[test]
    fn responses_are_read_rarely_once_the_rates_are_known() {
        let mut table = ModelTable::default();
        let size = TextSize { texts: 1, latin: 100, ..TextSize::default() };
        let read = (0..READ_ALL + 160).filter(|_| {
            let due = table.is_due(b"m");
            if due {
                table.entry(b"m").rates.observe(&size, 30);
            }
            due
        });
        assert_eq!(read.count(), usize::try_from(READ_ALL).unwrap() + 10);
    }
}
