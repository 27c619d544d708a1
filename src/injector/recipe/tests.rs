//! Declared servers, and the edits of their recipes.

use serde_json::{Value, json};

use super::choice::names;
use super::table::{FORWARDED_IPS, MoveSetting, RECIPES};
use super::{ContainerEdit, MoveKind, find_matches};
use crate::config;

fn pod(container: &Value) -> Value {
    let mut container = container.clone();
    container["name"] = json!("app");
    json!({"spec": {"containers": [container]}})
}

#[test]
fn forwarding_headers_of_callers_are_not_trusted() {
    let edits = |container: Value| {
        let pod = pod(&container);
        let found = find_matches(&pod, None).into_iter().next().unwrap();
        found.edits(&pod["spec"]["containers"][0], Some)
    };
    let none = ContainerEdit::Variable("FORWARDED_ALLOW_IPS".into(), "192.0.2.0".into());
    let command = json!(["uvicorn", "a:a", "--host", "0.0.0.0"]);
    assert!(edits(json!({"command": command})).contains(&none));
    let own = json!([{"name": "FORWARDED_ALLOW_IPS", "value": "*"}]);
    assert!(!edits(json!({"command": command, "env": own})).contains(&none));
    assert!(!edits(json!({"command": command, "envFrom": [{}]})).contains(&none));
    assert!(!edits(json!({"command": ["vllm", "serve", "m"]})).contains(&none));
}

/// Returns the name of the recipe, the numbers that it moves, and the container edits.
fn moved(container: &Value) -> Option<(&'static str, Vec<u16>, Vec<ContainerEdit>)> {
    let pod = pod(container);
    let found = find_matches(&pod, None).into_iter().next()?;
    let numbers: Vec<u16> = found.listeners.iter().map(|(_, number)| *number).collect();
    let to =
        |number: u16| Some(if found.move_kind(number) == Some(MoveKind::Number) { number + 10_000 } else { number });
    let mut edits = found.edits(&pod["spec"]["containers"][0], to);
    // The edit for trusted proxies is the same for every server of a kind.
    edits.retain(|edit| !matches!(edit, ContainerEdit::Variable(name, _) if name == FORWARDED_IPS.0));
    Some((found.name(), numbers, edits))
}

fn item(list: &'static str, index: usize, set: &str) -> ContainerEdit {
    ContainerEdit::Item { list, index, set: set.to_owned() }
}

fn append(words: &[&str]) -> ContainerEdit {
    ContainerEdit::Append(words.iter().map(|word| (*word).to_owned()).collect())
}

#[test]
fn an_existing_host_flag_is_replaced_and_a_missing_one_is_added() {
    let there = json!({"command": ["uvicorn", "app:app", "--host", "0.0.0.0", "--port=8080"]});
    assert_eq!(moved(&there), Some(("uvicorn", vec![8080], vec![item("command", 3, "127.0.0.1")])));
    let inline = json!({"command": ["python", "-u", "-m", "uvicorn"], "args": ["a:b", "--host=::"]});
    assert_eq!(moved(&inline), Some(("uvicorn", vec![8000], vec![item("args", 1, "--host=127.0.0.1")])));
    let absent = json!({"image": "vllm/vllm-openai:v0.11.0", "args": ["--model", "m"]});
    assert_eq!(moved(&absent), Some(("vllm", vec![8000], vec![append(&["--host=127.0.0.1"])])));
    let two_words = json!({"command": ["llama-server"], "args": ["-m", "m"]});
    assert_eq!(moved(&two_words).unwrap().2, [append(&["--host", "127.0.0.1"])]);
    let there_already = json!({"command": ["llama-server", "--host", "127.0.0.1"]});
    assert_eq!(moved(&there_already), Some(("llama.cpp", vec![8080], vec![])));
}

