//! `groupage redirect-init` in a real network: two network namespaces, one for the pod and one for
//! its clients, joined by a veth pair. The test listens and connects in each of them.
//!
//! Requires root, `unshare`, `ip` and a kernel with `nf_tables`. If one of them is missing, the
//! test reports it and is skipped.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Maximum time to wait for a connection or a response.
const ANSWER_MAX: Duration = Duration::from_secs(10);

const POD: [&str; 2] = ["10.99.0.1", "fd99::1"];
const OUTSIDE: [&str; 2] = ["10.99.0.2", "fd99::2"];
/// Variable that the kubelet sets in every container of a pod, and a value of it.
const IN_POD: (&str, &str) = ("KUBERNETES_SERVICE_HOST", "10.96.0.1");
const LOOPBACK: [&str; 2] = ["127.0.0.1", "::1"];

/// A network namespace. It exists for as long as the process that was started in it.
struct NetworkNamespace {
    holder: Child,
    file: File,
}

impl NetworkNamespace {
    fn new() -> Option<Self> {
        let mut holder = Command::new("unshare")
            .args(["--net", "sh", "-c", "echo there; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let mut line = String::new();
        BufReader::new(holder.stdout.take()?).read_line(&mut line).ok()?;
        let file = (line == "there\n").then(|| File::open(format!("/proc/{}/ns/net", holder.id())));
        let Some(Ok(file)) = file else {
            holder.wait().unwrap();
            return None;
        };
        Some(Self { holder, file })
    }

    /// Runs a closure in this namespace. Processes that the closure starts run in it too.
    fn run_inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                rustix::thread::move_into_link_name_space(self.file.as_fd(), None).unwrap();
                work()
            });
            thread.join().unwrap()
        })
    }

    fn ip(&self, args: &str) {
        let status = self.run_inside(|| Command::new("ip").args(args.split(' ')).status().unwrap());
        assert!(status.success(), "ip {args}");
    }

    /// Accepts connections on both IP versions until the process ends, and sends a word to each.
    /// Returns the port.
    fn serve_word(&self, word: &'static str) -> u16 {
        let listener = self.run_inside(|| TcpListener::bind("[::]:0").unwrap());
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            for caller in listener.incoming() {
                // The client may have disconnected.
                let _written = caller.and_then(|mut caller| caller.write_all(word.as_bytes()));
            }
        });
        port
    }

    /// Returns the word that the listener at this address sends.
    fn read_word(&self, address: &str, port: u16) -> String {
        self.run_inside(|| {
            let address = SocketAddr::new(address.parse::<IpAddr>().unwrap(), port);
            let mut stream = TcpStream::connect_timeout(&address, ANSWER_MAX).unwrap();
            stream.set_read_timeout(Some(ANSWER_MAX)).unwrap();
            let mut word = String::new();
            stream.read_to_string(&mut word).unwrap();
            word
        })
    }
}

impl Drop for NetworkNamespace {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        self.holder.wait().ok();
    }
}

/// The network of a pod, and a network outside it.
struct PodNetwork {
    pod: NetworkNamespace,
    outside: NetworkNamespace,
}

impl PodNetwork {
    /// Returns `None` and reports the reason if the environment lacks a requirement.
    fn new() -> Option<Self> {
        let missing = |what: &str| {
            crate::report_skipped(what);
            None
        };
        if Command::new("ip").arg("-V").output().is_err() {
            return missing("no ip (iproute2)");
        }
        let (Some(pod), Some(outside)) = (NetworkNamespace::new(), NetworkNamespace::new()) else {
            return missing("cannot create a network namespace (requires root and unshare)");
        };
        let net = Self { pod, outside };
        let probe = net.redirect(&[], &["1=2"]);
        if probe.words.contains("no nf_tables") {
            return missing("the kernel has no nf_tables");
        }
        net.pod.ip(&format!("link add eth0 type veth peer name eth0 netns {}", net.outside.holder.id()));
        for (space, addresses) in [(&net.pod, POD), (&net.outside, OUTSIDE)] {
            for device in ["lo", "eth0"] {
                space.ip(&format!("link set {device} up"));
            }
            space.ip(&format!("addr add {}/24 dev eth0", addresses[0]));
            // `nodad` skips duplicate address detection, during which the address could not be
            // connected to.
            space.ip(&format!("addr add {}/64 dev eth0 nodad", addresses[1]));
        }
        Some(net)
    }

    /// Runs the init container's command in the pod. `by` is a command that wraps it, or empty.
    fn redirect(&self, by: &[&str], redirects: &[&str]) -> CommandOutput {
        let command = [by, &[env!("CARGO_BIN_EXE_groupage"), "redirect-init"]].concat();
        let args = redirects.iter().flat_map(|redirect| ["--redirect", redirect]);
        let mut command_in_pod = Command::new(command[0]);
        command_in_pod.args(&command[1..]).args(args).env(IN_POD.0, IN_POD.1);
        let out = self.pod.run_inside(|| command_in_pod.output().unwrap());
        let words = [out.stdout, out.stderr].concat();
        CommandOutput { exit: out.status.code(), words: String::from_utf8(words).unwrap() }
    }

