//! Request heads: eligibility for merging, identity of the client, the part of the merge key they
//! contribute, and the head of a shared call.

use std::borrow::Cow;

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Uri, Version};

use crate::headers::{self, HeaderClass};
use crate::identity::{DigestKey, PeerIdentity, Tenant};
use crate::merge_key::MergeKeyBuilder;
use crate::route::{RouteRules, SharedHeaderRules};
use crate::shape::{Payload, ProtocolShape};
use crate::v2::{binary, grpc};
use crate::{Call, UnmergeableReason};

/// Class of `Accept` headers. Calls of the class `Json` may share a batch with different ones.
#[derive(Debug, PartialEq, Eq)]
enum AcceptClass {
    /// JSON, any type, or no header.
    Json,
    /// An event stream.
    Stream,
    /// Any other value.
    Other,
}

/// Returns the reason for which the head alone prevents a call from being merged.
pub(crate) fn check(head: &Parts, common: &SharedHeaderRules, shape: &ProtocolShape) -> Option<UnmergeableReason> {
    let headers = &head.headers;
    let mut types = headers.get_all(header::CONTENT_TYPE).iter();
    // A length of the document in the head means that binary data follows it.
    let payload = shape.payload;
    let is_binary = payload == Payload::Tensors && headers.contains_key(binary::HEADER_LENGTH);
    let is_expected = |value: &HeaderValue| match payload {
        Payload::GrpcTensors => grpc::is_content_type(value),
        Payload::Tensors if shape.is_framed_by_type => {
            binary::is_framing_type(value) && !headers.contains_key(binary::HEADER_LENGTH)
        }
        Payload::Items | Payload::Tensors | Payload::Generation(_) => {
            is_json(value) || is_binary && is_token(value, b"application/octet-stream")
        }
    };
    // Triton's client over HTTP sends no type.
    let is_typed = types.next().map_or(payload == Payload::Tensors, is_expected) && types.next().is_none();
    let is_other_grpc =
        || payload == Payload::GrpcTensors && (head.version != Version::HTTP_2 || grpc::is_compressed(headers));
    if !is_typed
        || is_other_grpc()
        || headers.contains_key(header::CONTENT_ENCODING)
        || headers::has_other_coding(headers)
    {
        return Some(UnmergeableReason::Encoding);
    }
    for name in headers.keys() {
        let is_repeated = || headers.get_all(name).iter().nth(1).is_some();
        let unbatched = match headers::classify(name) {
            HeaderClass::Unbatched => true,
            _ if common.is_identity(name) => {
                // HTTP/2 allows a client to split its cookies into several fields (RFC 9113,
                // section 8.2.3).
                is_repeated() && !(*name == header::COOKIE && head.version == Version::HTTP_2)
            }
            HeaderClass::Ignored => *name == header::EXPECT && !expects_continue(headers),
            HeaderClass::Behaviour => *name == header::HOST && is_repeated(),
            HeaderClass::Identity | HeaderClass::HopByHop => false,
        };
        if unbatched {
            return Some(UnmergeableReason::Header);
        }
    }
    if !is_one_host(&head.uri, headers) {
        return Some(UnmergeableReason::Header);
    }
    // A protocol that generates texts may merge streams, which its body requests.
    (accept(headers) == AcceptClass::Stream && !shape.merges_streams()).then_some(UnmergeableReason::Streaming)
}

/// Returns `true` if the head requests a streamed response.
pub(crate) fn is_streaming_request(headers: &HeaderMap) -> bool {
    accept(headers) == AcceptClass::Stream
}

/// Returns the tenant of a call: named by the tenant header if the policy defines one, else derived
/// from the identity headers and the client certificate.
pub(crate) fn tenant(head: &Parts, common: &SharedHeaderRules, secret: &DigestKey) -> Tenant {
    let named = common.tenant_header.as_ref().and_then(|name| head.headers.get(name));
    if let Some(value) = named {
        return secret.tenant(value.as_bytes());
    }
    identity(head, common, secret).map_or(Tenant::ANONYMOUS, Tenant::from_digest)
}

/// Writes the part of the head that must be equal: every header that is not listed as belonging to
/// a single call, and the identity of the client as a digest.
pub(crate) fn write_key(
    head: &Parts,
    rules: &RouteRules,
    common: &SharedHeaderRules,
    secret: &DigestKey,
    key: &mut MergeKeyBuilder,
) {
    key.push_field(head.method.as_str().as_bytes());
    key.push_field(head.uri.path_and_query().map_or("", http::uri::PathAndQuery::as_str).as_bytes());
    key.push_field(requested_host(&head.uri, &head.headers).unwrap_or_default().as_bytes());
    key.push_field(&identity(head, common, secret).unwrap_or_default());
    let json = accept(&head.headers) == AcceptClass::Json;
    key.push_count(usize::from(json));
    if !json {
        key.push_header(&head.headers, &header::ACCEPT);
    }
    let nominated = headers::nominated_headers(&head.headers);
    let is_copied = |name: &&HeaderName| is_forwarded(name, rules, common) && !nominated.contains(name);
    let mut names: Vec<&HeaderName> = head.headers.keys().filter(is_copied).collect();
    names.sort_unstable_by_key(|name| name.as_str());
    key.push_count(names.len());
    for name in names.into_iter().chain(&rules.merge_on_headers) {
        key.push_field(name.as_str().as_bytes());
        key.push_header(&head.headers, name);
    }
}

