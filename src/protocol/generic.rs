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

/// A key of a declaration that does not go with another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clash {
    /// Its path under `generic`.
    pub key: &'static str,
    /// What it must be.
    pub why: &'static str,
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

    /// The keys that do not go with others; none in a declaration that can be compiled.
    #[must_use]
    pub fn clashes(&self) -> Vec<Clash> {
        let mut clashes = Vec::new();
        let mut no = |key, why| clashes.push(Clash { key, why });
        let alone = |single: &Option<Pointer>, lists: &[Pointer]| match (single, lists) {
            (None, _) => true,
            (Some(single), [list]) => single.is_sibling(list) && single != list,
            (Some(_), _) => false,
        };
        if self.items.is_empty() {
            no("items", "it names at least one list");
        }
        if self.results.is_empty() {
            no("results", "it names at least one list");
        }
        if self.items.iter().any(|items| items.tokens().is_empty()) {
            no("items", "it names a member: the whole body cannot be rewritten");
        }
        if nested(&self.items) {
            no("items", "of parallel lists none may hold another");
        }
        if nested(&self.results) {
            no("results", "of parallel lists none may hold another");
        }
        if !alone(&self.single.items, &self.items) {
            no("single.items", "it is another member beside the one list of items");
        }
        if !alone(&self.single.results, &self.results) {
            no("single.results", "it is another member beside the one list of results");
        }
        let single = self.single.items.is_some() || self.single.results.is_some() || self.single.wrap_scalar;
        if self.result_key.is_some()
            && (self.results.len() > 1 || self.index.is_some() || self.select == Select::Sorted || single)
        {
            no("resultKey", "it goes with one place in results, without index, select and single");
        }
        if self.select == Select::Sorted && self.index.is_none() {
            no("select", "Sorted needs index: say where a result names its item");
        }
        if self.select == Select::Sorted && self.results.len() > 1 {
            no("select", "Sorted goes with one list of results");
        }
        if self.index.as_ref().is_some_and(|index| index.tokens().is_empty()) {
            no("index", "it points inside a result");
        }
        if self.per_item_error.as_ref().is_some_and(|error| error.field.tokens().is_empty()) {
            no("perItemError.field", "it points inside a result");
        }
        let apart = |one: &[Pointer], other: &[Pointer]| {
            !one.iter().any(|one| other.iter().any(|other| one.holds(other) || other.holds(one)))
        };
        if nested(&self.id) || !apart(&self.id, &self.results) {
            no("id", "ids and results are different places");
        }
        let totals = &self.cost.totals;
        if nested(totals) || !apart(totals, &self.results) || !apart(totals, &self.id) {
            no("cost.totals", "counters, ids and results are different places");
        }
        if self.upstream_path.as_ref().is_some_and(|path| !path.starts_with('/') || path.contains(['?', '#', ' '])) {
            no("upstreamPath", "it starts with '/' and has no query");
        }
        if self.per_item_error.as_ref().is_some_and(|error| !(400..600).contains(&error.status)) {
            no("perItemError.status", "it is a status of 400 to 599");
        }
        clashes
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
        assert_eq!(spec().clashes(), []);
        assert!(!Spec { items: vec![pointer("")], ..spec() }.clashes().is_empty());
        assert!(!Spec { items: vec![pointer("/a"), pointer("/a/b")], ..spec() }.clashes().is_empty());
        assert!(!Spec { select: Select::Sorted, ..spec() }.clashes().is_empty());
        assert!(!Spec { upstream_path: Some("embed".to_owned()), ..spec() }.clashes().is_empty());
        assert!(!Spec { id: vec![pointer("/vectors/0")], ..spec() }.clashes().is_empty());
        let key = |spec: Spec| spec.clashes().first().map(|clash| clash.key);
        for (items, expected) in [("/in/text", Some("single.items")), ("/texts", Some("single.items")), ("/text", None)]
        {
            let single = Single { items: Some(pointer(items)), ..Single::default() };
            assert_eq!(key(Spec { single, ..spec() }), expected, "{items}");
        }
        let single = Single { wrap_scalar: true, ..Single::default() };
        assert_eq!(key(Spec { single, result_key: Some(pointer("/id")), ..spec() }), Some("resultKey"));
        assert_eq!(key(Spec { id: vec![pointer("/id"), pointer("/id")], ..spec() }), Some("id"));
        let totals = |at: &str| Cost { totals: vec![pointer(at)], ..Cost::default() };
        assert_eq!(key(Spec { cost: totals("/vectors"), ..spec() }), Some("cost.totals"));
        assert_eq!(key(Spec { cost: totals("/n"), id: vec![pointer("/n")], ..spec() }), Some("cost.totals"));
        assert_eq!(key(Spec { cost: totals("/n"), id: vec![pointer("/id")], ..spec() }), None);
    }
}
