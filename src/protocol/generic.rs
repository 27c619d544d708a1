//! The Generic adapter: what a policy may say about a JSON protocol of the user's own.
//!
//! The types mirror the keys of `routes[].generic`, with the same names. A [`Spec`] is turned into a `Shape` once, when the policy is read.

use crate::protocol::json::Scalars;
use crate::protocol::pointer::Pointer;
use crate::protocol::shape;
use crate::protocol::shape::{Bare, Class, Counters, Index, Results, Shape};

/// Keys of `generic`; see `policy.yaml` for each one's default and meaning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    /// Where a shared call goes, if not to the path of its members.
    pub upstream_path: Option<String>,
    /// Parallel arrays of items.
    pub items: Vec<Pointer>,
    /// The form of one item.
    pub single: Single,
    /// What items must have in common.
    pub item_class: ItemClass,
    /// Parallel arrays of results, or with `result_key` the map.
    pub results: Vec<Pointer>,
    /// Inside a result: which item it belongs to.
    pub index: Option<Pointer>,
    /// Inside an item: the field by which the results are a map.
    pub result_key: Option<Pointer>,
    /// Whether a scalar call's answer is a list of one.
    pub result_wrap: ResultWrap,
    /// Whether results come sorted.
    pub select: Select,
    /// How one item's failure shows.
    pub per_item_error: Option<PerItemError>,
    /// Batch-level ids that each caller gets afresh.
    pub id: Vec<Pointer>,
    /// Counters.
    pub cost: Cost,
    /// What the weight of a batch counts.
    pub weight: Weigh,
    /// What means "batch too large", besides 413.
    pub too_large: Vec<TooLargeSign>,
    /// `NaN` and `Infinity` as bare words in a request.
    pub lenient_numbers: bool,
    /// What becomes of a batch whose answer cannot be split.
    pub on_mismatch: OnMismatch,
}

/// The form of one item.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Single {
    /// A field that holds one item.
    pub items: Option<Pointer>,
    /// The field in which its result stands.
    pub results: Option<Pointer>,
    /// `items` may hold a bare value.
    pub wrap_scalar: bool,
    /// What a flat list is.
    pub item_is: ItemIs,
}

/// What a flat list of numbers is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ItemIs {
    /// A list of items.
    #[default]
    Element,
    /// One item.
    ArrayOfNumbers,
}

/// What items must have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ItemClass {
    /// Types and shapes, recursively.
    #[default]
    Strict,
    /// Strings, lists of token ids, or objects of the same keys.
    Text,
    /// Nothing.
    None,
}

/// Whether a scalar call's answer is a list of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ResultWrap {
    /// It is bare.
    #[default]
    None,
    /// It is a list of one.
    List,
}

/// How results are ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Select {
    /// As the items.
    #[default]
    None,
    /// By something of their own; each carries its index.
    Sorted,
}

/// How one item's failure shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PerItemError {
    /// Inside a result: there, and neither null nor false.
    pub field: Pointer,
    /// The status that its caller gets.
    pub status: u16,
}

/// Counters of the whole answer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Cost {
    /// Where they stand.
    pub totals: Vec<Pointer>,
    /// By what they are split.
    pub weights: CostWeights,
    /// Whether they are split.
    pub share: CostShare,
}

/// By what counters are split.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum CostWeights {
    /// Bytes of the item.
    #[default]
    Bytes,
    /// Code points of the item's strings.
    Chars,
    /// Length of the item's list.
    ListLen,
    /// A number in the result, or else in the item.
    At(Pointer),
}

/// Whether counters are split.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CostShare {
    /// Always, and marked as estimated.
    #[default]
    Proportional,
    /// Only where the parts are known; calls that could not be told apart exactly do not share a batch.
    Exact,
    /// Never: the counter is cut from shared answers.
    Drop,
}

/// What the weight of a batch counts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Weigh {
    /// Items.
    #[default]
    Items,
    /// Bytes of the items.
    Bytes,
    /// Code points of the items' strings.
    Chars,
    /// Lengths of the items' lists.
    ListLen,
    /// A number in the item.
    At(Pointer),
}

/// An answer that means "batch too large".
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TooLargeSign {
    /// Its status.
    pub status: u16,
    /// What its body holds.
    pub body_contains: Option<String>,
}

/// What becomes of a batch whose answer cannot be split.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnMismatch {
    /// Its members are sent again alone, if the route may.
    #[default]
    Isolate,
    /// 502 to its members.
    Fail,
}

// === impl Spec ===

impl Spec {
    /// A spec with the two keys that have no default.
    #[must_use]
    pub fn new(items: Vec<Pointer>, results: Vec<Pointer>) -> Self {
        Self {
            upstream_path: None,
            items,
            single: Single::default(),
            item_class: ItemClass::default(),
            results,
            index: None,
            result_key: None,
            result_wrap: ResultWrap::default(),
            select: Select::default(),
            per_item_error: None,
            id: Vec::new(),
            cost: Cost::default(),
            weight: Weigh::default(),
            too_large: Vec::new(),
            lenient_numbers: false,
            on_mismatch: OnMismatch::default(),
        }
    }

