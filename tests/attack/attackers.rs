//! Attacker processes, each with its own loopback address. The test binary starts itself with
//! [`FLAG`] as its first argument.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, sleep, timeout_at};

use super::attacks::{ATTACKS, Attack, AttackPort, ConnectionBehaviour, STREAMS};
use super::h2;
use super::support::upstream::now;

/// First argument of the test binary when it runs as an attacker.
pub(crate) const FLAG: &str = "--attacker";
/// Lowest CPU priority (`nice(2)`). The processes stand for other machines, which would not use the
/// cores of the proxy.
pub(crate) const NICENESS: i32 = 19;
/// Number of processes per attack.
const PROCESSES: usize = 4;
/// Unit of the reconnect delay. A connection that the proxy closed is reopened after one to three
/// units. The delays of connections differ, so that they do not reconnect at the same time.
const RECONNECT_UNIT: Duration = Duration::from_secs(1);
/// Number of distinct reconnect delays.
const DELAYS: u32 = 64;

/// The processes of one attack. Dropping it kills them.
#[derive(Debug)]
pub(crate) struct Attackers(Vec<Child>);

// === impl Attackers ===

impl Attackers {
    /// Starts the processes, with `eighths` eighths of the attack's connections in total. They exit
    /// by themselves after `time`.
    pub(crate) fn start(
        attack: &Attack,
        eighths: usize,
        (calls, metrics): (SocketAddr, SocketAddr),
        time: Duration,
    ) -> Result<Self, String> {
        let own = std::env::current_exe().map_err(|error| error.to_string())?;
        let target = if attack.port == AttackPort::Calls { calls } else { metrics };
        let each = (attack.connections * eighths / 8 / PROCESSES).max(1);
        let mut children = Self(Vec::new());
        for number in 0..PROCESSES {
            let args = [
                attack.name.to_owned(),
                target.to_string(),
                number.to_string(),
                each.to_string(),
                time.as_secs().to_string(),
            ];
            let child = Command::new(&own).arg(FLAG).args(args).stdin(Stdio::null()).spawn();
            children.0.push(child.map_err(|error| format!("no attacker: {error}"))?);
        }
        Ok(children)
    }

    /// Kills the processes.
    pub(crate) fn end(self) {
        drop(self);
    }
}

impl Drop for Attackers {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // Both calls fail only if the process has already exited.
            child.kill().ok();
            child.wait().ok();
        }
    }
}

/// Runs an attacker process: holds its connections open until the time is over.
pub(crate) async fn attack(args: &[String]) -> ExitCode {
    let number = |at: usize| args.get(at).and_then(|text| text.parse::<u32>().ok());
    let attack = args.get(1).and_then(|name| ATTACKS.iter().find(|attack| attack.name == name));
    let target = args.get(2).and_then(|text| text.parse::<SocketAddr>().ok());
    let (Some(attack), Some(target), Some(own), Some(each), Some(seconds)) =
        (attack, target, number(3), number(4), number(5))
    else {
        eprintln!("{FLAG} NAME TARGET NUMBER CONNECTIONS SECONDS");
        return ExitCode::FAILURE;
    };
    let until = now() + Duration::from_secs(u64::from(seconds));
    let source = IpAddr::V4(Ipv4Addr::new(127, 0, 0, u8::try_from(own + 2).unwrap_or(2)));
    let opening: &'static [u8] = (attack.opening)().leak();
    let tasks: Vec<_> = (0..each)
        .map(|index| {
            let pause = RECONNECT_UNIT + RECONNECT_UNIT * 2 * (index % DELAYS) / DELAYS;
            tokio::spawn(hold(attack, opening, (source, target), until, pause))
        })
        .collect();
    for task in tasks {
        task.await.ok();
    }
    ExitCode::SUCCESS
}

