use super::*;

fn permits(max: usize) -> UpstreamPermits {
    let clock = Clock::start();
    UpstreamPermits::new(max, clock, BufferBudget::new(1 << 20, clock))
}

#[test]
fn every_purpose_and_every_http2_client_has_permits_of_its_own() {
    let permits = permits(256);
    let take = |purpose: &ConnectionPurpose| std::iter::from_fn(|| permits.try_acquire(purpose)).collect::<Vec<_>>();
    let clients = take(&ConnectionPurpose::Client);
    assert_eq!(clients.len(), 256, "each client has one");
    let (one, other) = (ConnectionPurpose::Http2Client(Arc::default()), ConnectionPurpose::Http2Client(Arc::default()));
    let spare = take(&one);
    assert_eq!(spare.len(), 32, "one client takes half");
    let base = take(&other);
    assert_eq!(base.len(), CLIENT_BASE, "another has its first 16 still");
    assert_eq!(take(&ConnectionPurpose::Batch).len(), 64);
    drop((clients, spare, base));
    assert!(permits.0.used.iter().all(|used| used.load(Ordering::Relaxed) == 0));
}

#[test]
fn connections_read_less_at_once_when_many_are_open() {
    let permits = permits(80);
    let mut open: Vec<_> = (0..10).map(|_| permits.try_acquire(&ConnectionPurpose::Client).unwrap()).collect();
    assert_eq!(open[0].read_max(), usize::MAX);
    open.push(permits.try_acquire(&ConnectionPurpose::Batch).unwrap());
    assert_eq!(open[0].read_max(), (16 << 10) - 1);
}

#[test]
fn http2_clients_share_a_quarter_and_one_client_has_half_of_it() {
    // The client connections at 128 MiB (`memory::connections_within`).
    let permits = permits(806);
    let take = || {
        let client = ConnectionPurpose::Http2Client(Arc::default());
        std::iter::from_fn(|| permits.try_acquire(&client)).collect::<Vec<_>>()
    };
    let mut held = take();
    assert_eq!(held.len(), 101, "a single client");
    for _ in 0..16 {
        held.extend(take());
    }
    assert_eq!(held.len(), 201, "all clients");
}

#[tokio::test]
async fn a_call_waits_for_a_place_that_becomes_free() {
    let permits = permits(1);
    let held = permits.acquire(&ConnectionPurpose::Client).await.unwrap();
    let (waiting, ()) = tokio::join!(permits.acquire(&ConnectionPurpose::Client), async { drop(held) });
    assert!(waiting.is_ok());
}

#[tokio::test]
async fn a_client_that_may_take_no_more_does_not_delay_another_client() {
    let permits = permits(256);
    let many = ConnectionPurpose::Http2Client(Arc::default());
    let mut held: Vec<_> = std::iter::from_fn(|| permits.try_acquire(&many)).collect();
    let others: Vec<_> = (0..2).map(|_| ConnectionPurpose::Http2Client(Arc::default())).collect();
    held.extend(others.iter().flat_map(|other| std::iter::from_fn(|| permits.try_acquire(other))));
    let first = ConnectionPurpose::Http2Client(Arc::default());
    let mut more = Box::pin(permits.acquire(&many));
    assert!(futures_util::poll!(&mut more).is_pending(), "waits before the other client");
    let mut own = Box::pin(permits.acquire(&first));
    assert!(futures_util::poll!(&mut own).is_pending());
    held.truncate(held.len() - 1);
    assert!(matches!(futures_util::poll!(&mut more), std::task::Poll::Pending));
    assert!(matches!(futures_util::poll!(&mut own), std::task::Poll::Ready(Ok(_))));
}

#[tokio::test]
async fn a_call_for_which_nothing_becomes_free_is_refused() {
    let permits = permits(1);
    let _held = permits.acquire(&ConnectionPurpose::Batch).await.unwrap();
    assert!(permits.acquire(&ConnectionPurpose::Batch).await.is_err());
    assert_eq!(permits.0.waiting.load(Ordering::Relaxed), 0);
}
