//! Parses a call: its items, its weight, and its merge key.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::request::Parts;

use crate::batching::Weight;
use crate::call::{Call, MergeEligibility, RequestHead};
use crate::identity::DigestKey;
use crate::items::{self, ItemError, ItemSpans};
use crate::json::{self, CanonicalOptions, JsonRules, Members, Span, unescape};
use crate::merge_key::MergeKeyBuilder;
use crate::pointer::Pointer;
use crate::route::{Endpoint, MergeRule};
use crate::shape::{CostShare, Counters, Measure, Payload, ProtocolShape, ResultLayout, TensorPointers, UnbatchedIf};
use crate::stream_options::{StreamOptions, StreamOptionsError};
use crate::tokens::{CallText, NAME_MAX, TextMeter, TextSize};
use crate::v2::binary::Framing;
use crate::v2::grpc::frame::{self, FrameError};
use crate::v2::grpc::request::{self as grpc_request, InferRequest};
use crate::v2::request::{self, TensorRequest};
use crate::{UnmergeableReason, generation, head};

/// Additional field of the cost class of mergeable calls that request a stream.
const STREAM_CLASS: &[u8] = b"stream";

/// A call that is sent unbatched.
struct UnbatchedCall {
    reason: UnmergeableReason,
    items: usize,
}

/// A call that may be merged.
struct MergeableCall {
    key: MergeKeyBuilder,
    items: ItemSpans,
    /// The tensors of a JSON document, where the protocol has tensors instead of items.
    tensors: Option<TensorRequest>,
    /// The tensors of a gRPC message.
    message: Option<Box<InferRequest>>,
    /// Keys of the items in a result map, each of which a batch may have only once.
    exclusive: Vec<Box<[u8]>>,
    /// The options of a streamed response, if the call requests one.
    stream: Option<StreamOptions>,
    /// Position of the name of the model in the body; empty if the body names none.
    model: Span,
}

// === impl Endpoint ===

impl Endpoint {
    /// Returns the reason for which the head alone prevents merging. `None` means that the body may
    /// be read and merged.
    #[must_use]
    pub fn check_head(&self, head: &Parts) -> Option<UnmergeableReason> {
        head::check(head, &self.common, &self.shape)
    }