/// Returns `true` if a header is part of the merge key and is copied to a shared call: it may
/// change the response, and neither the policy nor this module handles it in another way.
fn is_forwarded(name: &HeaderName, rules: &RouteRules, common: &SharedHeaderRules) -> bool {
    let treated = [header::HOST, header::ACCEPT, header::CONTENT_TYPE].contains(name) || common.is_identity(name);
    headers::classify(name) == HeaderClass::Behaviour
        && !treated
        && !common.deadline_headers.contains(name)
        && common.priority_header.as_ref() != Some(name)
        && !rules.merge_over_headers.contains(name)
}

/// Returns the head of a shared call without its generated ids: the headers of the leader that all
/// members have in common.
pub(crate) fn shared_head(members: &[&Call], rules: &RouteRules, common: &SharedHeaderRules) -> HeaderMap {
    let Some(leader) = members.first().map(|call| &call.head) else { return HeaderMap::new() };
    // The ids of the call come on top.
    let mut out = HeaderMap::with_capacity(leader.headers.len() + 4);
    let host = match leader.uri.authority() {
        Some(authority) => HeaderValue::from_str(authority.as_str()).ok(),
        None => leader.headers.get(header::HOST).cloned(),
    };
    if let Some(host) = host {
        out.insert(header::HOST, host);
    }
    out.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    for value in shared_accept(members) {
        out.append(header::ACCEPT, value);
    }
    if let Some(cookie) = cookie(&leader.headers).and_then(|value| HeaderValue::from_bytes(&value).ok()) {
        out.insert(header::COOKIE, cookie);
    }
    let nominated = headers::nominated_headers(&leader.headers);
    for (name, value) in &leader.headers {
        let identity = common.is_identity(name) && *name != header::COOKIE;
        let is_copied = is_forwarded(name, rules, common) && !nominated.contains(name);
        let on = rules.merge_on_headers.contains(name) && is_forwarded_merge_on(name, common);
        if identity || is_copied || on {
            out.append(name.clone(), value.clone());
        }
    }
    out
}

/// Returns `true` if a header listed in `mergeOn` is forwarded although its class is otherwise
/// ignored. Headers that every shared call generates itself are excluded.
fn is_forwarded_merge_on(name: &HeaderName, common: &SharedHeaderRules) -> bool {
    let own =
        [headers::REQUEST_ID, headers::TRACEPARENT, headers::GRPC_TIMEOUT, header::ACCEPT_ENCODING, header::EXPECT]
            .contains(name)
            || [header::HOST, header::CONTENT_TYPE, header::CONTENT_LENGTH, header::ACCEPT].contains(name);
    let class = headers::classify(name);
    !own && !matches!(class, HeaderClass::HopByHop | HeaderClass::Unbatched)
        && !common.deadline_headers.contains(name)
        && *name != header::COOKIE
}

/// Returns the `Accept` headers of a shared call. All members have the same class; within the JSON
/// class, a member that names `application/json` takes precedence.
fn shared_accept(members: &[&Call]) -> Vec<HeaderValue> {
    let named =
        |call: &&&Call| call.head.headers.get(header::ACCEPT).is_some_and(|value| is_token(value, b"application/json"));
    let from = members
        .iter()
        .find(named)
        .or_else(|| members.iter().find(|call| call.head.headers.contains_key(header::ACCEPT)));
    from.map(|call| call.head.headers.get_all(header::ACCEPT).iter().cloned().collect()).unwrap_or_default()
}

/// Returns the deadline header that a member used, starting with the leader.
pub(crate) fn deadline_header(members: &[&Call], common: &SharedHeaderRules) -> Option<HeaderName> {
    members.iter().find_map(|call| {
        let has = |name: &&HeaderName| call.head.headers.contains_key(*name);
        let own = common.deadline_headers.iter().find(has);
        own.or(Some(&headers::GRPC_TIMEOUT).filter(has)).cloned()
    })
}

/// Returns `true` if the trace of a call is sampled; `None` if the call is not traced.
pub(crate) fn sampled_trace(headers: &HeaderMap) -> Option<bool> {
    headers.get(headers::TRACEPARENT).map(|value| is_sampled(value.as_bytes()))
}

