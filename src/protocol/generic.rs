//! The Generic adapter: the declaration of a user-defined JSON protocol in a policy.
//!
//! The types mirror the keys of `routes[].generic` under the same names. A [`GenericOptions`] is
//! compiled to a `ProtocolShape` once, when the policy is loaded.

use crate::json::Base64Form;
use crate::pointer::Pointer;
use crate::shape;
use crate::shape::{BareValue, Class, Counters, ListPath, ProtocolShape, ResultIndex, ResultLayout};

pub use crate::shape::CostShare;

/// The keys of `generic`. See `policy.yaml` for defaults and meanings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GenericOptions {
    /// Path of shared calls, if it differs from the path of their members.
    pub upstream_path: Option<String>,
    /// Parallel arrays of items.
    pub items: Vec<Pointer>,
    /// Form of a single item.
    pub single: SingleItem,
    /// Properties that the items of a batch must have in common.
    pub item_class: ItemClass,
    /// Parallel arrays of results, or the result map if `result_key` is set.
    pub results: Vec<Pointer>,
    /// Pointer inside a result to the index of its item.
    pub index: Option<Pointer>,
    /// Pointer inside an item to the value under which the result map holds its result.
    pub result_key: Option<Pointer>,
    /// Form of the result for a call with a scalar item.
    pub result_wrap: ResultWrap,
    /// Order of the results.
    pub select: ResultOrder,
    /// Representation of the failure of a single item.
    pub per_item_error: Option<PerItemError>,
    /// Ids of the whole response, generated anew for each client.
    pub id: Vec<Pointer>,
    /// Counters of the whole response.
    pub cost: CounterSpec,
    /// Measure of the weight of a batch.
    pub weight: BatchWeight,
    /// Responses that mean "batch too large", in addition to 413.
    pub too_large: Vec<TooLargeSign>,
    /// Accepts `NaN` and `Infinity` as numbers in a request.
    pub lenient_numbers: bool,
    /// Treatment of a batch with a response that cannot be split.
    pub on_mismatch: OnMismatch,
}

/// Form of a single item.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SingleItem {
    /// A field that holds a single item.
    pub items: Option<Pointer>,
    /// The field that holds its result.
    pub results: Option<Pointer>,
    /// `items` may hold a bare value.
    pub wrap_scalar: bool,
    /// Interpretation of a flat list.
    pub item_is: FlatList,
}

/// Interpretation of a flat list of numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FlatList {
    /// A list of items.
    #[default]
    Element,
    /// A single item.
    ArrayOfNumbers,
}

/// Properties that the items of a batch must have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ItemClass {
    /// The same types and shapes, recursively.
    #[default]
    Strict,
    /// Strings, lists of token ids, or objects with the same keys.
    Text,
    /// No common property.
    None,
}

/// Form of the result for a call with a scalar item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ResultWrap {
    /// A bare result.
    #[default]
    None,
    /// A list with one result.
    List,
}

/// Order of the results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ResultOrder {
    /// The order of the items.
    #[default]
    None,
    /// Sorted by a criterion of the server; each result carries its index.
    Sorted,
}

/// Representation of the failure of a single item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PerItemError {
    /// Pointer inside a result. The item failed if a value is present there and is neither null nor
    /// false.
    pub field: Pointer,
    /// Status of the response to the client of the failed item.
    pub status: u16,
}

/// Counters of the whole response.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CounterSpec {
    /// Pointers to the counters.
    pub totals: Vec<Pointer>,
    /// Measure by which they are divided among the clients.
    pub weights: CostWeights,
    /// Rule for dividing them.
    pub share: CostShare,
}

/// Measure by which counters are divided.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum CostWeights {
    /// Size of the item in bytes.
    #[default]
    Bytes,
    /// Number of code points in the item's strings.
    Chars,
    /// Length of the item's list.
    ListLen,
    /// A number in the result, or else in the item.
    At(Pointer),
}