#[test]
fn every_bind_flag_keeps_its_port() {
    let several = json!({"args": ["/opt/venv/bin/gunicorn", "-b", "0.0.0.0:8000", "--bind=[::]:$(PORT)", "app"],
        "env": [{"name": "PORT", "value": "9000"}]});
    let edits = [item("args", 2, "127.0.0.1:8000"), item("args", 3, "--bind=127.0.0.1:$(PORT)")];
    let (name, numbers, got) = moved(&several).unwrap();
    assert_eq!((name, numbers), ("gunicorn", vec![8000, 9000]));
    assert!(edits.iter().all(|edit| got.contains(edit)) && got.len() == 2, "{got:?}");
    let absent = json!({"command": ["gunicorn", "app:app"], "ports": [{"containerPort": 5000}]});
    assert_eq!(moved(&absent), Some(("gunicorn", vec![5000], vec![append(&["--bind=127.0.0.1:5000"])])));
    assert_eq!(moved(&json!({"command": ["gunicorn", "-b", "unix:/tmp/x", "app:app"]})), None);
    let families = json!({"command": ["hypercorn", "-b", "0.0.0.0:8000", "-b", "[::]:8000", "app:app"]});
    let edits = vec![item("command", 2, "127.0.0.1:8000"), item("command", 4, "127.0.0.2:8000")];
    assert_eq!(moved(&families), Some(("hypercorn", vec![8000, 8000], edits)));
}

#[test]
fn a_requested_listener_moves_with_the_address_of_the_server() {
    let plain = json!({"command": ["litellm", "--config", "c"], "ports": [{"containerPort": 8080}]});
    let edits = vec![append(&["--host=127.0.0.1"])];
    assert_eq!(moved(&plain), Some(("litellm", vec![8080], edits.clone())));
    let metrics = json!({"command": ["litellm", "--config", "c", "--prometheus_metrics_port", "9100"]});
    assert_eq!(moved(&metrics), Some(("litellm", vec![4000, 9100], edits)));
}

#[test]
fn gunicorn_listens_on_the_variable_port_where_it_has_no_bind() {
    let set = json!({"command": ["gunicorn", "app:app"], "env": [{"name": "PORT", "value": "5000"}]});
    assert_eq!(moved(&set), Some(("gunicorn", vec![5000], vec![append(&["--bind=127.0.0.1:5000"])])));
    let unseen = json!({"command": ["gunicorn", "app:app"], "env": [{"name": "PORT", "valueFrom": {}}]});
    assert_eq!(moved(&unseen), None);
}

#[test]
fn a_shells_text_is_changed_in_place() {
    let text = "pip list\nexec vllm serve m --port ${PORT:-8001}";
    let vllm = json!({"command": ["/bin/sh", "-c"], "args": [text]});
    let set = "pip list\nexec vllm serve --host=127.0.0.1 m --port ${PORT:-8001}";
    assert_eq!(moved(&vllm), Some(("vllm", vec![8001], vec![item("args", 0, set)])));
    let both = json!({"command": ["bash", "-lc", "tritonserver --http-address '0.0.0.0' --model-repository=/m"]});
    let set = "tritonserver --grpc-address=127.0.0.1 --http-address 127.0.0.1 --model-repository=/m";
    assert_eq!(moved(&both), Some(("triton", vec![8000, 8001, 8002], vec![item("command", 2, set)])));
    let two = json!({"command": ["sh", "-c", "uvicorn a:a --port 1 & uvicorn b:b --port 2"]});
    assert_eq!(moved(&two), None);
}

#[test]
fn a_server_without_an_address_of_its_own_moves_to_another_port() {
    let kserve = json!({"image": "kserve/sklearnserver:v0.15.2", "args": ["--model_name=m", "--http_port=8080"]});
    let edits = vec![item("args", 1, "--http_port=18080"), append(&["--grpc_port=18081"])];
    assert_eq!(moved(&kserve), Some(("kserve", vec![8080, 8081], edits)));
}

#[test]
fn variables_are_set_where_the_server_has_them() {
    let mlserver =
        json!({"image": "seldonio/mlserver:1.6.1", "env": [{"name": "MLSERVER_HTTP_PORT", "value": "9000"}]});
    let edits = vec![ContainerEdit::Variable("MLSERVER_HOST".into(), "127.0.0.1".into())];
    assert_eq!(moved(&mlserver), Some(("mlserver", vec![9000, 8081, 8082], edits)));
    let ollama = json!({"image": "ollama/ollama", "env": [{"name": "OLLAMA_HOST", "value": "0.0.0.0:8080"}]});
    let edits = vec![ContainerEdit::Variable("OLLAMA_HOST".into(), "127.0.0.1:8080".into())];
    assert_eq!(moved(&ollama), Some(("ollama", vec![8080], edits)));
}