    fn read_outside(&self, port: u16) -> [String; 2] {
        POD.map(|address| self.outside.read_word(address, port))
    }

    fn read_inside(&self, port: u16) -> [String; 4] {
        [LOOPBACK[0], LOOPBACK[1], POD[0], POD[1]].map(|address| self.pod.read_word(address, port))
    }
}

#[derive(Debug, PartialEq, Eq)]
struct CommandOutput {
    exit: Option<i32>,
    words: String,
}

#[test]
fn external_calls_reach_sidecar_local_calls_application() {
    let Some(net) = PodNetwork::new() else { return };
    let (app, other, sidecar) = (net.pod.serve_word("app"), net.pod.serve_word("other"), net.pod.serve_word("sidecar"));
    assert_eq!(net.read_outside(app), ["app"; 2]);
    let to = |port: u16| format!("{port}={sidecar}");
    // An init container may run again.
    for _ in 0..2 {
        let ran = net.redirect(&[], &[&to(app)]);
        assert_eq!(ran, CommandOutput { exit: Some(0), words: format!("port {app} is redirected to {sidecar}\n") });
        assert_eq!(net.read_outside(app), ["sidecar"; 2]);
        assert_eq!(net.read_outside(other), ["other"; 2], "no other port is touched");
        assert_eq!(net.read_outside(sidecar), ["sidecar"; 2]);
        assert_eq!(net.read_inside(app), ["app"; 4]);
    }
    // The rules of the earlier runs are gone, also those that were written twice.
    assert_eq!(net.redirect(&[], &[&to(other)]).exit, Some(0));
    assert_eq!(
        (net.read_outside(app), net.read_outside(other)),
        (["app"; 2].map(str::to_owned), ["sidecar"; 2].map(str::to_owned))
    );
    assert_eq!(net.redirect(&[], &[&to(app), &to(other)]).exit, Some(0));
    assert_eq!([net.read_outside(app), net.read_outside(other)].concat(), ["sidecar"; 4]);
}

#[test]
fn missing_net_admin_is_reported_and_changes_nothing() {
    let Some(net) = PodNetwork::new() else { return };
    let without = ["setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin"];
    if Command::new(without[0]).arg("--version").output().is_err() {
        crate::report_skipped("no setpriv (util-linux)");
        return;
    }
    let (app, sidecar) = (net.pod.serve_word("app"), net.pod.serve_word("sidecar"));
    let ran = net.redirect(&without, &[&format!("{app}={sidecar}")]);
    assert_eq!(ran.exit, Some(69), "{}", ran.words);
    assert!(ran.words.starts_with("no port is redirected: ") && ran.words.contains("NET_ADMIN"), "{}", ran.words);
    assert_eq!(net.read_outside(app), ["app"; 2]);
}

#[test]
fn invalid_flags_are_refused() {
    let refused = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_groupage"));
        let out = command.arg("redirect-init").args(args).env(IN_POD.0, IN_POD.1).output().unwrap();
        (out.status.code(), String::from_utf8(out.stderr).unwrap())
    };
    for (args, word) in [
        (&[][..], "--redirect"),
        (&["--redirect", "http=15080"], "PORT=LISTEN"),
        (&["--redirect", "80=15080", "--redirect", "80=15081"], "given twice"),
    ] {
        let (exit, words) = refused(args);
        assert!(exit == Some(2) && words.contains(word), "{exit:?} {words}");
    }
}

#[test]
fn redirects_outside_a_pod_require_force_and_print_how_to_undo_them() {
    let redirect_init = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_groupage"));
        command.arg("redirect-init").args(args).env_remove(IN_POD.0);
        command
    };
    // Invalid redirects, so that a missing refusal writes no rule on this machine.
    let invalid = ["--redirect", "80=15080", "--redirect", "80=15081"];
    let out = redirect_init(&invalid).output().unwrap();
    let report = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(2), "{report}");
    assert!(report.contains("--force") && report.contains("nft delete table inet groupage"), "{report}");
    let help = Command::new(env!("CARGO_BIN_EXE_groupage")).arg("--help").output().unwrap();
    assert!(!String::from_utf8(help.stdout).unwrap().contains("redirect-init"));

    let Some(net) = PodNetwork::new() else { return };
    let out = net.pod.run_inside(|| redirect_init(&["--redirect", "1=2", "--force"]).output().unwrap());
    let report = String::from_utf8(out.stdout).unwrap();
    assert_eq!(report, "port 1 is redirected to 2\nto undo: nft delete table inet groupage\n");
}