/// Returns the sampled flag of a `traceparent` value (W3C Trace Context).
fn is_sampled(traceparent: &[u8]) -> bool {
    let flags = traceparent.split(|byte| *byte == b'-').nth(3).and_then(|flags| std::str::from_utf8(flags).ok());
    flags.and_then(|flags| u8::from_str_radix(flags, 16).ok()).is_some_and(|flags| flags & 1 == 1)
}

/// Returns a digest of the client certificate and of all identity headers, or `None` if there are
/// none.
fn identity(head: &Parts, common: &SharedHeaderRules, secret: &DigestKey) -> Option<[u8; 32]> {
    let headers = &head.headers;
    let peer = head.extensions.get::<PeerIdentity>();
    let mut names: Vec<&HeaderName> = headers.keys().filter(|name| common.is_identity(name)).collect();
    if names.is_empty() && peer.is_none() {
        return None;
    }
    names.sort_unstable_by_key(|name| name.as_str());
    let mut parts: Vec<Cow<'_, [u8]>> = Vec::new();
    if let Some(peer) = peer {
        // No header can have this name.
        parts.extend([Cow::Borrowed(&b"\0peer"[..]), Cow::Borrowed(peer.bytes())]);
    }
    for name in names {
        parts.push(Cow::Borrowed(name.as_str().as_bytes()));
        if *name == header::COOKIE {
            parts.extend(cookie(headers).map(Cow::Owned));
        } else {
            parts.extend(headers.get_all(name).iter().map(|value| Cow::Borrowed(value.as_bytes())));
        }
    }
    Some(secret.digest(parts.iter().map(AsRef::as_ref)))
}

/// Joins all cookies into one value, as in a single field.
fn cookie(headers: &HeaderMap) -> Option<Vec<u8>> {
    let values: Vec<&[u8]> = headers.get_all(header::COOKIE).iter().map(HeaderValue::as_bytes).collect();
    (!values.is_empty()).then(|| values.join(&b"; "[..]))
}

/// Returns the requested host, from the authority or from the `Host` header depending on the HTTP
/// version.
fn requested_host<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> Option<Cow<'a, str>> {
    match uri.authority() {
        Some(authority) => Some(Cow::Borrowed(authority.as_str())),
        None => headers.get(header::HOST).map(|value| String::from_utf8_lossy(value.as_bytes())),
    }
}

/// Returns `true` if `Host` is text and equal to the authority of the target, if the call has both,
/// and the authority has no user information.
fn is_one_host(uri: &Uri, headers: &HeaderMap) -> bool {
    let host = headers.get(header::HOST);
    if host.is_some_and(|value| value.to_str().is_err()) {
        return false;
    }
    let Some(authority) = uri.authority() else { return true };
    let agrees = host.is_none_or(|value| value.as_bytes().eq_ignore_ascii_case(authority.as_str().as_bytes()));
    agrees && !authority.as_str().contains('@')
}

/// Returns `true` for `application/json` with no parameter except a UTF-8 charset.
fn is_json(value: &HeaderValue) -> bool {
    let mut parts = value.as_bytes().split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
    let json = parts.next().is_some_and(|kind| kind.eq_ignore_ascii_case(b"application/json"));
    json && parts.all(|parameter| parameter.is_empty() || is_utf8_charset(parameter))
}

fn is_utf8_charset(parameter: &[u8]) -> bool {
    let mut parts = parameter.splitn(2, |byte| *byte == b'=').map(<[u8]>::trim_ascii);
    let (Some(name), Some(value)) = (parts.next(), parts.next()) else { return false };
    let bare = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")).unwrap_or(value);
    name.eq_ignore_ascii_case(b"charset") && bare.eq_ignore_ascii_case(b"utf-8")
}

/// Returns the class of the `Accept` headers. A call without one accepts JSON.
fn accept(headers: &HeaderMap) -> AcceptClass {
    let mut values = headers.get_all(header::ACCEPT).iter();
    let (first, second) = (values.next(), values.next());
    let stream = |value: &HeaderValue| {
        memchr::memmem::find(&value.as_bytes().to_ascii_lowercase(), b"text/event-stream").is_some()
    };
    if headers.get_all(header::ACCEPT).iter().any(stream) {
        return AcceptClass::Stream;
    }
    let json = |value: &HeaderValue| is_token(value, b"application/json") || is_token(value, b"*/*");
    if second.is_none() && first.is_none_or(json) { AcceptClass::Json } else { AcceptClass::Other }
}

fn is_token(value: &HeaderValue, token: &[u8]) -> bool {
    value.as_bytes().trim_ascii().eq_ignore_ascii_case(token)
}

fn expects_continue(headers: &HeaderMap) -> bool {
    headers.get_all(header::EXPECT).iter().all(|value| is_token(value, b"100-continue"))
}
