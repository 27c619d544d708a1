//! `groupage proxy --engine` as a process, with the tiny models of the tests of `groupage_engine`:
//! `cargo test --locked --features engine --test engine`.

#![expect(clippy::unwrap_used, reason = "a test that cannot continue reports its place")]

#[path = "../support/command.rs"]
mod command;
mod curl;
mod process;
use futures_util::future::join_all;
use process::EngineProcess;
use rustix::process::Signal;
use serde_json::{Value, json};

/// Settings under which calls are held until there are `items` of them, or the process drains.
fn holding(items: usize) -> String {
    json!({
        "scheduling": {"policy": "Static", "items": items, "delay": "1m"},
        "limits": {"queueDelayMax": "1m"},
    })
    .to_string()
}

/// Bodies of 64 calls of equal options and different lengths.
fn bodies() -> Vec<Value> {
    (0..64).map(|call| json!({"inputs": format!("the quick fox {call} {}", "jumps ".repeat(call % 7))})).collect()
}

#[tokio::test]
async fn answers_are_equal_alone_and_among_64_calls() {
    let process = EngineProcess::start("bert", None).await;
    let mut expected = Vec::new();
    for body in bodies() {
        let (status, answer) = process.post("/embed", &body).await;
        assert_eq!(status, 200, "{answer:?}");
        expected.push(answer);
    }
    assert_eq!(process.metric("groupage_engine_sequences_total").await, Some(64.0));
    let calls = bodies();
    let concurrent = join_all(calls.iter().map(|body| process.post("/embed", body))).await;
    assert!(concurrent.iter().zip(&expected).all(|((status, answer), expected)| *status == 200 && answer == expected));
    // The calls of this process form one batch, which is larger than the other one's by design.
    let together = EngineProcess::start("bert", Some(&holding(64))).await;
    let shared = join_all(calls.iter().map(|body| together.post("/embed", body))).await;
    for ((status, answer), expected) in shared.iter().zip(&expected) {
        assert_eq!((status, answer), (&200, expected));
    }
    assert_eq!(together.metric("groupage_batch_items_sum").await, Some(64.0));
    assert_eq!(together.metric("groupage_batch_items_count").await, Some(1.0));
    assert_eq!(together.metric("groupage_engine_batches_total").await, Some(1.0));
    assert_eq!(together.metric("groupage_engine_sequences_total").await, Some(64.0));
}

#[tokio::test]
async fn a_member_that_is_not_accepted_does_not_affect_its_batch() {
    let process = EngineProcess::start("bert", Some(&holding(3))).await;
    let calls = ["a fox", &"a ".repeat(100), "a dog"].map(|text| json!({"inputs": text, "truncate": false}));
    let answers = join_all(calls.iter().map(|body| process.post("/embed", body))).await;
    assert_eq!(answers.iter().map(|(status, _)| *status).collect::<Vec<_>>(), [200, 422, 200]);
    let error: Value = serde_json::from_slice(&answers[1].1).unwrap();
    assert_eq!(error["error_type"], "Validation");
    assert!(error["error"].as_str().unwrap().contains("32"), "{error}");
    assert_eq!(process.metric("groupage_batch_items_count").await, Some(1.0));
}

#[tokio::test]
async fn the_weight_of_a_call_is_its_number_of_tokens() {
    let process = EngineProcess::start("bert", None).await;
    let (status, answer) = process.post("/v1/embeddings", &json!({"input": ["the quick brown fox.", "fox"]})).await;
    assert_eq!(status, 200);
    let answer: Value = serde_json::from_slice(&answer).unwrap();
    let tokens = answer["usage"]["total_tokens"].as_f64();
    assert!(tokens.is_some_and(|tokens| tokens > 4.0), "{answer}");
    assert_eq!(process.metric("groupage_batch_weight_sum").await, tokens);
    assert_eq!(process.metric("groupage_engine_tokens_total").await, tokens);
}

#[tokio::test]
async fn a_reranker_serves_the_formats_of_tei_and_of_cohere() {
    let process = EngineProcess::start("bert-rerank", None).await;
    let texts = json!(["a fox", "a dog", "the moon"]);
    let (status, tei) = process.post("/rerank", &json!({"query": "fox", "texts": texts})).await;
    assert_eq!(status, 200);
    let tei: Vec<Value> = serde_json::from_slice(&tei).unwrap();
    for path in ["/rerank", "/v1/rerank", "/v2/rerank"] {
        let body = json!({"model": "any", "query": "fox", "documents": texts, "top_n": 1});
        let (status, cohere) = process.post(path, &body).await;
        assert_eq!(status, 200);
        let cohere: Value = serde_json::from_slice(&cohere).unwrap();
        assert_eq!(cohere["results"].as_array().unwrap().len(), 1);
        assert_eq!(cohere["results"][0]["index"], tei[0]["index"], "{path}");
        assert_eq!(cohere["results"][0]["relevance_score"], tei[0]["score"], "{path}");
    }
    let (status, _) = process.post("/embed", &json!({"inputs": "a fox"})).await;
    assert_eq!(status, 424);
    let (status, info) = process.get("/info").await;
    assert_eq!(status, 200);
    let info: Value = serde_json::from_slice(&info).unwrap();
    assert_eq!((&info["model_id"], &info["max_input_length"]), (&json!("bert-rerank"), &json!(32)));
    assert!(info["model_type"]["reranker"].is_object());
    assert_eq!(process.get("/v1/unknown").await.0, 404);
    assert_eq!(process.get("/rerank").await.0, 405);
}

