//! A small DNS server for the cluster, which resolves Services by querying the API server.
//!
//! It replaces `CoreDNS`, which takes as long to build as Kubernetes. It resolves
//! `SERVICE.NAMESPACE.svc.cluster.local`, A and AAAA, to the cluster addresses of a Service, or for
//! a headless Service to the addresses of its ready endpoints. Every other name is answered with
//! NXDOMAIN at once. Only UDP messages with one question are supported (RFC 1035 section 4),
//! without recursion.

use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::ListParams;
use kube::{Api, Client};
use tokio::net::UdpSocket;

use super::network::HOST;

/// Domain of all names.
pub(super) const DOMAIN: &str = "cluster.local";
/// Maximum size of a DNS message over UDP without extensions.
const BYTES_MAX: usize = 512;
/// Length of a message header.
const HEADER: usize = 12;
/// Answers are not cacheable, since cases change the endpoints of a name.
const TTL: u32 = 0;

const A: u16 = 1;
const AAAA: u16 = 28;
const NO_SUCH_NAME: u8 = 3;

/// The question of a query.
struct DnsQuestion<'a> {
    name: String,
    kind: u16,
    /// The question in wire format.
    raw: &'a [u8],
}

/// Serves queries until the future is dropped.
pub(super) async fn serve(client: Client) {
    let socket = match UdpSocket::bind((HOST, 53)).await {
        Ok(socket) => Arc::new(socket),
        Err(error) => return eprintln!("e2e: no names in this cluster: {error}"),
    };
    let mut message = [0; BYTES_MAX];
    loop {
        let Ok((length, from)) = socket.recv_from(&mut message).await else { continue };
        let Some(request) = message.get(..length).map(<[u8]>::to_vec) else { continue };
        let (socket, client) = (Arc::clone(&socket), client.clone());
        tokio::spawn(async move {
            let Some(question) = DnsQuestion::read(&request) else { return };
            let found = addresses(&client, &question.name).await;
            // If the answer is lost, the resolver retries.
            socket.send_to(&question.answer(&request, found.as_deref()), from).await.ok();
        });
    }
}

/// Resolves a name. Returns `None` if it does not exist.
async fn addresses(client: &Client, name: &str) -> Option<Vec<IpAddr>> {
    let service = name.strip_suffix(DOMAIN)?.strip_suffix(".svc.")?;
    let (service, namespace) = service.split_once('.')?;
    let found = Api::<Service>::namespaced(client.clone(), namespace).get_opt(service).await.ok()??;
    let ips = found.spec.and_then(|spec| spec.cluster_ips).unwrap_or_default();
    if ips.iter().any(|ip| ip == "None") {
        let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), namespace);
        let of_it = ListParams::default().labels(&format!("kubernetes.io/service-name={service}"));
        let endpoints = slices.list(&of_it).await.ok()?.items.into_iter().flat_map(|slice| slice.endpoints);
        let ready = endpoints
            .filter(|endpoint| endpoint.conditions.as_ref().and_then(|conditions| conditions.ready).unwrap_or(true));
        return Some(ready.flat_map(|endpoint| endpoint.addresses).filter_map(|ip| ip.parse().ok()).collect());
    }
    Some(ips.iter().filter_map(|ip| ip.parse().ok()).collect())
}

// === impl DnsQuestion ===

impl<'a> DnsQuestion<'a> {
    /// Parses a query with one question. Returns `None` for any other message.
    fn read(message: &'a [u8]) -> Option<Self> {
        let count = u16::from_be_bytes([*message.get(4)?, *message.get(5)?]);
        let is_query = message.get(2)? & 0x80 == 0;
        if count != 1 || !is_query {
            return None;
        }
        let mut labels = Vec::new();
        let mut at = HEADER;
        loop {
            let length = usize::from(*message.get(at)?);
            at += 1;
            if length == 0 {
                break;
            }
            labels.push(std::str::from_utf8(message.get(at..at + length)?).ok()?.to_ascii_lowercase());
            at += length;
        }
        let kind = u16::from_be_bytes([*message.get(at)?, *message.get(at + 1)?]);
        Some(Self { name: labels.join("."), kind, raw: message.get(HEADER..at + 4)? })
    }

    fn answer(&self, request: &[u8], found: Option<&[IpAddr]>) -> Vec<u8> {
        let wanted = |ip: &&IpAddr| matches!((ip, self.kind), (IpAddr::V4(_), A) | (IpAddr::V6(_), AAAA));
        let records: Vec<_> = found.unwrap_or_default().iter().filter(wanted).take(20).collect();
        let code = if found.is_some() { 0 } else { NO_SUCH_NAME };
        let mut message = request.get(..2).unwrap_or_default().to_vec();
        // An authoritative answer with the flags for recursion desired and available, without which
        // resolvers print a warning.
        message.extend([0x85, 0x80 | code, 0, 1, 0, u8::try_from(records.len()).unwrap_or_default(), 0, 0, 0, 0]);
        message.extend(self.raw);
        for ip in records {
            let bytes = match ip {
                IpAddr::V4(ip) => ip.octets().to_vec(),
                IpAddr::V6(ip) => ip.octets().to_vec(),
            };
            // The name is a compression pointer to that of the question.
            message.extend([0xc0, 12]);
            message.extend(self.kind.to_be_bytes());
            message.extend([0, 1]);
            message.extend(TTL.to_be_bytes());
            message.extend([0, u8::try_from(bytes.len()).unwrap_or_default()]);
            message.extend(bytes);
        }
        message
    }
}
