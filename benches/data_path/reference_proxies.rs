//! Proxies for comparison with pass-through: nginx and `HAProxy` as packaged by Debian, with one
//! process and one thread each, killed on drop.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::process::{children, fresh};

/// Number of attempts to connect to a proxy, which does not report when it listens, and the pause
/// between them: four seconds in total.
const CONNECT_ATTEMPTS: u32 = 200;
const CONNECT_INTERVAL: Duration = Duration::from_millis(20);

/// A program that forwards every call, with its Debian package.
#[derive(Clone, Copy)]
pub(crate) enum ReferenceProgram {
    Nginx,
    HaProxy,
}

/// A running instance of a program.
pub(crate) struct ReferenceProxy {
    pub(crate) listen: SocketAddr,
    pub(crate) pids: Vec<u32>,
    child: Child,
    folder: PathBuf,
}

// === impl ReferenceProgram ===

impl ReferenceProgram {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Nginx => "nginx",
            Self::HaProxy => "haproxy",
        }
    }

    pub(crate) const fn package(self) -> &'static str {
        match self {
            Self::Nginx => "nginx-light",
            Self::HaProxy => "haproxy",
        }
    }

    fn config(self, listen: SocketAddr, upstream: SocketAddr, folder: &Path) -> String {
        let at = folder.display();
        match self {
            Self::Nginx => format!(
                "daemon off; worker_processes 1; pid {at}/pid; error_log {at}/error.log;\n\
                 events {{ worker_connections 4096; }}\n\
                 http {{ access_log off; keepalive_requests 100000000; client_body_temp_path {at}/b; proxy_temp_path {at}/p;\n\
                 fastcgi_temp_path {at}/f; uwsgi_temp_path {at}/u; scgi_temp_path {at}/s;\n\
                 upstream model {{ server {upstream}; keepalive 256; keepalive_requests 100000000; }}\n\
                 server {{ listen {listen}; location / {{ proxy_pass http://model; proxy_http_version 1.1; proxy_set_header Connection \"\"; }} }} }}\n"
            ),
            Self::HaProxy => format!(
                "global\n  nbthread 1\n  maxconn 4096\n\
                 defaults\n  mode http\n  timeout connect 5s\n  timeout client 1m\n  timeout server 1m\n\
                 frontend callers\n  bind {listen}\n  default_backend model\n\
                 backend model\n  http-reuse safe\n  server model {upstream}\n"
            ),
        }
    }

    fn command(self, config: &Path, folder: &Path) -> Command {
        let mut command = Command::new(self.name());
        match self {
            Self::Nginx => command.arg("-c").arg(config).arg("-p").arg(folder),
            Self::HaProxy => command.arg("-q").arg("-db").arg("-f").arg(config),
        };
        command
    }
}

// === impl ReferenceProxy ===

impl ReferenceProxy {
    /// Starts the program with persistent connections on both sides and without a log. Returns
    /// `None` if it is not installed or does not listen.
    pub(crate) fn start(program: ReferenceProgram, upstream: SocketAddr) -> Option<Self> {
        let folder = std::env::temp_dir().join(format!("groupage-reference-proxy-{}-{}", std::process::id(), fresh()));
        std::fs::create_dir_all(&folder).ok()?;
        let listen = TcpListener::bind("127.0.0.1:0").ok()?.local_addr().ok()?;
        let path = folder.join("config");
        std::fs::write(&path, program.config(listen, upstream, &folder)).ok()?;
        let child = program.command(&path, &folder).stderr(Stdio::null()).spawn().ok()?;
        let mut this = Self { listen, pids: vec![child.id()], child, folder };
        for _ in 0..CONNECT_ATTEMPTS {
            if TcpStream::connect(listen).is_ok() {
                this.pids.extend(children(this.child.id()));
                return Some(this);
            }
            #[expect(clippy::disallowed_methods, reason = "it does not report when it listens")]
            std::thread::sleep(CONNECT_INTERVAL);
        }
        None
    }
}

impl Drop for ReferenceProxy {
    fn drop(&mut self) {
        for pid in self.pids.iter().skip(1) {
            Command::new("kill").arg(pid.to_string()).status().ok();
        }
        self.child.kill().ok();
        self.child.wait().ok();
        std::fs::remove_dir_all(&self.folder).ok();
    }
}
