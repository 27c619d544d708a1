//! The replacements in a batch response that turn it into the response for each client: results,
//! ids and counters. All of them are validated before any byte is written.

use bytes::Bytes;
use http::StatusCode;
use http::header::{HeaderMap, HeaderName, HeaderValue};

use super::envelope;
use super::results::LocatedResults;
use super::shares::CounterShares;
use super::token_ids;
use crate::call::{Call, MismatchKind, ResponseMismatch, SharedRequest};
use crate::items::{self, item_weight};
use crate::json::{self, JsonRules, JsonType, ObjectIndex, Span, kind, to_json_string};
use crate::merge;
use crate::pointer::Pointer;
use crate::shape::{CostShare, Counters, Measure, ProtocolShape, ResultLayout, TokenIds};
use crate::usage::{self, DividedCounter, ShareWeights};
use crate::{headers, ids};

/// The replacements, at the same positions for every client.
pub(super) struct SplitPlan<'a> {
    /// Body of the batch response.
    doc: &'a Bytes,
    /// Spans to replace, in order and disjoint.
    edits: Vec<(Span, ResponseEdit)>,
    results: LocatedResults,
    counters: Vec<DividedCounter>,
    /// Headers with a separate value for each client.
    member_headers: Vec<(HeaderName, Vec<String>)>,
    /// `true` if at least one counter is an estimate.
    estimated: bool,
}

#[derive(Debug, Clone, Copy)]
enum ResponseEdit {
    /// Removes a counter.
    Cut,
    /// Replaces the name of the results if the client used the single form.
    Name,
    /// Replaces the list at this index of `results.lists` by the client's part.
    List(usize),
    /// Replaces the first number of the shape of a tensor by the number of the client's rows.
    Rows,
    /// Replaces an id of the response.
    Id,
    /// Replaces the counter at this index of `counters` by the client's share.
    Counter(usize),
}

/// The body for one client, and its status if it differs from that of the upstream.
pub(super) struct MemberBody {
    pub(super) status: Option<StatusCode>,
    pub(super) body: Bytes,
}

// === impl SplitPlan ===