#[test]
fn captured_listeners_move_with_those_that_share_their_setting() {
    let edits = |container: &Value, captured: &[u16]| {
        let pod = pod(container);
        let found = find_matches(&pod, None).into_iter().next().unwrap();
        let is_captured = |number: u16| captured.contains(&number);
        let edits = found.edits(&pod["spec"]["containers"][0], |number| is_captured(number).then_some(number));
        (edits, found.ports_moved_along(is_captured))
    };
    let triton = json!({"command": ["tritonserver", "--metrics-address=0.0.0.0"]});
    let http = vec![item("command", 1, "--metrics-address=127.0.0.1"), append(&["--http-address=127.0.0.1"])];
    assert_eq!(edits(&triton, &[8000]), (http, vec![8002]));
    assert_eq!(edits(&triton, &[8001]), (vec![append(&["--grpc-address=127.0.0.1"])], vec![]));
    let mlserver = json!({"image": "seldonio/mlserver:1.6.1"});
    let host = vec![ContainerEdit::Variable("MLSERVER_HOST".into(), "127.0.0.1".into())];
    assert_eq!(edits(&mlserver, &[8081]), (host, vec![8080, 8082]));
}

#[test]
fn a_variable_takes_the_place_of_a_flag_where_arguments_are_the_images() {
    let tei = json!({"image": "ghcr.io/huggingface/text-embeddings-inference:1.8", "env": [{"name": "MODEL_ID"}]});
    let edits = vec![ContainerEdit::Variable("HOSTNAME".into(), "127.0.0.1".into())];
    assert_eq!(moved(&tei), Some(("tei", vec![80, 9000], edits)));
    let flag = json!({"image": "ghcr.io/huggingface/text-embeddings-inference:1.8", "args": ["--model-id", "m"]});
    assert_eq!(moved(&flag).unwrap().2, [append(&["--hostname=127.0.0.1"])]);
    let serving = json!({"image": "tensorflow/serving"});
    assert_eq!(moved(&serving).unwrap().2, [append(&["--rest_api_port=18501"]), append(&["--port=18500"])]);
}

#[test]
fn no_recipe_applies_if_its_setting_would_have_no_effect() {
    let torchserve = |env: &Value| json!({"image": "pytorch/torchserve", "env": env});
    assert_eq!(moved(&torchserve(&json!([]))), None);
    assert!(moved(&torchserve(&json!([{"name": "TS_INFERENCE_ADDRESS", "value": "http://0.0.0.0:8080"}]))).is_some());
    assert_eq!(moved(&json!({"command": ["serve", "start"]})), None);
    assert!(moved(&json!({"command": ["serve", "start", "--proxy-location=HeadOnly"]})).is_some());
    let prefill = ["sglang", "serve", "--disaggregation-mode", "prefill"];
    assert_eq!(moved(&json!({"command": prefill})), None);
    assert_eq!(moved(&json!({"command": prefill[..2]})).unwrap().0, "sglang");
}

#[test]
fn listeners_already_on_loopback_are_recognised() {
    let local = |container: &Value, number: u16| {
        let pod = pod(container);
        find_matches(&pod, None).first().unwrap().is_local(number, &pod["spec"]["containers"][0])
    };
    assert!(local(&json!({"command": ["uvicorn", "a:a"]}), 8000));
    assert!(local(&json!({"command": ["vllm", "serve", "m", "--host=localhost"]}), 8000));
    assert!(!local(&json!({"command": ["uvicorn", "a:a", "--host", "0.0.0.0"]}), 8000));
    assert!(!local(&json!({"command": ["vllm", "serve", "m"]}), 8000));
    assert!(!local(&json!({"command": ["gunicorn", "-c", "conf.py", "a:a"]}), 8000));
    let torchserve = json!({"image": "pytorch/torchserve",
        "env": [{"name": "TS_INFERENCE_ADDRESS", "value": "http://0.0.0.0:8080"}]});
    assert!(!local(&torchserve, 8080) && local(&torchserve, 8081));
}