/// Keeps one connection of the attack open until an instant: opens it again when it has ended.
async fn hold(
    attack: &'static Attack,
    opening: &'static [u8],
    between: (IpAddr, SocketAddr),
    until: Instant,
    pause: Duration,
) {
    while now() < until {
        // Errors are ignored: the attack expects the proxy to close connections.
        timeout_at(until, attack_once(attack, opening, between)).await.ok();
        sleep(pause).await;
    }
}

/// Attacks on one connection until it ends.
async fn attack_once(attack: &Attack, opening: &[u8], (source, target): (IpAddr, SocketAddr)) -> std::io::Result<()> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::new(source, 0))?;
    let mut stream = socket.connect(target).await?;
    stream.set_nodelay(true)?;
    match attack.behaviour {
        ConnectionBehaviour::Take => {
            let (mut reader, mut writer) = stream.split();
            let reading = discard(&mut reader);
            let writing = async {
                writer.write_all(opening).await?;
                std::future::pending::<std::io::Result<()>>().await
            };
            tokio::select! { done = reading => done, done = writing => done }
        }
        ConnectionBehaviour::Stall => {
            stream.write_all(opening).await?;
            std::future::pending().await
        }
        ConnectionBehaviour::Drip => {
            stream.write_all(opening).await?;
            loop {
                sleep(Duration::from_secs(1)).await;
                stream.write_all(b"a").await?;
            }
        }
        ConnectionBehaviour::Upload(bytes) => {
            stream.write_all(opening).await?;
            upload(stream, bytes).await
        }
        ConnectionBehaviour::Differ => differ(stream).await,
        ConnectionBehaviour::Flood(frame) => flood(stream, opening, &frame().repeat(4096)).await,
    }
}

/// Reads and discards everything until the end of the stream.
async fn discard(reader: &mut (impl AsyncReadExt + Unpin)) -> std::io::Result<()> {
    let mut bytes = vec![0; 4 << 10];
    while reader.read(&mut bytes).await? > 0 {}
    Ok(())
}

/// Sends `bytes` on each stream, as far as the flow-control window of the connection allows.
async fn upload(mut stream: TcpStream, bytes: usize) -> std::io::Result<()> {
    let (mut scanner, mut window, mut sent) = (h2::WindowScanner::default(), 65_535, 0);
    let mut read = vec![0; 16 << 10];
    loop {
        while window >= bytes && sent < STREAMS {
            stream.write_all(&h2::frame(0, 0, 2 * sent + 1, &vec![b'a'; bytes])).await?;
            (window, sent) = (window - bytes, sent + 1);
        }
        match stream.read(&mut read).await? {
            0 => return Ok(()),
            count => window += scanner.updates(read.get(..count).unwrap_or_default()),
        }
    }
}

/// Makes a call every 10 ms with a new path, host, credential, header name and body field.
async fn differ(mut stream: TcpStream) -> std::io::Result<()> {
    let mut answer = vec![0; 4 << 10];
    let own = stream.local_addr()?.port();
    for number in 0_u64.. {
        let key = format!("{own}-{number}");
        let path = if number.is_multiple_of(2) { format!("/v1/models/{key}:predict") } else { format!("/{key}") };
        let body = format!("{{\"instances\":[5],\"{key}\":1}}");
        let call = format!(
            "POST {path} HTTP/1.1\r\nhost: {key}\r\nauthorization: {key}\r\nx-{key}: 1\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(call.as_bytes()).await?;
        // Responses are small enough to arrive in one read.
        if stream.read(&mut answer).await? == 0 {
            return Ok(());
        }
        sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

/// Sends `frames` repeatedly, and discards all answers.
async fn flood(mut stream: TcpStream, opening: &[u8], frames: &[u8]) -> std::io::Result<()> {
    let (mut reader, mut writer) = stream.split();
    let reading = discard(&mut reader);
    let writing = async {
        writer.write_all(opening).await?;
        loop {
            writer.write_all(frames).await?;
        }
    };
    tokio::select! { done = reading => done, done = writing => done }
}
