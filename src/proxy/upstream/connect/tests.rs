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