    /// Parses a call. A call that cannot be merged is marked as [`MergeEligibility::Unbatched`] with
    /// a reason; no call is rejected because of its content.
    #[must_use]
    pub fn parse_call(&self, head: &Parts, body: Bytes, secret: &DigestKey) -> Call {
        let mut class = MergeKeyBuilder::default();
        // The cost class is made of names rather than numbers, so that it keeps its meaning after a
        // reload that reorders routes, and in a later process.
        class.push_field(self.rules.method.as_str().as_bytes());
        class.push_field(self.rules.path.as_parts().concat().as_bytes());
        class.push_field(head.uri.path().as_bytes());
        let mut call = Call {
            merge: MergeEligibility::Unbatched(UnmergeableReason::ItemForm),
            items: 1,
            weight: Weight { sum: 1, max: 1 },
            bytes: body.len(),
            tenant: head::tenant(head, &self.common, secret),
            cost_class: Box::default(),
            exclusive: Vec::new(),
            streaming: head::is_streaming_request(&head.headers),
            body,
            head: RequestHead { method: head.method.clone(), uri: head.uri.clone(), headers: head.headers.clone() },
            attachment: None,
            sampled_trace: head::sampled_trace(&head.headers),
            text: None,
            found: ItemSpans::default(),
            tensors: None,
            stream: None,
            message: None,
        };
        // Text generation that is not merged has no items. Only the properties are read by which
        // the call is scheduled: its model, its texts, the maximum length of its response, and
        // whether that is a stream.
        if let Payload::Generation(streams) = self.shape.payload {
            let mut meter = TextMeter::new(self.rules.tokenizer.as_deref());
            let found = generation::read(streams, &call.body, self.rules.item_nesting_max, &mut meter);
            class.push_field(&found.model);
            // The time to the first byte of a stream is not that of a whole response.
            class.push_field(&[u8::from(found.streaming)]);
            call.weight = found.weight();
            call.text = self.call_text(head, &found.model, (found.prompt, found.prompt)).map(|text| {
                let is_whole = found.is_whole && generation::reports_whole_prompt(head.uri.path());
                Box::new(CallText { output_max: found.output_max, is_whole, ..text })
            });
            call.streaming |= found.streaming;
            let is_off = self.rules.merge == MergeRule::Never;
            let reason = if is_off { UnmergeableReason::MergeNever } else { UnmergeableReason::Generation };
            call.merge = MergeEligibility::Unbatched(reason);
            call.cost_class = class.into_bytes();
            return call;
        }
        match self.mergeable(head, &call.body, secret) {
            Ok(found) => {
                class.push_field(found.model.of(&call.body));
                let (form, count) = Self::form(&call.body, &found);
                (call.weight, call.text) = self.weigh(head, &call.body, &found, count);
                class.push_field(&[form]);
                // A server may refuse streams of several prompts and accept other lists of them.
                if found.stream.is_some() {
                    class.push_field(STREAM_CLASS);
                }
                call.items = u32::try_from(count).unwrap_or(u32::MAX);
                call.bytes = call.bytes.saturating_add(found.items.repeated_bytes);
                call.tensors = found.tensors;
                call.message = found.message;
                call.exclusive = found.exclusive;
                call.streaming |= found.stream.is_some();
                call.stream = found.stream;
                call.found = found.items;
                call.merge = match self.rules.merge {
                    MergeRule::Auto | MergeRule::Always => MergeEligibility::With(found.key.into_bytes()),
                    MergeRule::Never => MergeEligibility::Unbatched(UnmergeableReason::MergeNever),
                };
            }
            Err(unbatched) => {
                let count = u32::try_from(unbatched.items).unwrap_or(u32::MAX);
                call.items = count;
                call.weight = Weight { sum: u64::from(count), max: 1 };
                call.streaming |= unbatched.reason == UnmergeableReason::Streaming;
                call.merge = MergeEligibility::Unbatched(unbatched.reason);
            }
        }
        call.cost_class = class.into_bytes();
        call
    }

    /// Returns the coarse form of the items of a call, which is part of its cost class, and their
    /// number.
    fn form(body: &[u8], found: &MergeableCall) -> (u8, usize) {
        if let Some(tensors) = &found.tensors {
            return (tensors.coarse_form(), tensors.rows);
        }
        if let Some(message) = &found.message {
            return (message.coarse_form(), message.rows);
        }
        (items::coarse_form(body, &found.items), found.items.count())
    }

    /// Returns the weight of the `count` items of a call, and the sizes of their texts if the weight
    /// is an estimate.
    fn weigh(&self, head: &Parts, body: &[u8], found: &MergeableCall, count: usize) -> (Weight, Option<Box<CallText>>) {
        if found.tensors.is_some() || found.message.is_some() {
            return (Weight { sum: u64::try_from(count).unwrap_or(u64::MAX), max: 1 }, None);
        }
        if self.shape.weight != Measure::Tokens {
            return (items::weigh(body, &found.items, &self.shape.weight), None);
        }
        let mut meter = TextMeter::new(self.rules.tokenizer.as_deref());
        let (weight, texts) = items::weigh_texts(body, &found.items, &mut meter);
        let text = self.call_text(head, found.model.of(body), (texts.sum, texts.heaviest));
        (weight, text.map(Box::new))
    }

    /// Returns the sizes of the texts of a call, from which its weight is computed at the token
    /// rates that are learned for its model. `None` if a tokenizer counts the tokens, or if
    /// responses do not report them.
    fn call_text(&self, head: &Parts, model: &[u8], (sum, heaviest): (TextSize, TextSize)) -> Option<CallText> {
        if self.rules.tokenizer.is_some() || !self.reports_tokens() {
            return None;
        }
        // Servers without a model in their calls have one for each path.
        let model = if model.is_empty() { head.uri.path().as_bytes() } else { model };
        let name = [self.label.as_str().as_bytes(), b" ", model].concat();
        (name.len() <= NAME_MAX).then(|| CallText { model: name.into(), sum, heaviest, output_max: 0, is_whole: true })
    }

