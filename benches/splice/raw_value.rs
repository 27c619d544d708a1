//! The other side: the same work as an application of `serde_json` does it, with values that are
//! borrowed and never parsed.

use std::borrow::Cow;
use std::collections::BTreeMap;

use http::header::{ACCEPT_ENCODING, CONTENT_LENGTH};
use http::{HeaderMap, HeaderValue};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

#[derive(Serialize, Deserialize)]
struct Response<'a> {
    id: Cow<'a, str>,
    object: &'a str,
    created: u64,
    model: Cow<'a, str>,
    #[serde(borrow)]
    data: Vec<Embedding<'a>>,
    usage: Usage,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
struct Embedding<'a> {
    index: usize,
    object: &'a str,
    #[serde(borrow)]
    embedding: &'a RawValue,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
struct Usage {
    prompt_tokens: u64,
    total_tokens: u64,
    completion_tokens: u64,
}

/// A request, with its values as they are written.
pub(crate) type Request<'a> = BTreeMap<Cow<'a, str>, &'a RawValue>;

/// Splits a response among members with one item each.
pub(crate) fn split(body: &[u8], members: usize) -> Vec<Vec<u8>> {
    let response: Response<'_> = serde_json::from_slice(body).unwrap();
    assert_eq!(response.data.len(), members);
    let mut by_index: Vec<Option<Embedding<'_>>> = vec![None; members];
    for embedding in response.data {
        assert!(by_index[embedding.index].replace(embedding).is_none());
    }
    let count = u64::try_from(members).unwrap();
    let usage = Usage {
        prompt_tokens: response.usage.prompt_tokens / count,
        total_tokens: response.usage.total_tokens / count,
        completion_tokens: response.usage.completion_tokens / count,
    };
    let share = body.len() / members + 512;
    let write = |(member, embedding): (usize, Option<Embedding<'_>>)| {
        let part = Response {
            id: Cow::Owned(format!("embd-{member:032x}")),
            object: response.object,
            created: response.created,
            model: response.model.clone(),
            data: vec![Embedding { index: 0, ..embedding.unwrap() }],
            usage,
        };
        let mut out = Vec::with_capacity(share);
        serde_json::to_writer(&mut out, &part).unwrap();
        out
    };
    by_index.into_iter().enumerate().map(write).collect()
}

/// Parses requests.
pub(crate) fn parse(bodies: &[String]) -> Vec<Request<'_>> {
    bodies.iter().map(|body| serde_json::from_slice(body.as_bytes()).unwrap()).collect()
}

/// Merges requests that are equal except for their texts, with the head of the first one.
pub(crate) fn merge(head: &HeaderMap, requests: &[Request<'_>]) -> (HeaderMap, Vec<u8>) {
    let (leader, others) = requests.split_first().unwrap();
    let mut size = 0;
    let mut items: Vec<&RawValue> = Vec::with_capacity(requests.len());
    for request in requests {
        let item = request["input"];
        size += item.get().len();
        // A list may hold several items.
        if item.get().starts_with('[') {
            items.extend(serde_json::from_str::<Vec<&RawValue>>(item.get()).unwrap());
        } else {
            items.push(item);
        }
    }
    let is_same = |(name, value): (&Cow<'_, str>, &&RawValue)| {
        name == "input" || leader.get(name).is_some_and(|own| own.get() == value.get())
    };
    assert!(others.iter().all(|other| other.len() == leader.len() && other.iter().all(is_same)));
    // Written by hand, so that the items are copied once.
    let mut out = Vec::with_capacity(size + 1024);
    for (place, (name, value)) in leader.iter().enumerate() {
        out.push(if place == 0 { b'{' } else { b',' });
        serde_json::to_writer(&mut out, name).unwrap();
        out.push(b':');
        match &**name {
            "input" => serde_json::to_writer(&mut out, &items).unwrap(),
            _ => serde_json::to_writer(&mut out, value).unwrap(),
        }
    }
    out.push(b'}');
    let mut head = head.clone();
    head.remove(ACCEPT_ENCODING);
    head.insert(CONTENT_LENGTH, HeaderValue::from(out.len()));
    (head, out)
}
