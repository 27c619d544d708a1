use groupage_testkit::report_skipped;
use tokio::net::TcpListener;

use super::*;

#[tokio::test]
async fn either_loopback_address_is_tried_beginning_with_the_last_that_worked() {
    let Ok(listener) = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).await else {
        report_skipped("no IPv6 on loopback: there is only one address");
        return;
    };
    let port = listener.local_addr().unwrap().port();
    let connector = Connector::new(UpstreamTarget::Loopback(port), None, Duration::from_secs(10));
    connector.connect(AlpnProtocols::Either).await.unwrap();
    let first = connector.addresses.lock().unwrap()[0];
    assert_eq!(first, SocketAddr::from((Ipv6Addr::LOCALHOST, port)));
    drop(listener);
    let moved = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await.unwrap();
    connector.connect(AlpnProtocols::Either).await.unwrap();
    assert!(connector.addresses.lock().unwrap()[0].is_ipv4());
    drop(moved);
    let refused = connector.connect(AlpnProtocols::Either).await.unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
}

#[test]
fn a_target_has_a_url_and_an_authority() {
    assert_eq!(UpstreamTarget::Loopback(8080).to_string(), "http://localhost:8080");
    assert_eq!(UpstreamTarget::Loopback(8080).authority(), "localhost:8080");
    let secure = UpstreamTarget::Tcp { host: "::1".to_owned(), port: 443, tls: true };
    assert_eq!((secure.to_string().as_str(), secure.scheme()), ("https://[::1]:443", "https"));
}

/// Returns a listener with a full queue, and the connection that fills it: the kernel drops the
/// first packet of any other connection.
async fn full_listener() -> (TcpListener, TcpStream) {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
    let listener = socket.listen(0).unwrap();
    let held = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    (listener, held)
}

fn connector_to(host: &str, port: u16) -> Connector {
    let target = UpstreamTarget::Tcp { host: host.to_owned(), port, tls: false };
    Connector::new(target, None, Duration::from_secs(3600))
}

/// Waits until a connection to this port has sent its first packet and has no answer.
async fn wait_syn_sent(port: u16) {
    let row = format!(":{port:04X} 02 ");
    while !std::fs::read_to_string("/proc/net/tcp").unwrap().contains(&row) {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_connect_whose_first_packet_was_dropped_succeeds_once_the_server_accepts() {
    let (listener, _held) = full_listener().await;
    let port = listener.local_addr().unwrap().port();
    let connector = connector_to("127.0.0.1", port);
    let connecting = tokio::spawn(async move { connector.connect(AlpnProtocols::Http1).await });
    wait_syn_sent(port).await;
    listener.accept().await.unwrap();
    connecting.await.unwrap().unwrap();
}

#[tokio::test]
async fn an_address_that_does_not_accept_keeps_neither_the_next_one_nor_the_name_waiting() {
    let (full, _held) = full_listener().await;
    let good = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let (full, address) = (full.local_addr().unwrap(), good.local_addr().unwrap());
    let connector = connector_to("localhost", address.port());
    *connector.addresses.lock().unwrap() = vec![full, address];
    connector.connect(AlpnProtocols::Http1).await.unwrap();
    good.accept().await.unwrap();
    // Another server had the name when it was resolved last.
    *connector.addresses.lock().unwrap() = vec![full];
    connector.connect(AlpnProtocols::Http1).await.unwrap();
    assert!(!connector.addresses.lock().unwrap().contains(&full));
}

#[tokio::test]
async fn a_refused_connection_fails_at_once() {
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap().local_addr().unwrap().port();
    let refused = connector_to("127.0.0.1", port).connect(AlpnProtocols::Http1).await.unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
}

#[tokio::test]
async fn a_probe_ends_before_the_configured_timeout() {
    let (listener, _held) = full_listener().await;
    let connector = connector_to("127.0.0.1", listener.local_addr().unwrap().port());
    let given_up = connector.connect_within(AlpnProtocols::Http1, Duration::from_millis(10)).await.unwrap_err();
    assert_eq!(given_up.kind(), io::ErrorKind::TimedOut);
}