    /// Parses a call that may be merged. Head and size are checked before the body is read.
    fn mergeable(&self, head: &Parts, body: &Bytes, secret: &DigestKey) -> Result<MergeableCall, UnbatchedCall> {
        if let Some(reason) = self.check_head(head) {
            return Err(reason.into());
        }
        if body.len() > self.rules.item_bytes_max {
            return Err(UnmergeableReason::TooLarge.into());
        }
        let framing = match self.shape.payload {
            Payload::GrpcTensors => return self.mergeable_message(head, body, secret),
            Payload::Items | Payload::Generation(_) => Framing::Json,
            Payload::Tensors => Framing::read(&head.headers, body.len()).map_err(|_| ItemError::Form)?,
        };
        let doc = &framing.document(body)[..];
        let rules = JsonRules { lenient: self.shape.lenient, strict: true, nesting_max: self.rules.item_nesting_max };
        json::validate(doc, rules).map_err(|_| UnmergeableReason::AmbiguousJson)?;
        let root = json::root_of_validated(doc);
        if json::kind(doc, root.start) != json::JsonType::Object {
            return Err(UnmergeableReason::ItemForm.into());
        }
        if let Some(reason) = unbatched_field(doc, root, &self.shape) {
            return Err(reason.into());
        }
        let stream = StreamOptions::read(doc, root, &self.shape, &self.rules.merge_over_fields)?;
        if stream.is_none() && head::is_streaming_request(&head.headers) {
            return Err(UnmergeableReason::Streaming.into());
        }
        for member in self.shape.unbatched_members {
            if json::find(doc, root, &Pointer::from_static(member)).map_err(ItemError::from)?.is_some() {
                return Err(UnmergeableReason::ItemForm.into());
            }
        }
        let tensors = match self.shape.payload {
            Payload::Items | Payload::Generation(_) | Payload::GrpcTensors => None,
            Payload::Tensors => Some(request::read((body, framing), doc, root, self.rules.item_count_max)?),
        };
        let mut items = match &tensors {
            None => items::locate(doc, root, &self.shape, self.rules.item_count_max)?,
            Some(tensors) => tensors.to_spans(),
        };
        if doc.len().saturating_add(items.repeated_bytes) > self.rules.item_bytes_max {
            return Err(UnmergeableReason::TooLarge.into());
        }
        let mut key = self.begin_key(head, secret);
        self.write_fields(doc, root, &mut items, &mut key)?;
        match &tensors {
            None => self.write_class(doc, &items, &mut key)?,
            Some(tensors) => key.push_field(&tensors.key_class(&head.headers)),
        }
        let exclusive = result_map_keys(doc, &items, &self.shape)?;
        let model =
            self.shape.model.as_ref().map(|model| json::find(doc, root, model)).transpose().map_err(ItemError::from)?;
        let model = model.flatten().map_or(Span { start: 0, end: 0 }, |found| found.value);
        Ok(MergeableCall { key, items, tensors, message: None, exclusive, stream, model })
    }

    /// Returns a key with the properties of the endpoint and of the head.
    fn begin_key(&self, head: &Parts, secret: &DigestKey) -> MergeKeyBuilder {
        let mut key = MergeKeyBuilder::new();
        // Generation, route and label separate the keys of different endpoints and rule versions.
        key.push_field(&self.generation.to_le_bytes());
        key.push_count(self.route);
        key.push_field(self.label.as_str().as_bytes());
        head::write_key(head, &self.rules, &self.common, secret, &mut key);
        key
    }

    /// Parses a call whose body is a gRPC message. The fields in `mergeOver` and `mergeOn` of a
    /// policy are those of JSON documents, so they have no effect here: all fields of the message
    /// are compared.
    fn mergeable_message(
        &self,
        head: &Parts,
        body: &Bytes,
        secret: &DigestKey,
    ) -> Result<MergeableCall, UnbatchedCall> {
        if frame::message(body) == Err(FrameError::Compressed) {
            return Err(UnmergeableReason::Encoding.into());
        }
        let message = grpc_request::read(body, self.rules.item_count_max)?;
        let mut key = self.begin_key(head, secret);
        key.push_field(&message.fields);
        // One empty field for each, so that the key has the fields that `key_parts` expects.
        self.rules.merge_on_fields.iter().for_each(|_| key.push_field(b""));
        let content_type = head.headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
        key.push_field(&[&message.key_class(), content_type].concat());
        let (items, model) = (message.to_spans(), message.model_span);
        let message = Some(Box::new(message));
        Ok(MergeableCall { key, items, tensors: None, message, exclusive: Vec::new(), stream: None, model })
    }

