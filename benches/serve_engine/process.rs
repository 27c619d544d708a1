//! The two servers, each as a process that is killed when it is dropped.

use std::io::{BufRead as _, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

/// A running server.
pub(crate) struct ServerProcess {
    child: Child,
    pub(crate) address: SocketAddr,
}

// === impl ServerProcess ===

impl ServerProcess {
    /// Starts the proxy with the engine, without a policy.
    pub(crate) fn start_engine(model: &Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_groupage"));
        command.args([
            "proxy",
            "--log-format",
            "json",
            "--listen",
            "127.0.0.1:0",
            "--metrics",
            "off",
            "--admin",
            "off",
        ]);
        command.arg("--engine").arg(model);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
        let address = lines.find_map(|line| {
            let line: Value = serde_json::from_str(&line).ok().filter(|line: &Value| line["msg"] == "listening")?;
            line["listen"][0].as_str()?.parse().ok()
        });
        // A pipe that nothing reads would block the process once it is full.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, address: address.expect("the proxy listens") }
    }

    /// Starts the other side. The error is the reason for which it cannot run.
    pub(crate) fn start_fastapi(python: &Path, model: &Path) -> Result<Self, String> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/serve_engine/fastapi_side.py");
        let mut command = Command::new(python);
        command.arg("-B").arg(script).arg(model).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| format!("{}: {error}", python.display()))?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        match line.trim().parse() {
            Ok(port) => Ok(Self { child, address: (Ipv4Addr::LOCALHOST, port).into() }),
            Err(_) => {
                child.wait().unwrap();
                Err("its process failed".to_owned())
            }
        }
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // Both fail only if the process has already ended.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
