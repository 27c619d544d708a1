use regex::Regex;

use super::*;

#[test]
fn app_listen_accepts_addresses_and_ports_of_known_settings() {
    for good in [
        "env:OLLAMA_HOST=127.0.0.1:11434",
        "env:HOST=::1",
        "env:TS_INFERENCE_ADDRESS=http://127.0.0.1:8080",
        "server/arg:--http-address=127.0.0.1,arg:--grpc-address=127.0.0.1",
        "arg:--host 127.0.0.1",
        "arg:--port=9001",
        "arg:--bind=[::1]:8000",
        "arg:--listen=127.0.0.1:8080",
        "env:MLSERVER_HOST=localhost",
        "env:MLSERVER_HTTP_PORT=9000, env:UVICORN_HOST=127.1.2.3",
    ] {
        assert!(is_app_listen(good), "{good}");
    }
    for bad in [
        "env:HOST=0.0.0.0",
        "env:HOST=10.0.0.1:80",
        "env:HOST=$(touch x)",
        "env:HOST=127.0.0.1 --reload",
        "env:HOST= 127.0.0.1",
        "env:A HOST=127.0.0.1",
        "env:HOST=127.0.0.1,env:LD_AUDIT=127.0.0.1",
        "arg:--host=127.0.0.1 --app-dir=/x",
        "arg:127.0.0.1",
        "arg:--host",
        "env:PORT=65536",
        "env:PORT=",
    ] {
        assert!(!is_app_listen(bad), "{bad}");
    }
}

#[test]
fn code_and_the_addresses_of_other_servers_are_refused() {
    for name in [
        "LD_PRELOAD",
        "LD_HOST",
        "LD_PORT",
        "PATH",
        "PYTHONPATH",
        "PYTHONSTARTUP",
        "PYTHON_HOST",
        "PYTHON_PORT",
        "GUNICORN_CMD_ARGS",
        "HTTP_PROXY",
        "https_proxy",
        "HTTP_PROXY_HOST",
        "VAULT_ADDR",
        "CONSUL_HTTP_ADDR",
        "DOCKER_HOST",
        "KUBERNETES_SERVICE_HOST",
        "BACKEND_HOST",
        "REDIS_HOST",
        "MLFLOW_TRACKING_ADDRESS",
        "MASTER_ADDR",
    ] {
        for value in ["127.0.0.1", "tcp://127.0.0.1:1", "9999"] {
            assert!(!is_app_listen(&format!("env:{name}={value}")), "{name}={value}");
            assert!(!is_app_listen(&format!("env:HOST=::1,env:{name}={value}")), "{name}={value}");
        }
    }
    for argument in
        ["-Dcom.sun.management.jmxremote.port=9999", "--backend-host=127.0.0.1", "--config=127.0.0.1", "--proxy=::1"]
    {
        assert!(!is_app_listen(&format!("arg:{argument}")), "{argument}");
    }
}

/// Returns every form in which a setting could be written, most of which are refused.
fn forms(name: &str, value: &str) -> [String; 9] {
    [
        format!("env:{name}={value}"),
        format!("env:{name} {value}"),
        format!("arg:{name}={value}"),
        format!("arg:-{name}={value}"),
        format!("arg:--{name}={value}"),
        format!("arg:--{name}  {value}"),
        format!("arg:--{name}= {value}"),
        format!("arg:--{name} ={value}"),
        format!("arg:---{name}={value}"),
    ]
}

/// Fails unless the pattern and the check agree. Returns `true` if they accept the text.
#[track_caller]
fn is_accepted_by_both(pattern: &Regex, text: &str) -> bool {
    assert_eq!(pattern.is_match(text), is_app_listen(text), "{text:?}");
    is_app_listen(text)
}

#[test]
fn the_pattern_matches_exactly_what_the_loader_accepts() {
    let pattern = Regex::new(PATTERN).unwrap();
    for name in VARIABLES.iter().chain(FLAGS) {
        assert!(name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')), "{name}");
        let accepted = forms(name, "127.0.0.1:80").iter().filter(|text| is_accepted_by_both(&pattern, text)).count();
        assert_eq!(accepted, if VARIABLES.contains(name) { 1 } else { 3 }, "{name}");
        for other in [format!("X_{name}"), format!("{name}_"), name.to_ascii_lowercase(), name.to_ascii_uppercase()] {
            for text in forms(&other, "80") {
                is_accepted_by_both(&pattern, &text);
            }
        }
    }
    let hosts = ["", "localhost", "LOCALHOST", "127.0.0.1", "127.255.255.255", "127.0.0.256", "127.0.0.01", "127.0.0"];
    let more = ["128.0.0.1", "127.999.999.999", "::1", "[::1]", "::", "::2", "127.0.0.1.1", "localhost\n"];
    let ports = ["", ":", "0", "80", "00080", "000080", "59999", "60000", "64999", "65535", "65536", "66000", "99999"];
    let mut accepted = 0;
    for scheme in ["", "http://", "https://", "grpc://", "tcp://", "ftp://", "http://http://"] {
        for host in hosts.iter().chain(&more) {
            for port in ports {
                for value in [format!("{scheme}{host}{port}"), format!("{scheme}{host}:{port}")] {
                    accepted += usize::from(is_accepted_by_both(&pattern, &format!("env:HOST={value}")));
                }
            }
        }
    }
    assert!(accepted > 100, "{accepted}");
}

#[test]
fn the_pattern_separates_settings_as_the_loader_does() {
    let pattern = Regex::new(PATTERN).unwrap();
    let settings = ["env:HOST=::1", "arg:--port 80", "env:LD_HOST=::1", "c/env:HOST=::1", "", "x"];
    let separators = [",", ", ", ",  ", " ,", ",,", ";", "/", ",\n", ",\u{85}"];
    let mut accepted = 0;
    for container in ["", "a/", "a-1/", "A/", "/", "a/b/", " "] {
        for first in settings {
            for separator in separators {
                for second in settings {
                    let text = format!("{container}{first}{separator}{second}");
                    accepted += usize::from(is_accepted_by_both(&pattern, &text));
                }
            }
        }
    }
    // Two settings in four orders, with three separators, without a container and with two.
    assert!(accepted >= 36, "{accepted}");
}

#[test]
fn the_page_about_injection_lists_the_known_settings() {
    let page = include_str!("../../../../docs/injection.md");
    for name in VARIABLES.iter().chain(FLAGS) {
        assert!(page.contains(&format!("`{name}`")), "{name}");
    }
}
