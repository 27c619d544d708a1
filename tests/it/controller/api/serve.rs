//! The HTTP side of the fake API server: paths, parameters, watches and injected faults.

use std::convert::Infallible;
use std::sync::atomic::Ordering;
use std::sync::{PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};

use super::fault::{FaultKind, take_fault};
use super::select::Selection;
use super::store::{ApiError, Change, ResourceKind, api_version};
use super::{FakeApiServer, Inner, RecordedRequest, rules};

/// Error of a response body. It is a concrete type, because futures with a boxed error cannot be
/// spawned here.
type Error = std::io::Error;
type Body = BoxBody<Bytes, Error>;
/// The response to a request. An error closes the connection.
type ResponseResult = Result<Response<Body>, Error>;

/// The object or collection that a path names.
struct ResourcePath {
    kind: ResourceKind,
    namespace: String,
    /// Empty for a collection.
    name: String,
    /// Part of the object, such as `status`; empty for the whole object.
    subresource: String,
}

/// Serves connections until the server is stopped.
pub(super) async fn accept(listener: TcpListener, inner: Weak<Inner>, mut stop: watch::Receiver<bool>) {
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => accepted.unwrap().0,
            _ = stop.wait_for(|stop| *stop) => return,
        };
        let (inner, mut stop) = (inner.clone(), stop.clone());
        tokio::spawn(async move {
            let service = service_fn(|request| {
                let inner = inner.clone();
                async move {
                    match inner.upgrade() {
                        Some(inner) => answer(FakeApiServer(inner), request).await,
                        None => Err(Error::other("the server has ended")),
                    }
                }
            });
            let serving = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            tokio::select! {
                _ = serving => {}
                _ = stop.wait_for(|stop| *stop) => {}
            }
        });
    }
}

async fn answer(api: FakeApiServer, request: Request<Incoming>) -> ResponseResult {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map_err(Error::other)?.to_bytes();
    let path = parts.uri.path().to_owned();
    let query: Vec<(String, String)> =
        parts.uri.query().unwrap_or_default().split('&').filter_map(parse_parameter).collect();
    if path == "/version" {
        record_request(&api, "get", "version", ("", ""), "");
        let fault = take_fault(&mut api.0.faults.lock().unwrap_or_else(PoisonError::into_inner), "get", "version");
        if let Some(what) = fault {
            return fault_response(&api, what).await;
        }
        return Ok(json_response(
            StatusCode::OK,
            &json!({
                "major": "1", "minor": "33", "gitVersion": "v1.33.0", "gitCommit": "", "gitTreeState": "clean",
                "buildDate": "", "goVersion": "", "compiler": "", "platform": "",
            }),
        ));
    }
    let parameter = |key: &str| query.iter().find(|(name, _)| name == key).map_or("", |(_, value)| value);
    let is_watch = matches!(parameter("watch"), "true" | "1");
    let Some(target) = parse_path(&api, &path) else {
        let resource = path.split('/').find(|part| ["inferencepools", "inferenceservices"].contains(part));
        record_request(&api, if is_watch { "watch" } else { "list" }, resource.unwrap_or(&path), ("", ""), "");
        return Ok(error_response(&ApiError {
            code: 404,
            reason: "NotFound",
            message: "the server could not find the requested resource".into(),
        }));
    };
    let verb = match (parts.method.as_str(), target.name.is_empty()) {
        ("GET", true) if is_watch => "watch",
        ("GET", true) => "list",
        ("GET", false) => "get",
        ("POST", _) => "create",
        ("PUT", _) => "update",
        ("PATCH", _) => "patch",
        _ => "delete",
    };
    let resource = if target.subresource.is_empty() {
        target.kind.resource.to_owned()
    } else {
        format!("{}/{}", target.kind.resource, target.subresource)
    };
    // Rules restricted to a name also apply to lists and watches of that name.
    let name = parameter("fieldSelector").strip_prefix("metadata.name=").unwrap_or(&target.name);
    let forbidden =
        record_request(&api, verb, &resource, (&target.namespace, name), parts.uri.query().unwrap_or_default());
    if forbidden {
        let message = format!("{verb} of {resource} {:?} is not allowed by any rule", target.name);
        return Ok(error_response(&ApiError { code: 403, reason: "Forbidden", message }));
    }
    let fault = take_fault(&mut api.0.faults.lock().unwrap_or_else(PoisonError::into_inner), verb, &resource);
    let fault = match fault {
        Some(FaultKind::Slow(by)) => {
            tokio::time::sleep(by).await;
            None
        }
        other => other,
    };
    let metadata_only = parts
        .headers
        .get("accept")
        .is_some_and(|accept| accept.to_str().unwrap_or_default().contains("as=PartialObjectMetadata"));
    let selection = Selection {
        namespace: target.namespace.clone(),
        labels: parameter("labelSelector").to_owned(),
        fields: parameter("fieldSelector").to_owned(),
    };
    if let Some(what) = fault {
        return fault_response(&api, what).await;
    }
    match verb {
        "list" => Ok(list(&api, &target, &selection, (parameter("limit"), parameter("continue")), metadata_only)),
        "watch" => {
            let seconds = parameter("timeoutSeconds").parse().unwrap_or(300);
            Ok(begin_watch(
                &api,
                target.kind,
                selection,
                parameter("resourceVersion"),
                Duration::from_secs(seconds),
                metadata_only,
            ))
        }
        _ => {
            let result = execute(&api, verb, &target, &body, (content_type(&parts.headers), parameter("fieldManager")));
            api.notify_change();
            Ok(match result {
                Ok((status, object)) => json_response(status, &object),
                Err(refusal) => error_response(&refusal),
            })
        }
    }
}