#[test]
fn ambiguous_containers_have_no_recipe() {
    for container in [
        json!({"command": ["sh", "-c", "OLLAMA_HOST=0.0.0.0 ollama serve"]}),
        json!({"command": ["sh", "-c", "export MLSERVER_HOST=0.0.0.0; mlserver start ."]}),
        json!({"command": ["env", "OLLAMA_HOST=0.0.0.0", "ollama", "serve"]}),
        json!({"command": ["sh", "-c", "vllm serve m $ARGS"], "env": [{"name": "ARGS", "value": "--host 0.0.0.0"}]}),
        json!({"command": ["sh", "-c", "vllm serve $MODEL $UNSEEN"]}),
        json!({"command": ["sh", "-c", "if a; then uvicorn b:b\nelse\npython c.py\nfi"]}),
        json!({"command": ["gunicorn", "-c", "conf.py", "a:a"], "ports": [{"containerPort": 1}, {"containerPort": 2}]}),
        json!({"command": ["python", "app.py"]}),
        json!({"command": ["vllm", "bench"]}),
        json!({"command": ["uvicorn", "a:a", "--uds", "/tmp/x"]}),
        json!({"command": ["uvicorn", "a:a", "--port", "$(PORT)"]}),
        json!({"image": "vllm/vllm-openai"}),
        json!({"image": "ollama/ollama", "env": [{"name": "OLLAMA_HOST", "valueFrom": {}}]}),
        json!({"command": ["llama-server"], "env": [{"name": "LLAMA_ARG_PORT", "valueFrom": {}}]}),
        json!({"image": "example.com/not-vllm/vllm-openai-like", "args": ["--model", "m"]}),
        json!({"image": "vllm/vllm-openai", "command": ["my-launcher"], "args": ["--model", "m"]}),
    ] {
        assert_eq!(moved(&container), None, "{container}");
    }
}

#[test]
fn every_recipe_has_a_source_and_a_way_to_be_recognised() {
    for recipe in RECIPES {
        assert!(recipe.source.starts_with("https://"), "{}", recipe.name);
        assert!(!(recipe.programs.is_empty() && recipe.modules.is_empty()), "{}", recipe.name);
        assert!(!recipe.listeners.is_empty() && !recipe.merges.is_empty(), "{}", recipe.name);
    }
    let mut names: Vec<_> = names().collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), RECIPES.len());
}

#[test]
fn a_policy_may_set_every_setting_by_which_a_recipe_moves_a_server() {
    for listener in RECIPES.iter().flat_map(|recipe| recipe.listeners) {
        let mut flags = listener.port_flags.to_vec();
        let mut variables: Vec<&str> = listener.port_env.into_iter().collect();
        match listener.setting {
            MoveSetting::Host(more)
            | MoveSetting::Bind(more)
            | MoveSetting::Port(more)
            | MoveSetting::WithFirst(more) => flags.extend_from_slice(more),
            MoveSetting::HostOrEnv(more, variable) => {
                flags.extend_from_slice(more);
                variables.push(variable);
            }
            MoveSetting::HostEnv(variable) | MoveSetting::BindEnv(variable, _) => variables.push(variable),
        }
        // The meaning of a letter differs between programs.
        for flag in flags.into_iter().filter(|flag| flag.starts_with("--")) {
            assert!(config::is_listen_override(&format!("arg:{flag}=9000")), "{flag}");
        }
        for variable in variables {
            assert!(config::is_listen_override(&format!("env:{variable}=127.0.0.1")), "{variable}");
        }
    }
}

#[test]
fn a_server_in_a_branch_loop_or_function_of_a_script_has_no_recipe() {
    let shell = |text: &str| json!({"command": ["sh", "-c", text]});
    let server = "uvicorn a:b --host 0.0.0.0 --port 8000";
    for text in [
        format!("if [ \"$DEV\" = 1 ]; then exec {server} --reload; fi; exec {server}"),
        "if [ \"$DEV\" = 1 ]; then uvicorn a:b; fi; exec python serve.py".to_owned(),
        format!("run() {{ {server}; }}; run"),
        format!("while true; do {server}; done"),
        format!("! {server}"),
    ] {
        assert_eq!(moved(&shell(&text)), None, "{text}");
    }
    let before = shell(&format!("if [ -n \"$X\" ]; then export Y=1; fi; exec {server}"));
    assert_eq!(moved(&before).map(|(name, ..)| name), Some("uvicorn"));
}

#[test]
fn a_server_is_named_where_its_command_is_not_read() {
    for text in ["exec gunicorn -w $(nproc) a:b", "uv run --no-sync gunicorn a:b", "python -m gunicorn \"$@\""] {
        assert_eq!(super::named_server(&json!({"command": ["bash", "-c", text]})), Some("gunicorn"), "{text}");
    }
    assert_eq!(super::named_server(&json!({"command": ["python", "serve.py"]})), None);
}
