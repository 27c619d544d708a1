//! The samples that a curve is fitted to: a window of the newest few of each kind of batch.
//!
//! They are kept by size bucket and octave of the heaviest item, so that many small batches do not
//! push out the only large one.

use super::super::math::{round_to_u64, to_f64};
use super::batch_load::{BatchLoad, bucket};
use super::{CostSample, KEPT};

/// Number of samples in a cell.
const CELL: usize = 8;
const NEWEST: usize = KEPT as usize;
/// Maximum number of cells: more than any measured traffic has filled (12 sizes × 6 octaves), and
/// 26 KB. Beyond it the least recently updated cell is reused.
const CELLS_MAX: usize = 96;

/// A batch and its execution time.
#[derive(Debug, Clone, Copy)]
pub(super) struct CostReading {
    pub(super) items: u32,
    pub(super) load: BatchLoad,
    pub(super) nanos: f64,
}

/// A window of the newest samples, at most [`CELLS_MAX`] × [`CELL`].
#[derive(Debug, Clone, Default)]
pub(super) struct CostSampleWindow {
    cells: Vec<WindowCell>,
    /// Number of samples that were added, by which the least recently updated cell is found.
    clock: u64,
}

/// The samples of one kind of batch.
#[derive(Debug, Clone)]
struct WindowCell {
    /// Size bucket, and octave of the heaviest item.
    kind: (usize, u32),
    /// Ring buffer. Its order does not matter for a fit.
    readings: Vec<CostReading>,
    /// Position of the next sample in the ring.
    next: usize,
    /// Value of `CostSampleWindow::clock` at the last update.
    touched: u64,
}

// === impl CostReading ===

impl CostReading {
    pub(super) fn new(sample: CostSample) -> Self {
        let nanos = to_f64(sample.nanos).clamp(super::NANOS_MIN, super::NANOS_MAX);
        Self { items: sample.items.max(1), load: BatchLoad::new(sample.items, sample.weight), nanos }
    }

    fn kind(&self) -> (usize, u32) {
        (bucket(self.items), u64::BITS - round_to_u64(self.load.max).leading_zeros())
    }
}

impl From<&CostReading> for CostSample {
    fn from(reading: &CostReading) -> Self {
        let weight = super::Weight { sum: round_to_u64(reading.load.sum), max: round_to_u64(reading.load.max) };
        Self { items: reading.items, weight, nanos: round_to_u64(reading.nanos) }
    }
}

// === impl CostSampleWindow ===

impl CostSampleWindow {
    pub(super) fn put(&mut self, reading: CostReading) {
        self.clock += 1;
        let kind = reading.kind();
        let at = self.cells.iter().position(|cell| cell.kind == kind).unwrap_or_else(|| self.open_cell(kind));
        let Some(cell) = self.cells.get_mut(at) else { return };
        cell.touched = self.clock;
        match cell.readings.get_mut(cell.next) {
            Some(oldest) => *oldest = reading,
            None => cell.readings.push(reading),
        }
        cell.next = (cell.next + 1) % CELL;
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &CostReading> {
        self.cells.iter().flat_map(|cell| &cell.readings)
    }

    /// Returns the newest [`NEWEST`] samples of each cell, oldest first within a cell.
    pub(super) fn newest(&self) -> impl Iterator<Item = &CostReading> {
        self.cells.iter().flat_map(WindowCell::newest)
    }

    /// Drops all but the newest samples of each cell and multiplies their times by a factor.
    pub(super) fn rescale(&mut self, factor: f64) {
        for cell in &mut self.cells {
            cell.keep_newest();
            for reading in &mut cell.readings {
                reading.nanos = (reading.nanos * factor).clamp(super::NANOS_MIN, super::NANOS_MAX);
            }
        }
    }

    pub(super) fn clear(&mut self) {
        self.cells.clear();
    }

    /// Returns the index of a cell for a kind of batch that has none.
    fn open_cell(&mut self, kind: (usize, u32)) -> usize {
        if self.cells.len() < CELLS_MAX {
            self.cells.push(WindowCell { kind, readings: Vec::with_capacity(CELL), next: 0, touched: 0 });
            return self.cells.len() - 1;
        }
        let oldest = self.cells.iter().enumerate().min_by_key(|(_, cell)| cell.touched).map_or(0, |(at, _)| at);
        if let Some(cell) = self.cells.get_mut(oldest) {
            cell.kind = kind;
            cell.readings.clear();
            cell.next = 0;
        }
        oldest
    }
}

// === impl WindowCell ===

impl WindowCell {
    fn newest(&self) -> impl Iterator<Item = &CostReading> {
        let (newer, older) = self.readings.split_at(self.next.min(self.readings.len()));
        let surplus = self.readings.len().saturating_sub(NEWEST);
        older.iter().chain(newer).skip(surplus)
    }

    fn keep_newest(&mut self) {
        // Order from oldest to newest, then drop the front.
        let full = self.readings.len() == CELL;
        self.readings.rotate_left(if full { self.next } else { 0 });
        let surplus = self.readings.len().saturating_sub(NEWEST);
        self.readings.drain(..surplus);
        self.next = self.readings.len() % CELL;
    }
}