impl<'a> SplitPlan<'a> {
    /// Determines the replacements. `check_parts` checks that no part of the response quotes an
    /// input of another member. It is called once the results are known to match the items.
    pub(super) fn new(
        shape: &ProtocolShape,
        members: &[&Call],
        (doc, head): (&'a Bytes, &HeaderMap),
        check_parts: impl FnOnce(&LocatedResults) -> Result<(), ResponseMismatch>,
    ) -> Result<Self, ResponseMismatch> {
        json::validate(doc, JsonRules::ANSWER).map_err(|_| MismatchKind::NotJson)?;
        let root = ObjectIndex::new(doc, json::root_of_validated(doc));
        let results = LocatedResults::find(doc, &root, shape, members)?;
        check_parts(&results)?;
        let mut plan = Self {
            doc,
            edits: Vec::new(),
            results,
            counters: Vec::new(),
            member_headers: Vec::new(),
            estimated: false,
        };
        plan.add_lists(shape);
        for pointer in &shape.ids {
            if let Some(found) = root.find(pointer).map_err(MismatchKind::from)? {
                plan.edits.push((found.value, ResponseEdit::Id));
            }
        }
        let shares = CounterShares::new(doc, &plan.results, shape, members);
        if members.first().is_some_and(|leader| merge::requests_token_ids(shape, leader)) {
            plan.results.hidden = token_ids::hidden_parts(doc, &plan.results, shape)?;
        }
        plan.add_counters(&root, shape, &shares)?;
        plan.add_headers(shape, members, head, &shares.items);
        plan.edits.sort_by_key(|(span, _)| span.start);
        // Declared positions that overlap in this response cannot be replaced independently.
        if plan.edits.windows(2).any(|pair| pair[0].0.end > pair[1].0.start) {
            return Err(MismatchKind::Shape.into());
        }
        Ok(plan)
    }

    /// Adds the replacements of the lists of results, their names, and the number of rows of a
    /// tensor.
    fn add_lists(&mut self, shape: &ProtocolShape) {
        self.edits.extend(self.results.tensor.as_ref().map(|tensor| (tensor.count, ResponseEdit::Rows)));
        for (index, list) in self.results.lists.iter().enumerate() {
            self.edits.push((list.whole, ResponseEdit::List(index)));
            if let Some(key) = list.key.filter(|_| shape.single_result.is_some()) {
                self.edits.push((key, ResponseEdit::Name));
            }
        }
    }

    /// Divides the counters, and adds their replacements or removals.
    fn add_counters(
        &mut self,
        root: &ObjectIndex<'_>,
        shape: &ProtocolShape,
        shares: &CounterShares,
    ) -> Result<(), ResponseMismatch> {
        let shape_mismatch = |_| MismatchKind::Shape;
        let mut exact_only = false;
        let counters = match &shape.counters {
            Counters::None => Vec::new(),
            Counters::Usage(pointer) => match root.find(pointer).map_err(MismatchKind::from)? {
                Some(found) => {
                    check_cached_tokens(self.doc, found.value, shape)?;
                    usage::divide_usage(self.doc, found.value, &shares.items, shares.results.as_ref())
                        .map_err(shape_mismatch)?
                }
                None => Vec::new(),
            },
            Counters::Totals { at, share: CostShare::Drop } => {
                let (cuts, _) = items::removal_spans(self.doc, root.object, at).map_err(MismatchKind::from)?;
                self.edits.extend(cuts.into_iter().map(|cut| (cut, ResponseEdit::Cut)));
                Vec::new()
            }
            Counters::Totals { at, share } => {
                exact_only = *share == CostShare::Exact;
                let mut counters = Vec::new();
                for pointer in at {
                    if let Some(found) = root.find(pointer).map_err(MismatchKind::from)? {
                        counters.extend(
                            usage::divide_declared(self.doc, found.value, &shares.items).map_err(shape_mismatch)?,
                        );
                    }
                }
                counters
            }
        };
        if exact_only && counters.iter().any(|counter| !counter.exact) {
            return Err(MismatchKind::Shape.into());
        }
        for (index, counter) in counters.iter().enumerate() {
            self.estimated |= !counter.exact;
            self.edits.push((counter.span, ResponseEdit::Counter(index)));
        }
        self.counters = counters;
        Ok(())
    }

    /// Divides the counters in TEI's headers: the characters of each client are counted in its
    /// request, and tokens are divided like usage counters.
    fn add_headers(&mut self, shape: &ProtocolShape, members: &[&Call], head: &HeaderMap, shares: &ShareWeights) {
        if shape.share_by != Measure::Text {
            return;
        }
        if head.contains_key(headers::COMPUTE_CHARACTERS) {
            let counts = members.iter().map(|call| read_chars(call).to_string()).collect();
            self.member_headers.push((headers::COMPUTE_CHARACTERS, counts));
        }
        let tokens = head.get(headers::COMPUTE_TOKENS).map(HeaderValue::as_bytes);
        let tokens = tokens.filter(|value| envelope::is_token_count(value, members, 0));
        let tokens = tokens.and_then(|value| usage::divide_header(value, shares));
        if let Some((parts, exact)) = tokens {
            self.estimated |= !exact;
            self.member_headers.push((headers::COMPUTE_TOKENS, parts));
        }
    }

    /// Writes the headers that carry the client's own numbers.
    pub(super) fn write_headers(&self, member: usize, out: &mut HeaderMap) {
        for (name, values) in &self.member_headers {
            if let Some(value) = values.get(member).and_then(|value| HeaderValue::from_str(value).ok()) {
                out.insert(name.clone(), value);
            }
        }
        if self.estimated {
            out.insert(headers::USAGE, HeaderValue::from_static("estimated"));
        }
    }

    /// Writes the body for one client.
    pub(super) fn write(&self, member: usize, call: &Call, sent: &SharedRequest, shape: &ProtocolShape) -> MemberBody {
        if let Some(written) = self.write_failure(member, shape) {
            return written;
        }
        // The exact length, because elements differ in size: a buffer of the mean length would be
        // too small for some members and be reallocated.
        let mut out = Vec::with_capacity(self.results.reply_len(self.doc.len(), member) + ids::EDITS_LEN);
        let edits = self.edits.iter().copied();
        json::splice(self.doc, Span::whole(self.doc), edits, &mut out, |span, edit, out| match edit {
            ResponseEdit::Cut => {}
            ResponseEdit::Name => match shape.single_result.as_deref().filter(|_| call.found.scalar) {
                Some(name) => out.extend_from_slice(&to_json_string(name)),
                None => out.extend_from_slice(span.of(self.doc)),
            },
            ResponseEdit::List(list) => self.write_results(list, member, call, shape, out),
            ResponseEdit::Rows => {
                let rows = self.results.positions.get(member).map_or(0, Vec::len);
                out.extend_from_slice(rows.to_string().as_bytes());
            }
            ResponseEdit::Id => write_id(self.doc, span, call, sent, shape, out),
            ResponseEdit::Counter(index) => {
                let part = self.counters.get(index).and_then(|counter| counter.parts.get(member));
                out.extend_from_slice(part.map(String::as_bytes).unwrap_or_default());
            }
        });
        MemberBody { status: None, body: Bytes::from(out) }
    }

    /// Writes the client's results in place of a list: without the list itself if the client sent a
    /// scalar item and the protocol answers it with a bare result.
    fn write_results(&self, list: usize, member: usize, call: &Call, shape: &ProtocolShape, out: &mut Vec<u8>) {
        let is_list = !matches!(shape.results, ResultLayout::Map { .. });
        if !(call.found.scalar && shape.unwrap && is_list) {
            self.results.write_list(self.doc, list, member, out);
            return;
        }
        let start = self.results.starts.get(member).copied().unwrap_or(0);
        for position in self.results.positions.get(member).into_iter().flatten() {
            self.results.write_element(self.doc, list, *position, start, out);
        }
    }

    /// Returns the failure of a client with a single item that failed. In a call with several
    /// items, the failure stays in its place, because the other results of the client are valid.
    fn write_failure(&self, member: usize, shape: &ProtocolShape) -> Option<MemberBody> {
        let (pointer, status) = shape.per_item_error.as_ref()?;
        let [position] = self.results.positions.get(member)?.as_slice() else { return None };
        for (index, list) in self.results.lists.iter().enumerate() {
            let value = *list.values.get(*position)?;
            let found = json::find(self.doc, value, pointer).ok()?;
            if found.is_none_or(|found| matches!(found.value.of(self.doc), b"null" | b"false")) {
                continue;
            }
            let mut body = Vec::new();
            if !matches!(shape.results, ResultLayout::Map { .. }) {
                let start = self.results.starts.get(member).copied().unwrap_or(0);
                self.results.write_element(self.doc, index, *position, start, &mut body);
            } else {
                body.extend_from_slice(value.of(self.doc));
            }
            return Some(MemberBody { status: StatusCode::from_u16(*status).ok(), body: Bytes::from(body) });
        }
        None
    }
}

/// Returns the number of code points that the server reads for a call.
fn read_chars(call: &Call) -> u64 {
    let texts = call.found.slots.iter().flat_map(|slot| slot.items.iter().copied());
    let times = |with_each| if with_each { call.found.count() } else { 1 };
    let beside = call.found.shared_text.into_iter().flat_map(|(text, each)| std::iter::repeat_n(text, times(each)));
    texts.chain(beside).map(|text| item_weight(&call.body, text, &Measure::Text)).fold(0, u64::saturating_add)
}

/// Checks the number of cached tokens in a response of generated texts. vLLM reports only that of
/// the last prompt, and SGLang the sum.
pub(super) fn check_cached_tokens(doc: &[u8], usage: Span, shape: &ProtocolShape) -> Result<(), MismatchKind> {
    let is_sum = |token_ids| token_ids == TokenIds::AbsentUnlessRequested;
    if shape.generation.is_none_or(|generation| is_sum(generation.token_ids)) {
        return Ok(());
    }
    let cached = json::find(doc, usage, &Pointer::from_static("/prompt_tokens_details/cached_tokens"))?;
    let is_number = cached.is_some_and(|cached| kind(doc, cached.value.start) == JsonType::Number);
    if is_number { Err(MismatchKind::Usage) } else { Ok(()) }
}

/// Writes the id that the client would have received alone: derived from its request id if the
/// server derives ids from it (vLLM), else a random one of the same form.
pub(super) fn write_id(
    doc: &[u8],
    span: Span,
    call: &Call,
    sent: &SharedRequest,
    shape: &ProtocolShape,
    out: &mut Vec<u8>,
) {
    let header = call.head.headers.get(headers::REQUEST_ID).map(HeaderValue::as_bytes);
    let find_own = |pointer| json::find(&call.body, json::root(&call.body), pointer).ok().flatten();
    let is_text = |own: Span| kind(&call.body, own.start) == JsonType::String && own.len() > 2;
    if let Some(own) = shape.call_id.as_ref().and_then(find_own).map(|own| own.value).filter(|own| is_text(*own)) {
        out.extend_from_slice(own.of(&call.body));
        return;
    }
    match kind(doc, span.start) {
        JsonType::Number => out.extend_from_slice(&ids::random_like(span.of(doc), true)),
        JsonType::String => {
            let raw = span.inner_bytes(doc);
            // The server echoes the request id of the shared request. Text before it is the
            // server's only if it has the form of a prefix, such as `embd-`.
            let is_prefix = |before: &&[u8]| before.len() == ids::prefix_len(raw);
            let echoed = raw.strip_suffix(sent.request_id.as_bytes()).filter(is_prefix);
            let prefix = || raw.get(..ids::prefix_len(raw)).unwrap_or_default();
            let own = match (echoed, header) {
                (Some(prefix), Some(header)) => ids::derived_from_request_id(prefix, header),
                (Some(prefix), None) => ids::prefixed_hex(prefix),
                (None, Some(header)) if shape.id_from_request => ids::derived_from_request_id(prefix(), header),
                (None, _) => ids::random_like(raw, false),
            };
            out.push(b'"');
            out.extend_from_slice(&own);
            out.push(b'"');
        }
        JsonType::Object | JsonType::Array | JsonType::Bool | JsonType::Null => out.extend_from_slice(span.of(doc)),
    }
}