#[tokio::test]
async fn calls_to_the_paths_that_depend_on_the_model_share_batches() {
    for (model, own, body) in [
        ("bert", "/embed", json!({"inputs": "a fox"})),
        ("distilbert-classify", "/predict", json!({"inputs": "a fox"})),
        ("bert-rerank", "/rerank", json!({"query": "fox", "texts": ["a fox"]})),
    ] {
        let process = EngineProcess::start(model, Some(&holding(4))).await;
        for path in [own, "/", "/invocations"] {
            let calls = [(); 4].map(|()| process.post(path, &body));
            let answers = join_all(calls).await;
            assert!(answers.iter().all(|answer| answer.0 == 200 && *answer == answers[0]), "{model} {path}");
        }
        assert_eq!(process.metric("groupage_engine_batches_total").await, Some(3.0), "{model}: one for each path");
    }
}

#[tokio::test]
async fn calls_with_documents_share_batches_and_are_answered_as_if_unbatched() {
    let calls: Vec<Value> =
        [json!(["a fox", "a dog", "the moon"]), json!(["the fox"]), json!([{"text": "a dog"}, "b"])]
            .into_iter()
            .map(|documents| json!({"query": "fox", "documents": documents, "top_n": 2, "return_documents": true}))
            .collect();
    let (unbatched, together) =
        (EngineProcess::start("bert-rerank", None).await, EngineProcess::start("bert-rerank", Some(&holding(6))).await);
    for (path, batches) in ["/rerank", "/v1/rerank", "/v2/rerank", "/"].into_iter().zip([1.0, 2.0, 3.0, 4.0]) {
        let answers = join_all(calls.iter().map(|body| together.post(path, body))).await;
        for (body, answer) in calls.iter().zip(answers) {
            assert_eq!(answer.0, 200, "{path}: {answer:?}");
            assert_eq!(answer, unbatched.post(path, body).await, "{path}");
        }
        let found = together.metric("groupage_engine_batches_total").await;
        assert_eq!(found, Some(batches), "one batch for each path");
    }
    assert_eq!(together.metric("groupage_batch_items_sum").await, Some(24.0));
}

#[tokio::test]
async fn a_queued_call_is_cancelled_when_its_client_disconnects() {
    let process = EngineProcess::start("bert", Some(&holding(2))).await;
    let call = json!({"inputs": "a fox"});
    {
        let abandoned = process.post("/embed", &call);
        tokio::pin!(abandoned);
        tokio::select! {
            _ = &mut abandoned => panic!("the call is held"),
            () = process.until_queued(1) => {}
        }
    }
    process.until_queued(0).await;
    let (first, second) = tokio::join!(process.post("/embed", &call), process.post("/embed", &call));
    assert_eq!((first.0, second.0), (200, 200));
    assert_eq!(process.metric("groupage_engine_sequences_total").await, Some(2.0), "the third was never executed");
}

#[tokio::test]
async fn a_drain_answers_the_calls_that_were_accepted() {
    let mut process = EngineProcess::start("bert", Some(&holding(100))).await;
    let listen = process.listen;
    let calls: Vec<_> = (0..5)
        .map(|call| {
            tokio::spawn(
                async move { process::post(listen, "/embed", &json!({"inputs": format!("fox {call}")})).await },
            )
        })
        .collect();
    process.until_queued(5).await;
    process.signal(Signal::TERM);
    for call in calls {
        assert_eq!(call.await.unwrap().0, 200);
    }
    assert_eq!(process.end().await, Some(0));
    assert!(process.has_logged("drained"));
}

#[tokio::test]
async fn the_state_of_the_engine_is_reported() {
    let process = EngineProcess::start("bert", None).await;
    let report = process.scheduler_report().await;
    let engine = &report["engine"];
    assert_eq!(
        (&engine["model"], &engine["state"], &engine["batch_tokens_max"]),
        (&json!("bert"), &json!("ready"), &json!(16_384))
    );
    assert!(engine["executor"]["kernels"].as_str().unwrap().starts_with("CPU"), "{engine}");
    assert!(!engine["device_reason"].as_str().unwrap().is_empty(), "{engine}");
    for message in ["device of the engine", "listening", "loading the model", "engine is ready"] {
        assert!(process.has_logged(message), "{message}");
    }
}

