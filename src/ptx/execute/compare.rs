//! Comparisons, and their combination with predicates.

use super::map2;
use crate::bits::{LaneValues, sign_extend, to_f32, truncate};
use crate::instruction::{BinaryOperator, OrderingSet, PredicateCombination, ScalarType};

pub(super) fn compare(comparison: OrderingSet, scalar: ScalarType, a: &LaneValues, b: &LaneValues) -> LaneValues {
    let holds = |ordering| u64::from(comparison.contains(ordering));
    match scalar {
        ScalarType::F32 => map2(a, b, |a, b| holds(to_f32(a).partial_cmp(&to_f32(b)))),
        ScalarType::Signed(width) => map2(a, b, |a, b| holds(Some(sign_extend(a, width).cmp(&sign_extend(b, width))))),
        _ => {
            let width = scalar.width();
            map2(a, b, |a, b| holds(Some(truncate(a, width).cmp(&truncate(b, width)))))
        }
    }
}

pub(super) fn combine(combination: PredicateCombination, result: &LaneValues, predicate: &LaneValues) -> LaneValues {
    map2(result, predicate, |result, predicate| {
        let predicate = predicate ^ u64::from(combination.negated);
        match combination.operator {
            BinaryOperator::Or => result | predicate,
            BinaryOperator::Xor => result ^ predicate,
            _ => result & predicate,
        }
    })
}