/// Measure of the weight of a batch.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum BatchWeight {
    /// Number of items.
    #[default]
    Items,
    /// Size of the items in bytes.
    Bytes,
    /// Number of code points in the items' strings.
    Chars,
    /// Lengths of the items' lists.
    ListLen,
    /// A number in the item.
    At(Pointer),
}

/// A response that means "batch too large".
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TooLargeSign {
    /// Status of the response.
    pub status: u16,
    /// Text that the body must contain.
    pub body_contains: Option<String>,
}

/// Treatment of a batch with a response that cannot be split.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnMismatch {
    /// The members are isolated, if the route is idempotent.
    #[default]
    Isolate,
    /// The members receive 502.
    Fail,
}

/// A key of a declaration that conflicts with another key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpecConflict {
    /// Path of the key under `generic`.
    pub key: &'static str,
    /// Requirement that the key violates.
    pub reason: &'static str,
}

// === impl GenericOptions ===

impl GenericOptions {
    /// Creates a spec with the two keys that have no default.
    #[must_use]
    pub fn new(items: Vec<Pointer>, results: Vec<Pointer>) -> Self {
        Self {
            upstream_path: None,
            items,
            single: SingleItem::default(),
            item_class: ItemClass::default(),
            results,
            index: None,
            result_key: None,
            result_wrap: ResultWrap::default(),
            select: ResultOrder::default(),
            per_item_error: None,
            id: Vec::new(),
            cost: CounterSpec::default(),
            weight: BatchWeight::default(),
            too_large: Vec::new(),
            lenient_numbers: false,
            on_mismatch: OnMismatch::default(),
        }
    }

    /// Returns the keys that conflict with others. A declaration without conflicts can be compiled.
    #[must_use]
    pub fn clashes(&self) -> Vec<SpecConflict> {
        let mut clashes = Vec::new();
        let mut no = |key, reason| clashes.push(SpecConflict { key, reason });
        self.check_lists(&mut no);
        self.check_results(&mut no);
        self.check_response(&mut no);
        clashes
    }

    /// Checks the lists of items and results.
    fn check_lists(&self, no: &mut impl FnMut(&'static str, &'static str)) {
        let is_valid = |single: &Option<Pointer>, lists: &[Pointer]| match (single, lists) {
            (None, _) => true,
            (Some(single), [list]) => single.is_sibling(list) && single != list,
            (Some(_), _) => false,
        };
        if self.items.is_empty() {
            no("items", "must name at least one list");
        }
        if self.results.is_empty() {
            no("results", "must name at least one list");
        }
        if self.items.iter().any(|items| items.tokens().is_empty()) {
            no("items", "must name a member: the whole body cannot be rewritten");
        }
        if is_nested(&self.items) {
            no("items", "a parallel list must not contain another one");
        }
        if is_nested(&self.results) {
            no("results", "a parallel list must not contain another one");
        }
        if !is_valid(&self.single.items, &self.items) {
            no("single.items", "must be a different member next to the only list of items");
        }
        if !is_valid(&self.single.results, &self.results) {
            no("single.results", "must be a different member next to the only list of results");
        }
    }

    /// Checks how results are assigned to items.
    fn check_results(&self, no: &mut impl FnMut(&'static str, &'static str)) {
        let single = self.single.items.is_some() || self.single.results.is_some() || self.single.wrap_scalar;
        if self.result_key.is_some()
            && (self.results.len() > 1 || self.index.is_some() || self.select == ResultOrder::Sorted || single)
        {
            no("resultKey", "requires exactly one entry in results, and excludes index, select and single");
        }
        if self.select == ResultOrder::Sorted && self.index.is_none() {
            no("select", "Sorted requires index, the location of the item's index in a result");
        }
        if self.select == ResultOrder::Sorted && self.results.len() > 1 {
            no("select", "Sorted requires exactly one list of results");
        }
        if self.index.as_ref().is_some_and(|index| index.tokens().is_empty()) {
            no("index", "must point inside a result: write /NAME");
        }
        if self.per_item_error.as_ref().is_some_and(|error| error.field.tokens().is_empty()) {
            no("perItemError.field", "must point inside a result: write /NAME");
        }
    }