#[tokio::test]
async fn a_policy_names_the_model_and_limits_the_length_of_inputs() {
    let engine = json!({"model": process::model_folder("bert"), "device": "Cpu", "itemTokensMax": 9});
    let process = EngineProcess::start_by_policy(&json!({"engine": engine}).to_string()).await;
    let report = process.scheduler_report().await;
    let engine = &report["engine"];
    assert_eq!(
        (&engine["sequence_tokens_max"], &engine["device_reason"]),
        (&json!(9), &json!("the CPU is configured"))
    );
    let long = "b c ".repeat(20);
    let refused = process.post("/embed", &json!({"inputs": long, "truncate": false})).await;
    assert_eq!(refused.0, 422, "{refused:?}");
    assert_eq!(process.post("/embed", &json!({"inputs": long, "truncate": true})).await.0, 200);
}

#[tokio::test]
async fn batches_have_at_most_the_tokens_that_the_policy_allows() {
    let process = EngineProcess::start("bert", Some(&json!({"limits": {"batchWeightMax": 100}}).to_string())).await;
    let report = process.scheduler_report().await;
    let engine = &report["engine"];
    assert_eq!((&engine["batch_tokens_max"], &engine["executor"]["tokens_max"]), (&json!(100), &json!(100)));
    // A larger call is executed in several batches.
    let texts = vec!["a man eats food"; 40];
    let (status, answer) = process.post("/embed", &json!({"inputs": texts})).await;
    assert_eq!(status, 200, "{answer:?}");
}

#[tokio::test]
async fn verified_members_of_batches_are_equal_to_unbatched_calls() {
    let policy = json!({"verify": "100%", "scheduling": {"policy": "Static", "items": 4, "delay": "1m"},
        "limits": {"queueDelayMax": "1m"}});
    let process = EngineProcess::start("bert", Some(&policy.to_string())).await;
    let calls: Vec<Value> = (0..4).map(|call| json!({"inputs": format!("a fox {}", "jumps ".repeat(call))})).collect();
    let answers = join_all(calls.iter().map(|body| process.post("/embed", body))).await;
    assert!(answers.iter().all(|(status, _)| *status == 200));
    process.until_metric("groupage_verify_total{result=\"equal\"}", 4.0).await;
    assert_eq!(process.metric("groupage_engine_sequences_total").await, Some(8.0));
}

#[tokio::test]
async fn a_batch_is_tokenised_before_it_is_dispatched_and_not_again() {
    let process = EngineProcess::start("bert", Some(&holding(8))).await;
    let calls: Vec<Value> = bodies().into_iter().take(8).collect();
    let answers = join_all(calls.iter().map(|body| process.post("/embed", body))).await;
    assert!(answers.iter().all(|(status, _)| *status == 200));
    assert_eq!(process.metric("groupage_engine_tokenize_seconds_count").await, Some(8.0), "once for each call");
}

#[tokio::test]
async fn weights_that_are_truncated_in_use_fail_their_calls_only() {
    let folder = process::copy_model("bert");
    let process = EngineProcess::start_in(folder.path(), None).await;
    process::truncate_weights(folder.path());
    let (status, answer) = process.post("/embed", &json!({"inputs": "a fox"})).await;
    assert_eq!(status, 424, "{answer:?}");
    assert_eq!(process.get("/health").await.0, 200);
}

/// Every later start would fail too, so that the exit code is that of a wrong setting.
#[test]
fn a_tensor_that_does_not_fit_ends_the_start_before_a_port_is_open() {
    let folder = process::copy_model("bert");
    let config = folder.path().join("config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, text.replace("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3")).unwrap();
    let ports = ["--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
    let (code, log) = process::run_to_end(&[&["--engine", folder.path().to_str().unwrap()][..], &ports].concat());
    assert_eq!(code, Some(78), "{log}");
    for part in ["model.safetensors.index.json", "encoder.layer.2.", "no such tensor"] {
        assert!(log.contains(part), "{part}: {log}");
    }
    assert!(!log.contains("\"msg\":\"listening\""), "{log}");
}

#[test]
fn a_directory_that_is_no_model_ends_the_start_with_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let (code, log) = process::run_to_end(&["--engine", folder.path().to_str().unwrap()]);
    assert_eq!(code, Some(78));
    assert!(log.contains("config.json"), "{log}");
}

/// No kernel of a GPU supports the width of the tiny model, so that it fails with and without a GPU:
/// before the start, or when the model is loaded.
#[test]
fn a_required_gpu_that_cannot_be_used_ends_the_process() {
    let model = process::model_folder("bert");
    let ports = ["--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--admin", "off"];
    let arguments = [["--engine", model.to_str().unwrap(), "--engine-device", "Cuda"].as_slice(), &ports].concat();
    let (code, log) = process::run_to_end(&arguments);
    match code {
        Some(78) => assert!(log.contains("engine.device is Cuda, and no GPU can be used: "), "{log}"),
        _ => assert!(code == Some(70) && log.contains("the GPU is required and cannot be used: "), "{code:?}, {log}"),
    }
}

#[test]
fn an_engine_and_an_upstream_exclude_each_other() {
    let (code, message) = process::run_to_end(&["--engine", "/m", "--upstream", "http://127.0.0.1:1"]);
    assert_eq!(code, Some(2));
    assert!(message.contains("--engine") && message.contains("--upstream"), "{message}");
}
