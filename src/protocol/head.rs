//! A request's head: may the call be merged at all, who calls, what must be equal, and the head of a shared call.

use std::borrow::Cow;

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Uri, Version};

use crate::protocol::headers::{self, Class};
use crate::protocol::key::Key;
use crate::protocol::route::{Common, RouteRules};
use crate::protocol::secret::{Peer, Secret, Tenant};
use crate::protocol::{Call, Reason};

/// What `Accept` asks for.
#[derive(Debug, PartialEq, Eq)]
enum Accept {
    /// JSON, anything, or nothing said.
    Json,
    /// A stream.
    Stream,
    /// Something else.
    Other,
}

/// Why the head alone keeps a call from being merged.
pub(crate) fn check(head: &Parts, common: &Common) -> Option<Reason> {
    let headers = &head.headers;
    let mut types = headers.get_all(header::CONTENT_TYPE).iter();
    let json = types.next().is_some_and(is_json) && types.next().is_none();
    if !json || headers.contains_key(header::CONTENT_ENCODING) || headers::has_other_coding(headers) {
        return Some(Reason::Encoding);
    }
    for name in headers.keys() {
        let again = || headers.get_all(name).iter().nth(1).is_some();
        let alone = match headers::classify(name) {
            Class::Alone => true,
            _ if common.is_identity(name) => {
                // HTTP/2 lets a client send its cookies in several fields.
                again() && !(*name == header::COOKIE && head.version == Version::HTTP_2)
            }
            Class::Ignored => *name == header::EXPECT && !expects_continue(headers),
            Class::Behaviour => *name == header::HOST && again(),
            Class::Identity | Class::HopByHop => false,
        };
        if alone {
            return Some(Reason::Header);
        }
    }
    if !is_one_host(&head.uri, headers) {
        return Some(Reason::Header);
    }
    (accept(headers) == Accept::Stream).then_some(Reason::Streaming)
}

/// Whether the caller asks for a stream by its head.
pub(crate) fn wants_stream(headers: &HeaderMap) -> bool {
    accept(headers) == Accept::Stream
}

/// Whose call it is.
pub(crate) fn tenant(head: &Parts, common: &Common, secret: &Secret) -> Tenant {
    let named = common.tenant_header.as_ref().and_then(|name| head.headers.get(name));
    if let Some(value) = named {
        return secret.tenant(value.as_bytes());
    }
    identity(head, common, secret).map_or(Tenant::ANONYMOUS, Tenant::of)
}

/// Writes what of the head must be equal: everything but what is named as one call's own, and who calls as a digest only.
pub(crate) fn write_key(head: &Parts, rules: &RouteRules, common: &Common, secret: &Secret, key: &mut Key) {
    key.field(head.method.as_str().as_bytes());
    key.field(head.uri.path_and_query().map_or("", http::uri::PathAndQuery::as_str).as_bytes());
    key.field(host(&head.uri, &head.headers).unwrap_or_default().as_bytes());
    key.field(&identity(head, common, secret).unwrap_or_default());
    let json = accept(&head.headers) == Accept::Json;
    key.count(usize::from(json));
    if !json {
        key.values(&head.headers, &header::ACCEPT);
    }
    let nominated = headers::nominated(&head.headers);
    let along = |name: &&HeaderName| goes_along(name, rules, common) && !nominated.contains(name);
    let mut names: Vec<&HeaderName> = head.headers.keys().filter(along).collect();
    names.sort_unstable_by_key(|name| name.as_str());
    key.count(names.len());
    for name in names.into_iter().chain(&rules.merge_on_headers) {
        key.field(name.as_str().as_bytes());
        key.values(&head.headers, name);
    }
}

/// Whether a header is compared and sent along as it is: behaviour that is not treated on its own.
fn goes_along(name: &HeaderName, rules: &RouteRules, common: &Common) -> bool {
    let treated = [header::HOST, header::ACCEPT, header::CONTENT_TYPE].contains(name) || common.is_identity(name);
    headers::classify(name) == Class::Behaviour
        && !treated
        && !common.deadline_headers.contains(name)
        && common.priority_header.as_ref() != Some(name)
        && !rules.merge_over_headers.contains(name)
}

/// The head of a shared call, but for its fresh ids: the leader's, as far as it is every member's.
pub(crate) fn shared(members: &[&Call], rules: &RouteRules, common: &Common) -> HeaderMap {
    let mut out = HeaderMap::new();
    let Some(leader) = members.first().map(|call| &call.head) else { return out };
    if let Some(host) = host(&leader.uri, &leader.headers)
        && let Ok(value) = HeaderValue::from_bytes(host.as_bytes())
    {
        out.insert(header::HOST, value);
    }
    out.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    for value in shared_accept(members) {
        out.append(header::ACCEPT, value);
    }
    if let Some(cookie) = cookie(&leader.headers).and_then(|value| HeaderValue::from_bytes(&value).ok()) {
        out.insert(header::COOKIE, cookie);
    }
    let nominated = headers::nominated(&leader.headers);
    for (name, value) in &leader.headers {
        let identity = common.is_identity(name) && *name != header::COOKIE;
        let along = goes_along(name, rules, common) && !nominated.contains(name);
        let on = rules.merge_on_headers.contains(name) && is_kept(name, common);
        if identity || along || on {
            out.append(name.clone(), value.clone());
        }
    }
    out
}