    /// Checks the other parts of the response, and the path.
    fn check_response(&self, no: &mut impl FnMut(&'static str, &'static str)) {
        let apart = |one: &[Pointer], other: &[Pointer]| {
            !one.iter().any(|one| other.iter().any(|other| one.is_prefix_of(other) || other.is_prefix_of(one)))
        };
        if is_nested(&self.id) || !apart(&self.id, &self.results) {
            no("id", "ids and results must be different places");
        }
        let totals = &self.cost.totals;
        if is_nested(totals) || !apart(totals, &self.results) || !apart(totals, &self.id) {
            no("cost.totals", "counters, ids and results must be different places");
        }
        if self.upstream_path.as_ref().is_some_and(|path| !path.starts_with('/') || path.contains(['?', '#', ' '])) {
            no("upstreamPath", "must start with '/' and have no query");
        }
        if self.per_item_error.as_ref().is_some_and(|error| !(400..600).contains(&error.status)) {
            no("perItemError.status", "must be a status from 400 to 599");
        }
    }

    /// Compiles the declaration to a shape.
    pub(crate) fn shape(&self) -> ProtocolShape {
        let first = self.results.first().cloned().unwrap_or_else(|| Pointer::from_static(""));
        ProtocolShape {
            items: self.items.clone(),
            single: self.single.items.clone(),
            bare: if self.single.wrap_scalar { BareValue::Always } else { BareValue::Never },
            item_is: match self.single.item_is {
                FlatList::Element => shape::ItemIs::Element,
                FlatList::ArrayOfNumbers => shape::ItemIs::Numbers,
            },
            class: match self.item_class {
                ItemClass::Strict => Class::Strict(Base64Form::Plain),
                ItemClass::Text => Class::Text { objects: true },
                ItemClass::None => Class::None,
            },
            results: match &self.result_key {
                Some(key) => ResultLayout::Map { at: first, key: key.clone() },
                None => ResultLayout::Lists(self.results.clone()),
            },
            single_result: self.single.results.as_ref().and_then(|results| results.name().map(str::to_owned)),
            unwrap: self.result_wrap == ResultWrap::None,
            sorted: self.select == ResultOrder::Sorted,
            index: self.index.clone().map(|at| ResultIndex { at, optional: false }),
            per_item_error: self.per_item_error.as_ref().map(|error| (error.field.clone(), error.status)),
            ids: self.id.clone(),
            counters: if self.cost.totals.is_empty() {
                Counters::None
            } else {
                Counters::Totals { at: self.cost.totals.clone(), share: self.cost.share }
            },
            share_by: match &self.cost.weights {
                CostWeights::Bytes => shape::Measure::Bytes,
                CostWeights::Chars => shape::Measure::Chars,
                CostWeights::ListLen => shape::Measure::ListLen,
                CostWeights::At(pointer) => shape::Measure::At(pointer.clone()),
            },
            weight: match &self.weight {
                BatchWeight::Items => shape::Measure::Items,
                BatchWeight::Bytes => shape::Measure::Bytes,
                BatchWeight::Chars => shape::Measure::Chars,
                BatchWeight::ListLen => shape::Measure::ListLen,
                BatchWeight::At(pointer) => shape::Measure::At(pointer.clone()),
            },
            lenient: self.lenient_numbers,
            upstream_path: self.upstream_path.clone().map(ListPath::Whole),
            ..ProtocolShape::plain("", "")
        }
    }
}

fn is_nested(pointers: &[Pointer]) -> bool {
    pointers.iter().enumerate().any(|(i, a)| pointers.iter().enumerate().any(|(j, b)| i != j && a.is_prefix_of(b)))
}

#[cfg(test)]
mod tests;
