//! A model server with the KServe V1 protocol that answers each number with a string of that
//! length.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

use super::support::json::{self, Json};

/// Path of calls that the proxy recognises.
pub(crate) const PREDICT: &str = "/v1/models/m:predict";

/// A server that runs until the runtime shuts down.
#[derive(Debug)]
pub(crate) struct ModelServer {
    pub(crate) address: SocketAddr,
}

// === impl ModelServer ===

impl ModelServer {
    pub(crate) async fn start() -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        tokio::spawn(async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else {
                    tokio::task::yield_now().await;
                    continue;
                };
                stream.set_nodelay(true).ok();
                let serving = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service_fn(answer));
                tokio::spawn(async move { serving.await.ok() });
            }
        });
        Ok(Self { address })
    }
}

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let predicts = request.uri().path() == PREDICT;
    // A truncated body counts as empty; its connection ends anyway.
    let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let text = if predicts { predictions(&body) } else { "\"ok\"".to_owned() };
    let mut response = Response::new(Full::new(Bytes::from(text)));
    response.headers_mut().insert("content-type", http::HeaderValue::from_static("application/json"));
    Ok(response)
}

fn predictions(body: &[u8]) -> String {
    let body = json::parse(body).ok();
    let instances = body.as_ref().and_then(|body| body.get("instances")).and_then(Json::elements).unwrap_or_default();
    let answers: Vec<String> = instances
        .iter()
        .map(|instance| {
            let bytes = instance.as_u64().unwrap_or(0);
            format!("\"{}\"", "a".repeat(usize::try_from(bytes).unwrap_or(0)))
        })
        .collect();
    format!("{{\"predictions\":[{}]}}", answers.join(","))
}