/// Whether a header named in `mergeOn` may be sent along although it is otherwise ignored: not if every shared call has its own.
fn is_kept(name: &HeaderName, common: &Common) -> bool {
    let own =
        [headers::REQUEST_ID, headers::TRACEPARENT, headers::GRPC_TIMEOUT, header::ACCEPT_ENCODING, header::EXPECT]
            .contains(name)
            || [header::HOST, header::CONTENT_TYPE, header::CONTENT_LENGTH, header::ACCEPT].contains(name);
    let class = headers::classify(name);
    !own && !matches!(class, Class::HopByHop | Class::Alone)
        && !common.deadline_headers.contains(name)
        && *name != header::COOKIE
}

/// Every member's `Accept` is of one class; of the JSON class the most telling one is sent.
fn shared_accept(members: &[&Call]) -> Vec<HeaderValue> {
    let named =
        |call: &&&Call| call.head.headers.get(header::ACCEPT).is_some_and(|value| is_token(value, b"application/json"));
    let from = members
        .iter()
        .find(named)
        .or_else(|| members.iter().find(|call| call.head.headers.contains_key(header::ACCEPT)));
    from.map(|call| call.head.headers.get_all(header::ACCEPT).iter().cloned().collect()).unwrap_or_default()
}

/// The header in which a member told its deadline, the leader's first.
pub(crate) fn deadline_header(members: &[&Call], common: &Common) -> Option<HeaderName> {
    members.iter().find_map(|call| {
        let has = |name: &&HeaderName| call.head.headers.contains_key(*name);
        let own = common.deadline_headers.iter().find(has);
        own.or(Some(&headers::GRPC_TIMEOUT).filter(has)).cloned()
    })
}

/// Whether any member is traced, and whether any of those is sampled.
pub(crate) fn traced(members: &[&Call]) -> Option<bool> {
    let values = members.iter().filter_map(|call| call.head.headers.get(headers::TRACEPARENT));
    values.fold(None, |traced, value| Some(traced.unwrap_or(false) || is_sampled(value.as_bytes())))
}

fn is_sampled(traceparent: &[u8]) -> bool {
    let flags = traceparent.split(|byte| *byte == b'-').nth(3).and_then(|flags| std::str::from_utf8(flags).ok());
    flags.and_then(|flags| u8::from_str_radix(flags, 16).ok()).is_some_and(|flags| flags & 1 == 1)
}

/// Who calls: the certificate of the connection, and every header that says so.
fn identity(head: &Parts, common: &Common, secret: &Secret) -> Option<[u8; 32]> {
    let headers = &head.headers;
    let peer = head.extensions.get::<Peer>();
    let mut names: Vec<&HeaderName> = headers.keys().filter(|name| common.is_identity(name)).collect();
    if names.is_empty() && peer.is_none() {
        return None;
    }
    names.sort_unstable_by_key(|name| name.as_str());
    let mut parts: Vec<Cow<'_, [u8]>> = Vec::new();
    if let Some(peer) = peer {
        // No header has such a name.
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

/// All cookies in one value, as one field would hold them.
fn cookie(headers: &HeaderMap) -> Option<Vec<u8>> {
    let crumbs: Vec<&[u8]> = headers.get_all(header::COOKIE).iter().map(HeaderValue::as_bytes).collect();
    (!crumbs.is_empty()).then(|| crumbs.join(&b"; "[..]))
}

/// The host that is called, wherever the client's HTTP version puts it.
fn host<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> Option<Cow<'a, str>> {
    match uri.authority() {
        Some(authority) => Some(Cow::Borrowed(authority.as_str())),
        None => headers.get(header::HOST).map(|value| String::from_utf8_lossy(value.as_bytes())),
    }
}

fn is_one_host(uri: &Uri, headers: &HeaderMap) -> bool {
    let host = headers.get(header::HOST);
    if host.is_some_and(|value| value.to_str().is_err()) {
        return false;
    }
    let Some(authority) = uri.authority() else { return true };
    let agrees = host.is_none_or(|value| value.as_bytes().eq_ignore_ascii_case(authority.as_str().as_bytes()));
    agrees && !authority.as_str().contains('@')
}

/// `application/json`, with no parameter but a charset of UTF-8.
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

fn accept(headers: &HeaderMap) -> Accept {
    let mut values = headers.get_all(header::ACCEPT).iter();
    let (first, second) = (values.next(), values.next());
    let stream = |value: &HeaderValue| {
        memchr::memmem::find(&value.as_bytes().to_ascii_lowercase(), b"text/event-stream").is_some()
    };
    if headers.get_all(header::ACCEPT).iter().any(stream) {
        return Accept::Stream;
    }
    let json = |value: &HeaderValue| is_token(value, b"application/json") || is_token(value, b"*/*");
    if second.is_none() && first.is_none_or(json) { Accept::Json } else { Accept::Other }
}

fn is_token(value: &HeaderValue, token: &[u8]) -> bool {
    value.as_bytes().trim_ascii().eq_ignore_ascii_case(token)
}

fn expects_continue(headers: &HeaderMap) -> bool {
    headers.get_all(header::EXPECT).iter().all(|value| is_token(value, b"100-continue"))
}
