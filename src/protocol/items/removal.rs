//! Removal of members from an object: each disappears with its key and one adjoining comma.

use crate::json::{self, DuplicateKey, Members, Span};
use crate::pointer::Pointer;

/// Returns the byte ranges to remove so that the values at `pointers` disappear, each with its key
/// and one adjoining comma, and the start offsets of these values.
///
/// # Errors
/// A key on a path occurs twice.
pub(crate) fn removal_spans(
    doc: &[u8],
    root: Span,
    pointers: &[Pointer],
) -> Result<(Vec<Span>, Vec<usize>), DuplicateKey> {
    let mut parents: Vec<(Span, Vec<usize>)> = Vec::new();
    let mut starts = Vec::new();
    for (index, pointer) in pointers.iter().enumerate() {
        let below = |other: &Pointer| other.is_prefix_of(pointer) && other != pointer;
        let again = pointers.iter().take(index).any(|other| other == pointer);
        let Some(found) = json::find(doc, root, pointer)? else { continue };
        let (Some(parent), false) = (found.parent, again || pointers.iter().any(below)) else { continue };
        if found.key.is_none() {
            continue;
        }
        starts.push(found.value.start);
        match parents.iter_mut().find(|(span, _)| *span == parent) {
            Some((_, cut)) => cut.push(found.value.start),
            None => parents.push((parent, vec![found.value.start])),
        }
    }
    starts.sort_unstable();
    let mut cuts: Vec<_> = parents.iter().flat_map(|(parent, cut)| cut_members(doc, *parent, cut)).collect();
    cuts.sort_unstable_by_key(|cut| cut.start);
    Ok((cuts, starts))
}

/// Returns the byte ranges to remove so that the members of an object whose values start at these
/// offsets disappear, each with one adjoining comma.
pub(crate) fn cut_members(doc: &[u8], object: Span, cut: &[usize]) -> Vec<Span> {
    let mut out = Vec::new();
    let mut kept_end = None;
    // Start of the current run of removed members, kept until the next retained member is found.
    let mut open: Option<Span> = None;
    for member in Members::new(doc, object) {
        if cut.contains(&member.value.start) {
            let start = open.map_or(member.key.start, |run| run.start);
            open = Some(Span { start, end: member.value.end });
            continue;
        }
        if let Some(run) = open.take() {
            out.push(Span { start: run.start, end: member.key.start });
        }
        kept_end = Some(member.value.end);
    }
    if let Some(run) = open {
        out.push(Span { start: kept_end.unwrap_or(run.start), end: run.end });
    }
    out
}