    /// Writes everything in the body except the items to the key, in canonical form, and determines
    /// the bytes to cut from shared calls.
    fn write_fields(
        &self,
        doc: &[u8],
        root: Span,
        items: &mut ItemSpans,
        key: &mut MergeKeyBuilder,
    ) -> Result<(), ItemError> {
        // Members that may differ. They are removed from shared calls and left out of the key.
        let over: Vec<Pointer> = self.rules.merge_over_fields.iter().chain(&self.shape.call_id).cloned().collect();
        let (cuts, mut without) = items::removal_spans(doc, root, &over)?;
        // A removed field must neither contain items nor be part of one.
        let count = items.tensor.as_ref().map(|tensor| tensor.count);
        let replaced = || items.slots.iter().map(|slot| slot.value).chain(count);
        let touches = |value: Span| cuts.iter().any(|cut| cut.start < value.end && value.start < cut.end);
        if replaced().any(touches) {
            return Err(ItemError::Form);
        }
        // The items are left out of the key as well.
        without.extend(replaced().map(|value| value.start));
        without.sort_unstable();
        // A key that differs only in case from one on the path to these positions is ambiguous.
        let pointers: Vec<&Pointer> = self
            .shape
            .positions()
            .flatten()
            .chain(&self.shape.single)
            .chain(self.shape.tensor.iter().flat_map(TensorPointers::members))
            .chain(&over)
            .chain(&self.rules.merge_on_fields)
            .collect();
        let mut text = Vec::new();
        let options = CanonicalOptions { known: self.shape.known, pointers: &pointers, without: &without };
        json::write_canonical(doc, root, options, &mut text)?;
        key.push_field(&text);
        for pointer in &self.rules.merge_on_fields {
            text.clear();
            if let Some(found) = json::find(doc, root, pointer)? {
                json::write_canonical(doc, found.value, CanonicalOptions::default(), &mut text)?;
            }
            key.push_field(&text);
        }
        items.cuts = cuts;
        Ok(())
    }

    /// Writes the class of the items to the key, and the items themselves where counters can be
    /// divided only if all items are equal.
    fn write_class(&self, doc: &[u8], items: &ItemSpans, key: &mut MergeKeyBuilder) -> Result<(), ItemError> {
        let mut class = Vec::new();
        items::class(doc, items, &self.shape, &mut class)?;
        key.push_field(&class);
        // The name of the items is not among the fields, from which they are left out.
        if self.shape.is_sole_member {
            let name = Members::new(doc, json::root(doc)).next().map(|member| member.key.inner_bytes(doc));
            key.push_field(&unescape(name.unwrap_or_default()));
        }
        // A total over texts can be divided exactly only if all items are equal, so the item
        // becomes part of the key.
        if let Counters::Totals { share: CostShare::Exact, .. } = self.shape.counters
            && matches!(self.shape.share_by, Measure::Bytes | Measure::Chars)
        {
            let mut same =
                items.slots.iter().map(|slot| slot.items.iter().map(|item| item.of(doc)).collect::<Vec<_>>());
            if same.any(|slot| slot.windows(2).any(|pair| pair[0] != pair[1])) {
                return Err(ItemError::Form);
            }
            for slot in &items.slots {
                key.push_field(slot.items.first().map_or(&[], |item| item.of(doc)));
            }
        }
        Ok(())
    }
}