fn content_type(headers: &http::HeaderMap) -> &str {
    headers.get("content-type").and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// Records a request. Returns `true` if it is forbidden, because no installed role allows it.
fn record_request(
    api: &FakeApiServer,
    verb: &'static str,
    resource: &str,
    (namespace, name): (&str, &str),
    query: &str,
) -> bool {
    let forbidden = !rules::allow(verb, resource, name) && !api.0.users.load(Ordering::Relaxed);
    let request = RecordedRequest {
        verb,
        resource: resource.to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        query: query.to_owned(),
        forbidden,
    };
    api.0.requests.lock().unwrap_or_else(PoisonError::into_inner).push(request);
    api.notify_change();
    forbidden
}

/// Executes a request for an object, other than a list or watch.
fn execute(
    api: &FakeApiServer,
    verb: &str,
    target: &ResourcePath,
    body: &[u8],
    (content, manager): (&str, &str),
) -> Result<(StatusCode, Value), ApiError> {
    let bad = |error: serde_json::Error| ApiError { code: 400, reason: "BadRequest", message: error.to_string() };
    let (namespace, name) = (target.namespace.as_str(), target.name.as_str());
    let mut store = api.store();
    match verb {
        "get" => {
            let found = store.get(target.kind.resource, namespace, name).cloned();
            let missing = || ApiError {
                code: 404,
                reason: "NotFound",
                message: format!("{} {name:?} not found", target.kind.resource),
            };
            Ok((StatusCode::OK, found.ok_or_else(missing)?))
        }
        "create" if target.kind.resource == "tokenreviews" => {
            let mut review: Value = serde_json::from_slice(body).map_err(bad)?;
            drop(store);
            review["status"] = api.review_status(review["spec"]["token"].as_str().unwrap_or_default());
            Ok((StatusCode::CREATED, review))
        }
        "create" => {
            let object = serde_json::from_slice(body).map_err(bad)?;
            Ok((StatusCode::CREATED, store.create(target.kind, namespace, object)?))
        }
        "delete" => Ok((StatusCode::OK, store.remove(target.kind.resource, namespace, name)?)),
        "patch" => {
            let change = match content {
                "application/merge-patch+json" => Change::Merge(serde_json::from_slice(body).map_err(bad)?),
                "application/json-patch+json" => Change::Json(serde_json::from_slice(body).map_err(bad)?),
                "application/apply-patch+yaml" if !manager.is_empty() => {
                    Change::Apply { manager: manager.to_owned(), value: serde_json::from_slice(body).map_err(bad)? }
                }
                other => return Err(ApiError { code: 415, reason: "UnsupportedMediaType", message: other.to_owned() }),
            };
            Ok((StatusCode::OK, store.change(target.kind, (namespace, name), &target.subresource, change)?))
        }
        other => Err(ApiError { code: 405, reason: "MethodNotAllowed", message: other.to_owned() }),
    }
}

/// Parses `NAME=VALUE`.
fn parse_parameter(text: &str) -> Option<(String, String)> {
    let (name, value) = text.split_once('=')?;
    Some((name.to_owned(), percent_decode(value)))
}

/// Decodes the value of a URL parameter.
fn percent_decode(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let hex = after.get(..2).and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        match (first, hex) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            (b'+', _) => {
                bytes.push(b' ');
                rest = after;
            }
            (byte, _) => {
                bytes.push(*byte);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).unwrap()
}

/// Parses `/api/v1/…` and `/apis/GROUP/VERSION/…`, then `namespaces/NS/RESOURCE/NAME/PART` or
/// `RESOURCE/NAME/PART`.
fn parse_path(api: &FakeApiServer, path: &str) -> Option<ResourcePath> {
    let mut parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let (group, version) = match *parts.first()? {
        "api" => ("", *parts.get(1)?),
        "apis" => (*parts.get(1)?, *parts.get(2)?),
        _ => return None,
    };
    parts.drain(..if group.is_empty() { 2 } else { 3 });
    let mut namespace = "";
    if parts.first() == Some(&"namespaces") && parts.len() > 2 {
        namespace = parts[1];
        parts.drain(..2);
    }
    let kind = api.store().kind(group, version, parts.first()?)?;
    let text = |at: usize| parts.get(at).map_or_else(String::new, |part| (*part).to_owned());
    Some(ResourcePath { kind, namespace: namespace.to_owned(), name: text(1), subresource: text(2) })
}

fn list(
    api: &FakeApiServer,
    target: &ResourcePath,
    selection: &Selection,
    (limit, continued_from): (&str, &str),
    metadata_only: bool,
) -> Response<Body> {
    let store = api.store();
    let limit: usize = limit.parse().unwrap_or(usize::MAX);
    let from: usize = continued_from.parse().unwrap_or(0);
    let found: Vec<&Value> = store.all(target.kind.resource).filter(|object| selection.matches(object)).collect();
    let page: Vec<Value> = found.iter().skip(from).take(limit).map(|object| item(object, metadata_only)).collect();
    let mut metadata = json!({"resourceVersion": store.version().to_string()});
    if from + page.len() < found.len() {
        metadata["continue"] = json!((from + page.len()).to_string());
    }
    let (api_version, kind) = if metadata_only {
        ("meta.k8s.io/v1".to_owned(), "PartialObjectMetadataList".to_owned())
    } else {
        (api_version(target.kind), format!("{}List", target.kind.kind))
    };
    json_response(
        StatusCode::OK,
        &json!({"apiVersion": api_version, "kind": kind, "metadata": metadata, "items": page}),
    )
}

/// Returns an object, or only its metadata.
fn project(object: &Value, metadata_only: bool) -> Value {
    if metadata_only {
        json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": object["metadata"]})
    } else {
        object.clone()
    }
}

/// Returns an item of a list. Items carry no `apiVersion` and `kind`; the list does.
fn item(object: &Value, metadata_only: bool) -> Value {
    let mut item = project(object, metadata_only);
    if let Some(fields) = item.as_object_mut().filter(|_| !metadata_only) {
        fields.remove("apiVersion");
        fields.remove("kind");
    }
    item
}

/// Starts a watch of the changes after the version `from`.
fn begin_watch(
    api: &FakeApiServer,
    kind: ResourceKind,
    selection: Selection,
    from: &str,
    timeout: Duration,
    metadata_only: bool,
) -> Response<Body> {
    let mut from: u64 = from.parse().unwrap_or(0);
    if from < api.store().forgotten() {
        return error_response(&gone());
    }
    let (send, body) = body_channel();
    let mut ends = api.0.end.subscribe();
    let mut changes = api.0.changed.subscribe();
    // A strong handle would keep the server alive for as long as a watch is open.
    let inner = std::sync::Arc::downgrade(&api.0);
    drop(ends.borrow_and_update());
    tokio::spawn(async move {
        let work = async {
            loop {
                changes.borrow_and_update();
                let (frames, version) = {
                    let Some(inner) = inner.upgrade() else { return };
                    let api = FakeApiServer(inner);
                    let store = api.store();
                    if from < store.forgotten() && store.kind(kind.group, kind.version, kind.resource).is_none() {
                        return;
                    }
                    (store.since(from, kind.resource, &selection), store.version())
                };
                for (_, event_type, object) in frames {
                    let frame = json!({"type": event_type, "object": project(&object, metadata_only)});
                    if send.send(Ok(json_line(&frame))).await.is_err() {
                        return;
                    }
                }
                if version > from {
                    from = version;
                    // A real API server sends bookmarks every minute; this one after every change.
                    let object = json!({"apiVersion": api_version(kind), "kind": kind.kind, "metadata": {"resourceVersion": version.to_string()}});
                    let object = if metadata_only { project(&object, true) } else { object };
                    if send.send(Ok(json_line(&json!({"type": "BOOKMARK", "object": object})))).await.is_err() {
                        return;
                    }
                }
                tokio::select! {
                    changed = changes.changed() => if changed.is_err() { return },
                    ended = ends.changed() => {
                        let which = ends.borrow_and_update().1.clone();
                        if ended.is_err() || which.is_empty() || which == kind.resource {
                            return;
                        }
                    }
                    () = send.closed() => return,
                }
            }
        };
        // Reaching the timeout is a regular end.
        tokio::time::timeout(timeout, work).await.ok();
    });
    response(StatusCode::OK, body)
}

/// Returns the error of a version that is not stored any longer.
fn gone() -> ApiError {
    ApiError { code: 410, reason: "Expired", message: "too old resource version".into() }
}

/// Returns the response of an injected fault, or an error that closes the connection.
async fn fault_response(api: &FakeApiServer, what: FaultKind) -> ResponseResult {
    match what {
        FaultKind::Gone => Ok(error_response(&gone())),
        FaultKind::Conflict => {
            Ok(error_response(&ApiError { code: 409, reason: "Conflict", message: "injected failure".into() }))
        }
        FaultKind::Forbidden => {
            Ok(error_response(&ApiError { code: 403, reason: "Forbidden", message: "injected failure".into() }))
        }
        FaultKind::Status(code) => {
            Ok(error_response(&ApiError { code, reason: "InternalError", message: "injected failure".into() }))
        }
        FaultKind::TooMany(after) => {
            let mut response =
                error_response(&ApiError { code: 429, reason: "TooManyRequests", message: "injected failure".into() });
            response.headers_mut().insert("retry-after", after.into());
            Ok(response)
        }
        FaultKind::Reset => Err(Error::other("injected failure")),
        FaultKind::Silence => {
            hang(api).await;
            Err(Error::other("injected failure"))
        }
        FaultKind::HungWatch => {
            let (send, body) = body_channel();
            let api = api.clone();
            tokio::spawn(async move {
                hang(&api).await;
                drop(send);
            });
            Ok(response(StatusCode::OK, body))
        }
        FaultKind::GoneInStream => {
            let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": "too old resource version", "reason": "Expired", "code": 410});
            watch_of(vec![Ok(json_line(&json!({"type": "ERROR", "object": status})))])
        }
        FaultKind::EofInFrame => watch_of(vec![
            Ok(Bytes::from_static(b"{\"type\":\"ADDED\",\"object\":{\"kind\":")),
            Err(Error::other("injected failure")),
        ]),
        FaultKind::EndsAtOnce => watch_of(Vec::new()),
        FaultKind::Garbage => watch_of(vec![Ok(Bytes::from_static(b"<html>no API server</html>\n"))]),
        FaultKind::Slow(_) => Err(Error::other("slow responses are handled earlier")),
    }
}

/// Returns the response of a watch that begins, sends these frames and ends.
fn watch_of(frames: Vec<Result<Bytes, Error>>) -> ResponseResult {
    let (send, body) = body_channel();
    for frame in frames {
        send.try_send(frame).expect("there is room for all of it");
    }
    Ok(response(StatusCode::OK, body))
}

/// Waits until the faults are cleared, or the server ends.
async fn hang(api: &FakeApiServer) {
    let (mut ends, mut stop) = (api.0.end.subscribe(), api.0.stop.subscribe());
    drop(ends.borrow_and_update());
    tokio::select! {
        _ = ends.wait_for(|(_, which)| which.is_empty()) => {}
        _ = stop.wait_for(|stop| *stop) => {}
    }
}

/// Returns a response body, and the channel for its frames.
fn body_channel() -> (mpsc::Sender<Result<Bytes, Error>>, Body) {
    let (send, mut frames) = mpsc::channel::<Result<Bytes, Error>>(16);
    let stream = futures_util::stream::poll_fn(move |cx| {
        frames.poll_recv(cx).map(|frame| frame.map(|frame| frame.map(Frame::data)))
    });
    (send, BodyExt::boxed(StreamBody::new(stream)))
}

/// Encodes a frame of a watch.
fn json_line(frame: &Value) -> Bytes {
    Bytes::from(format!("{frame}\n"))
}

fn response(status: StatusCode, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert("content-type", http::HeaderValue::from_static("application/json"));
    response
}

fn json_response(status: StatusCode, value: &Value) -> Response<Body> {
    let body = Full::new(Bytes::from(value.to_string())).map_err(|never: Infallible| match never {});
    response(status, BodyExt::boxed(body))
}

fn error_response(refusal: &ApiError) -> Response<Body> {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": refusal.message, "reason": refusal.reason, "code": refusal.code,
    });
    json_response(StatusCode::from_u16(refusal.code).unwrap(), &status)
}
