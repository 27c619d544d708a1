//! A line writer with a thread of its own, so that a blocked pipe never blocks a call.
//!
//! Lines are dropped while the channel is full. The loss is logged once the thread has caught up.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

/// Capacity of the channel in lines. At about 300 bytes each, it holds at most about 1 MiB.
const LINES_MAX: usize = 4096;

/// A handle for writing whole lines. Cheap to clone.
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
    /// Starts the thread that writes to `sink`. Lost lines are reported as a warning in the log.
    ///
    /// # Errors
    /// Returns an error if the thread cannot be started.
    pub fn start(name: &'static str, sink: impl Write + Send + 'static) -> io::Result<Self> {
        Self::start_with(name, sink, move |lines| {
            tracing::warn!(name, lines, "lines were dropped: the reader of the output is too slow");
        })
    }

    fn start_with(
        name: &str,
        sink: impl Write + Send + 'static,
        on_loss: impl FnMut(u64) + Send + 'static,
    ) -> io::Result<Self> {
        let (lines, rest) = sync_channel(LINES_MAX);
        let dropped = Arc::new(AtomicU64::new(0));
        let writer = Self { lines, dropped: Arc::clone(&dropped) };
        std::thread::Builder::new().name(name.into()).spawn(move || write_all(&rest, sink, &dropped, on_loss))?;
        Ok(writer)
    }

    /// Writes one line, or drops it if the channel is full.
    pub fn line(&self, line: Vec<u8>) {
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) = self.lines.try_send(Message::Line(line)) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until all previous lines are written: at most `limit` for room in the channel, and at
    /// most `limit` for the thread.
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
                // The channel is full: retry after a moment.
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

fn write_all(lines: &Receiver<Message>, mut sink: impl Write, dropped: &AtomicU64, mut on_loss: impl FnMut(u64)) {
    let mut write = |message| match message {
        // An error on stderr cannot be reported anywhere.
        Message::Line(line) => drop(sink.write_all(&line)),
        Message::Flush(done) => {
            sink.flush().ok();
            done.try_send(()).ok();
        }
    };
    while let Ok(message) = lines.recv() {
        write(message);
        while let Ok(message) = lines.try_recv() {
            write(message);
        }
        // The channel is empty: a line about the loss is not lost itself.
        match dropped.swap(0, Ordering::Relaxed) {
            0 => {}
            lost => on_loss(lost),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    /// A sink that blocks until its lock is released.
    struct BlockingSink(Arc<Mutex<Vec<u8>>>);

    impl Write for BlockingSink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_blocked_sink_drops_lines_never_blocks_the_writer_and_is_reported() {
        let out = Arc::new(Mutex::new(Vec::new()));
        let held = out.lock().unwrap();
        let (losses, lost) = std::sync::mpsc::channel();
        let on_loss = move |lines| losses.send(lines).unwrap();
        let writer = LossyWriter::start_with("test", BlockingSink(out.clone()), on_loss).unwrap();
        for _ in 0..LINES_MAX * 2 {
            writer.line(b"x\n".to_vec());
        }
        drop(held);
        writer.flush(Duration::from_secs(10));
        let written = out.lock().unwrap().len() / 2;
        assert!((LINES_MAX..=LINES_MAX + 1).contains(&written), "{written}");
        drop(writer);
        assert_eq!(usize::try_from(lost.iter().sum::<u64>()).unwrap(), LINES_MAX * 2 - written);
    }
}
