//! Lines written by a thread of their own, so that a blocked pipe never blocks a call.
//!
//! Lines that find the channel full are dropped and counted; the count is said with the next line that fits.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

/// Lines in the channel: at some 300 bytes each, about 1 MiB at most.
const LINES_MAX: usize = 4096;

/// A cheap, cloneable end for writing whole lines.
#[derive(Debug, Clone)]
pub struct LossyWriter {
    lines: SyncSender<Message>,
    dropped: Arc<AtomicU64>,
}

#[derive(Debug)]
enum Message {
    Line(Vec<u8>),
    Flush(SyncSender<()>),
}

// === impl LossyWriter ===

impl LossyWriter {
    /// Starts the thread that writes to `sink`.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start(name: &str, sink: impl Write + Send + 'static) -> io::Result<Self> {
        let (lines, rest) = sync_channel(LINES_MAX);
        std::thread::Builder::new().name(name.into()).spawn(move || write_all(&rest, sink))?;
        Ok(Self { lines, dropped: Arc::new(AtomicU64::new(0)) })
    }

    /// Writes one line, or drops it.
    pub fn line(&self, line: Vec<u8>) {
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) = self.lines.try_send(Message::Line(line)) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Lines dropped so far.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Waits until what was written before is out, at most this long.
    pub fn flush(&self, limit: Duration) {
        let (done, wait) = sync_channel(1);
        let mut message = Message::Flush(done);
        for _ in 0..limit.as_millis() {
            match self.lines.try_send(message) {
                Ok(()) => {
                    wait.recv_timeout(limit).ok();
                    return;
                }
                Err(TrySendError::Disconnected(_)) => return,
                // Full: a moment later there may be room.
                Err(TrySendError::Full(back)) => message = back,
            }
            wait.recv_timeout(Duration::from_millis(1)).ok();
        }
    }
}

impl Write for LossyWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.line(bytes.to_vec());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write_all(lines: &Receiver<Message>, mut sink: impl Write) {
    while let Ok(message) = lines.recv() {
        match message {
            // Nobody can be told that stderr is gone.
            Message::Line(line) => drop(sink.write_all(&line)),
            Message::Flush(done) => {
                sink.flush().ok();
                done.try_send(()).ok();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    /// A sink that takes nothing until it is let go.
    struct Blocked(Arc<Mutex<Vec<u8>>>);

    impl Write for Blocked {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_blocked_sink_drops_lines_and_never_blocks_the_writer() {
        let out = Arc::new(Mutex::new(Vec::new()));
        let held = out.lock().unwrap();
        let writer = LossyWriter::start("test", Blocked(out.clone())).unwrap();
        for _ in 0..LINES_MAX * 2 {
            writer.line(b"x\n".to_vec());
        }
        assert!(writer.dropped() >= LINES_MAX as u64 - 1);
        drop(held);
        writer.flush(Duration::from_secs(10));
        assert!(out.lock().unwrap().len() >= 2 * (LINES_MAX - 1));
    }
}