    /// What keys say together.
    ///
    /// # Errors
    /// The first two that do not go together, in words.
    pub fn check(&self) -> Result<(), String> {
        let no = |text: &str| Err(text.to_owned());
        if self.items.is_empty() || self.results.is_empty() {
            return no("generic needs items and results");
        }
        if self.items.iter().any(|items| items.tokens().is_empty()) {
            return no("items must name a member: the root cannot be rewritten");
        }
        if nested(&self.items) || nested(&self.results) {
            return no("of parallel arrays none may hold another");
        }
        if let Some(single) = &self.single.items
            && (self.items.len() > 1
                || !self.items.iter().all(|items| single.is_sibling(items))
                || self.items.contains(single))
        {
            return no("single.items must stand beside the one pointer of items");
        }
        if let Some(single) = &self.single.results
            && (self.results.len() > 1 || !self.results.iter().all(|results| single.is_sibling(results)))
        {
            return no("single.results must stand beside the one pointer of results");
        }
        if self.result_key.is_some()
            && (self.results.len() > 1 || self.index.is_some() || self.select == Select::Sorted)
        {
            return no("resultKey goes with one pointer of results, without index and select");
        }
        if self.result_key.is_some()
            && (self.single.items.is_some() || self.single.results.is_some() || self.single.wrap_scalar)
        {
            return no("resultKey does not go with single");
        }
        if self.select == Select::Sorted && (self.index.is_none() || self.results.len() > 1) {
            return no("select: Sorted needs index, and one pointer of results");
        }
        if self.index.as_ref().is_some_and(|index| index.tokens().is_empty()) {
            return no("index points inside a result");
        }
        let edited: Vec<_> = self.id.iter().chain(&self.cost.totals).chain(&self.results).cloned().collect();
        if nested(&edited) {
            return no("id, cost.totals and results must be different places");
        }
        if self.upstream_path.as_ref().is_some_and(|path| !path.starts_with('/') || path.contains(['?', '#', ' '])) {
            return no("upstreamPath starts with '/' and has no query");
        }
        if self.per_item_error.as_ref().is_some_and(|error| !(400..600).contains(&error.status)) {
            return no("perItemError.status is a status of 400 to 599");
        }
        Ok(())
    }

    /// The shape that the keys make.
    pub(crate) fn shape(&self) -> Shape {
        let first = self.results.first().cloned().unwrap_or_else(|| Pointer::known(""));
        Shape {
            items: self.items.clone(),
            single: self.single.items.clone(),
            bare: if self.single.wrap_scalar { Bare::Always } else { Bare::Never },
            item_is: match self.single.item_is {
                ItemIs::Element => shape::ItemIs::Element,
                ItemIs::ArrayOfNumbers => shape::ItemIs::Numbers,
            },
            class: match self.item_class {
                ItemClass::Strict => Class::Strict(Scalars::Plain),
                ItemClass::Text => Class::Text { objects: true },
                ItemClass::None => Class::None,
            },
            results: match &self.result_key {
                Some(key) => Results::Map { at: first, key: key.clone() },
                None => Results::Lists(self.results.clone()),
            },
            single_result: self.single.results.as_ref().and_then(|results| results.name().map(str::to_owned)),
            unwrap: self.result_wrap == ResultWrap::None,
            sorted: self.select == Select::Sorted,
            index: self.index.clone().map(|at| Index { at, optional: false }),
            per_item_error: self.per_item_error.as_ref().map(|error| (error.field.clone(), error.status)),
            ids: self.id.clone(),
            counters: if self.cost.totals.is_empty() {
                Counters::None
            } else {
                Counters::Totals { at: self.cost.totals.clone(), share: self.cost.share.into() }
            },
            share_by: match &self.cost.weights {
                CostWeights::Bytes => shape::Measure::Bytes,
                CostWeights::Chars => shape::Measure::Chars,
                CostWeights::ListLen => shape::Measure::ListLen,
                CostWeights::At(pointer) => shape::Measure::At(pointer.clone()),
            },
            weight: match &self.weight {
                Weigh::Items => shape::Measure::Items,
                Weigh::Bytes => shape::Measure::Bytes,
                Weigh::Chars => shape::Measure::Chars,
                Weigh::ListLen => shape::Measure::ListLen,
                Weigh::At(pointer) => shape::Measure::At(pointer.clone()),
            },
            lenient: self.lenient_numbers,
            // A list that the route forgot to declare may hold what belongs to the neighbours.
            no_other_lists: true,
            upstream_path: self.upstream_path.clone(),
            ..Shape::plain("", "")
        }
    }
}

fn nested(pointers: &[Pointer]) -> bool {
    pointers.iter().enumerate().any(|(i, a)| pointers.iter().enumerate().any(|(j, b)| i != j && a.holds(b)))
}

impl From<CostShare> for shape::Share {
    fn from(share: CostShare) -> Self {
        match share {
            CostShare::Proportional => Self::Proportional,
            CostShare::Exact => Self::Exact,
            CostShare::Drop => Self::Drop,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pointer(text: &str) -> Pointer {
        Pointer::parse(text).unwrap()
    }

    fn spec() -> Spec {
        Spec::new(vec![pointer("/texts")], vec![pointer("/vectors")])
    }

    #[test]
    fn keys_that_do_not_go_together_are_refused() {
        assert_eq!(spec().check(), Ok(()));
        assert!(Spec { items: vec![pointer("")], ..spec() }.check().is_err());
        assert!(Spec { items: vec![pointer("/a"), pointer("/a/b")], ..spec() }.check().is_err());
        assert!(Spec { select: Select::Sorted, ..spec() }.check().is_err());
        assert!(Spec { upstream_path: Some("embed".to_owned()), ..spec() }.check().is_err());
        assert!(Spec { id: vec![pointer("/vectors/0")], ..spec() }.check().is_err());
        let single = Single { items: Some(pointer("/in/text")), ..Single::default() };
        assert!(Spec { single, ..spec() }.check().is_err());
    }
}