/// Returns the reason for which a field of the body prevents merging.
fn unbatched_field(doc: &[u8], root: Span, shape: &ProtocolShape) -> Option<UnmergeableReason> {
    for member in Members::new(doc, root) {
        let key = unescape(member.key.inner_bytes(doc));
        let value = member.value.of(doc);
        // Servers of the known protocols interpret `1` and `"true"` as true. On a Generic route,
        // the field may have any meaning.
        let is_requested = value == b"true" || (!shape.known.is_empty() && !matches!(value, b"false" | b"null"));
        let is_mergeable = shape.merges_streams() && value == b"true";
        if *key == *b"stream" && is_requested && !is_mergeable {
            return Some(UnmergeableReason::Streaming);
        }
        let Some((_, when)) = shape.unbatched_fields.iter().find(|(name, _)| *name.as_bytes() == *key) else {
            continue;
        };
        let applies = match when {
            UnbatchedIf::Present => true,
            UnbatchedIf::Set => value != b"null",
            UnbatchedIf::NotFalse => value != b"false",
            UnbatchedIf::UnlessOne => !matches!(value, b"null" | b"1"),
            UnbatchedIf::UnlessEqual(other) => value != b"null" && value != field_or_one(doc, root, other),
            UnbatchedIf::List => value.first() == Some(&b'['),
            UnbatchedIf::OneOf(words) => {
                words.iter().any(|word| *word.as_bytes() == *unescape(member.value.inner_bytes(doc)))
            }
        };
        if applies {
            return Some(UnmergeableReason::ItemForm);
        }
    }
    None
}

/// Returns the value of a top-level field as written, or one if the field is absent or null.
fn field_or_one<'a>(doc: &'a [u8], root: Span, name: &str) -> &'a [u8] {
    let is_named = |member: &json::Member| *unescape(member.key.inner_bytes(doc)) == *name.as_bytes();
    let value = Members::new(doc, root).find(is_named).map(|member| member.value.of(doc));
    value.filter(|value| *value != b"null").unwrap_or(b"1")
}

/// Returns the keys that the items will have in a result map.
fn result_map_keys(doc: &[u8], items: &ItemSpans, shape: &ProtocolShape) -> Result<Vec<Box<[u8]>>, ItemError> {
    let ResultLayout::Map { key, .. } = &shape.results else { return Ok(Vec::new()) };
    let spans = items.slots.first().map(|slot| slot.items.as_slice()).unwrap_or_default();
    let mut keys = Vec::with_capacity(spans.len());
    for item in spans {
        keys.push(map_key(doc, *item, key)?.ok_or(ItemError::Form)?);
    }
    let mut sorted: Vec<_> = keys.iter().collect();
    sorted.sort_unstable();
    if sorted.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(ItemError::Form);
    }
    Ok(keys)
}

/// Returns the key of an item's result in a result map: the content of a string, or an integer as
/// written.
pub(crate) fn map_key(doc: &[u8], item: Span, key: &Pointer) -> Result<Option<Box<[u8]>>, ItemError> {
    let Some(found) = json::find(doc, item, key)? else { return Ok(None) };
    Ok(match json::kind(doc, found.value.start) {
        json::JsonType::String => Some(unescape(found.value.inner_bytes(doc)).into_owned().into_boxed_slice()),
        json::JsonType::Number if json::is_integer(found.value.of(doc)) => Some(found.value.of(doc).into()),
        _ => None,
    })
}

// === impl UnbatchedCall ===

impl From<UnmergeableReason> for UnbatchedCall {
    fn from(reason: UnmergeableReason) -> Self {
        Self { reason, items: 1 }
    }
}

impl From<StreamOptionsError> for UnbatchedCall {
    fn from(error: StreamOptionsError) -> Self {
        match error {
            StreamOptionsError::Ambiguous => UnmergeableReason::AmbiguousJson.into(),
            StreamOptionsError::Unmergeable => UnmergeableReason::Streaming.into(),
        }
    }
}

impl From<ItemError> for UnbatchedCall {
    fn from(refusal: ItemError) -> Self {
        match refusal {
            ItemError::Ambiguous => UnmergeableReason::AmbiguousJson.into(),
            ItemError::Form => UnmergeableReason::ItemForm.into(),
            ItemError::Many(items) => Self { reason: UnmergeableReason::ClientBatchFull, items },
        }
    }
}
