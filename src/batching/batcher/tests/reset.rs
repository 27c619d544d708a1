//! Tests of a server that is replaced under load.

use super::closed_loop::ClosedLoop;

/// The requests from before the reset queue in the new server, so that the load curve has no cell
/// without a queue.
#[test]
fn calls_are_merged_after_a_server_was_replaced_by_a_serial_one_under_load() {
    for callers in [12, 32] {
        for loaded in [0, 30, 200] {
            let mut clients = ClosedLoop::new(64, callers);
            clients.run(2000);
            clients.workers = 1;
            clients.run(loaded);
            clients.batcher.reset(clients.now);
            // Thirty times the latency of direct calls, for two trials.
            clients.run(30 * 20 * callers);
            let answered = clients.run(2000);
            assert!(answered >= 4 * 100, "{callers} callers, {loaded} ms: {answered} answers, directly 100");
        }
    }
}
