//! Rules for merging the calls of a route, and the protocols that a policy names for them.

use super::*;

const COMPLETIONS: &str = "/v1/completions";

fn route(path: &str, protocol: RouteProtocol, merge: MergeRule) -> RouteRules {
    RouteRules { merge, ..rules(path, protocol) }
}

fn reason(rules: RouteRules, path: &str, body: &str) -> Option<UnmergeableReason> {
    read(&endpoint_of(rules, path), path, body).unbatched_reason()
}

#[test]
fn a_route_that_never_merges_recognises_its_calls() {
    let never = |path, protocol| route(path, protocol, MergeRule::Never);
    let embeddings = endpoint_of(never("/v1/embeddings", RouteProtocol::Auto), "/v1/embeddings");
    let call = read(&embeddings, "/v1/embeddings", r#"{"input":["a","b"]}"#);
    assert_eq!((call.items, call.unbatched_reason()), (2, Some(UnmergeableReason::MergeNever)));
    for protocol in [RouteProtocol::Auto, RouteProtocol::OpenAi, RouteProtocol::Vllm, RouteProtocol::Tgi] {
        let endpoint = endpoint_of(never(COMPLETIONS, protocol), COMPLETIONS);
        assert!(endpoint.is_generation(), "{protocol:?}");
        let call = read(&endpoint, COMPLETIONS, r#"{"prompt":"a"}"#);
        assert_eq!(call.unbatched_reason(), Some(UnmergeableReason::MergeNever));
    }
    let chat = endpoint_of(never("/v1/chat/completions", RouteProtocol::Vllm), "/v1/chat/completions");
    assert!(chat.is_generation());
    // A server's limits matter to batches only.
    let embed = endpoint_of(never("/embed", RouteProtocol::Tei), "/embed");
    assert_eq!(embed.limits_source(&read(&embed, "/embed", r#"{"inputs":"a"}"#), false), None);
}

#[test]
fn completions_without_a_named_protocol_are_merged_once_the_server_is_known() {
    let routes = routes_of(&[]);
    let queued = routes.recognise(&Method::POST, COMPLETIONS).unwrap();
    assert!(queued.is_generation());
    let merging = routes.merging_form(&queued, COMPLETIONS).unwrap();
    assert_eq!((merging.label, merging.generates_text()), (ProtocolLabel::OpenAi, true));
    assert_eq!(read(&merging, COMPLETIONS, r#"{"prompt":"a"}"#).unbatched_reason(), None);
    assert!(routes.queued_form(&merging, COMPLETIONS).unwrap().is_generation());
    // Not below KServe's prefix, where no engine names itself, for chat, or for what is merged anyway.
    for path in ["/openai/v1/completions", "/v1/chat/completions", "/v1/embeddings"] {
        let endpoint = routes.recognise(&Method::POST, path).unwrap();
        assert!(routes.merging_form(&endpoint, path).is_none(), "{path}");
    }
    for (protocol, merge) in [
        (RouteProtocol::Auto, MergeRule::Never),
        (RouteProtocol::Ollama, MergeRule::Auto),
        (RouteProtocol::LlamaCpp, MergeRule::Auto),
        (RouteProtocol::LlamaCpp, MergeRule::Always),
    ] {
        let routes = super::routes(vec![route("/*", protocol, merge)]);
        let endpoint = routes.recognise(&Method::POST, COMPLETIONS).unwrap();
        let merging = routes.merging_form(&endpoint, COMPLETIONS);
        assert!(endpoint.is_generation() && merging.is_none(), "{protocol:?} {merge:?}");
    }
}

#[test]
fn calls_below_the_prefix_of_kserve_are_those_of_openai() {
    for merge in [MergeRule::Auto, MergeRule::Always, MergeRule::Never] {
        let routes = routes(vec![route("/*", RouteProtocol::Auto, merge)]);
        for path in ["/v1/embeddings", COMPLETIONS, "/v1/chat/completions"] {
            let endpoint = |path: &str| routes.recognise(&Method::POST, path).unwrap();
            let (plain, below) = (endpoint(path), endpoint(&format!("/openai{path}")));
            assert!(Arc::ptr_eq(&plain, &below), "{path} {merge:?}");
        }
    }
    let path = "/openai/v1/completions";
    let always = endpoint_of(route(path, RouteProtocol::Auto, MergeRule::Always), path);
    assert!(!always.is_generation());
    assert_eq!(read(&always, path, r#"{"prompt":"a"}"#).unbatched_reason(), None);
}

#[test]
fn a_route_that_always_merges_needs_nothing_published() {
    let always = |path, protocol| route(path, protocol, MergeRule::Always);
    let completions = endpoint_of(always("/*", RouteProtocol::Auto), COMPLETIONS);
    assert!(!completions.is_generation());
    assert_eq!(read(&completions, COMPLETIONS, r#"{"prompt":"a"}"#).unbatched_reason(), None);
    let auto = |merge| endpoint_of(route("/embed", RouteProtocol::Auto, merge), "/embed");
    assert!(auto(MergeRule::Auto).needs_info && !auto(MergeRule::Always).needs_info);
    let embeddings = |merge| endpoint_of(route("/v1/embeddings", RouteProtocol::Auto, merge), "/v1/embeddings");
    assert!(embeddings(MergeRule::Auto).needs_info && !embeddings(MergeRule::Always).needs_info);
    // A server that batches tensors is no reason, an unknown first dimension is one.
    let path = "/v2/models/m/infer";
    let tensors = endpoint_of(always(path, RouteProtocol::Auto), path);
    let batches = PublishedLimits { items_max: Some(8), batches_itself: true, ..PublishedLimits::default() };
    assert_eq!(tensors.unmergeable_model(Some(batches)), None);
    assert_eq!(tensors.unmergeable_model(None), Some(UnmergeableReason::OpenInference));
}

#[test]
fn info_is_looked_up_where_the_server_may_be_tei_or_tgi() {
    let (embeddings, info) = ("/v1/embeddings", Some(LimitsSource::Info));
    for (path, protocol, merge, source) in [
        (embeddings, RouteProtocol::Auto, MergeRule::Auto, info.clone()),
        (embeddings, RouteProtocol::Auto, MergeRule::Always, info.clone()),
        (embeddings, RouteProtocol::Tei, MergeRule::Auto, info.clone()),
        (embeddings, RouteProtocol::OpenAi, MergeRule::Auto, None),
        (embeddings, RouteProtocol::Vllm, MergeRule::Auto, None),
        (embeddings, RouteProtocol::Auto, MergeRule::Never, None),
        (COMPLETIONS, RouteProtocol::Tgi, MergeRule::Auto, info),
        (COMPLETIONS, RouteProtocol::OpenAi, MergeRule::Auto, None),
        // Engines for text are recognised by other documents too.
        (COMPLETIONS, RouteProtocol::Auto, MergeRule::Always, None),
    ] {
        let endpoint = endpoint_of(route("/*", protocol, merge), path);
        let call = read(&endpoint, path, r#"{"input":"a","prompt":"a"}"#);
        assert_eq!(endpoint.limits_source(&call, true), source, "{path} {protocol:?} {merge:?}");
        // Without a sign of TEI, the policy has to name it.
        let named = source.filter(|_| protocol != RouteProtocol::Auto);
        assert_eq!(endpoint.limits_source(&call, false), named, "{path} {protocol:?} {merge:?}");
    }
}

#[test]
fn calls_of_different_rules_share_no_batch() {
    let rules = |merge| routes(vec![route("/v1/embeddings", RouteProtocol::Auto, merge)]);
    let key = |routes: &Routes| {
        let endpoint = routes.recognise(&Method::POST, "/v1/embeddings").unwrap();
        read(&endpoint, "/v1/embeddings", r#"{"input":"a"}"#).merge
    };
    let before = rules(MergeRule::Auto);
    let after = |merge| {
        let rules = vec![route("/v1/embeddings", RouteProtocol::Auto, merge)];
        Routes::after(Some(&before), rules, super::rules("/*", RouteProtocol::Auto), common())
    };
    assert_eq!(key(&before), key(&after(MergeRule::Auto)));
    assert_ne!(key(&before), key(&after(MergeRule::Always)));
}

#[test]
fn tgi_takes_texts_but_no_token_ids() {
    let of = |body| reason(rules(COMPLETIONS, RouteProtocol::Tgi), COMPLETIONS, body);
    assert_eq!((of(r#"{"prompt":"a"}"#), of(r#"{"prompt":["a","b"]}"#)), (None, None));
    assert_eq!(of(r#"{"prompt":[1,2]}"#), Some(UnmergeableReason::ItemForm));
    let routes = routes_of(&[("/*", RouteProtocol::Tgi)]);
    for path in ["/generate", "/generate_stream", "/v1/chat/completions"] {
        assert!(routes.recognise(&Method::POST, path).unwrap().is_generation(), "{path}");
    }
    assert!(routes.recognise(&Method::POST, "/embed").is_none());
}

#[test]
fn a_batchable_api_of_bentoml_has_one_list_under_any_name() {
    let endpoint = endpoint("/encode", RouteProtocol::BentoMl);
    let call = |body: &str| read(&endpoint, "/encode", body);
    let calls = [call(r#"{"texts": ["a"]}"#), call(r#"{"texts":["b","c"]}"#)];
    assert!(calls[0].merge == calls[1].merge && calls[0].unbatched_reason().is_none());
    let members: Vec<&Call> = calls.iter().collect();
    assert_eq!(endpoint.write_batch(&members, None).body, r#"{"texts": ["a","b","c"]}"#);
    let replies = split(&endpoint, &members, "[0.1, 0.30000000000000004, 5]").unwrap();
    assert_eq!(bodies(&replies), ["[0.1]", "[0.30000000000000004, 5]"]);
    assert!(!endpoint.idempotent);
    assert!(call(r#"{"other":["a"]}"#).merge != calls[0].merge, "another parameter");
    assert!(call(r#"{"texts":[1]}"#).merge != calls[0].merge, "another type");
    for body in [r#"{"texts":"a"}"#, r#"{"texts":[]}"#, r#"{"texts":["a"],"k":1}"#, "{}", r#"["a"]"#] {
        assert_eq!(call(body).unbatched_reason(), Some(UnmergeableReason::ItemForm), "{body}");
    }
}

#[test]
fn tensors_on_sagemaker_have_their_length_in_the_content_type() {
    const TYPE: &str = "application/vnd.sagemaker-triton.binary+json";
    let routes = routes_of(&[("/invocations", RouteProtocol::SageMaker)]);
    let texts = routes.recognise(&Method::POST, "/invocations").unwrap();
    let typed = |length: usize| HeaderValue::from_str(&format!("{TYPE};json-header-size={length}")).unwrap();
    let call = |rows: usize, data: &[u8]| {
        let doc = format!(
            r#"{{"inputs":[{{"name":"x","shape":[{rows},1],"datatype":"INT16","parameters":{{"binary_data_size":{}}}}}]}}"#,
            data.len()
        );
        let mut head = parts("/invocations", &[("host", "h")]);
        head.headers.insert("content-type", typed(doc.len()));
        let endpoint = routes.tensor_form(&texts, &head.headers).unwrap();
        (endpoint.clone(), endpoint.parse_call(&head, [doc.as_bytes(), data].concat().into(), &secret()))
    };
    let ((endpoint, one), (_, two)) = (call(1, b"aa"), call(10, b"bbccddeeffgghhiijjkk"));
    assert!(one.merge == two.merge && one.unbatched_reason().is_none(), "{one:?} {two:?}");
    let sent = endpoint.write_batch(&[&one, &two], None);
    let doc = r#"{"inputs":[{"name":"x","shape":[11,1],"datatype":"INT16","parameters":{"binary_data_size":22}}]}"#;
    assert_eq!(sent.headers["content-type"], typed(doc.len()));
    assert!(!sent.headers.contains_key("inference-header-content-length"));
    assert_eq!(sent.body, [doc.as_bytes(), b"aabbccddeeffgghhiijjkk"].concat());

    let answer = doc.replace("inputs", "outputs");
    let headers = HeaderMap::from_iter([(HeaderName::from_static("content-type"), typed(answer.len()))]);
    let body = Bytes::from([answer.as_bytes(), b"AABBCCDDEEFFGGHHIIJJKK"].concat());
    let replies = split_sent(&endpoint, &[&one, &two], &sent, StatusCode::OK, &headers, &body).unwrap();
    let own = answer.replace("[11,1]", "[1,1]").replace(":22", ":2");
    assert_eq!(replies[0].body, [own.as_bytes(), b"AA"].concat());
    assert_eq!(replies[0].headers["content-type"], typed(own.len()));

    // JSON is that of the toolkit, and the other form is no message of the Open Inference Protocol.
    assert!(routes.tensor_form(&texts, &HeaderMap::from_iter([])).is_none());
    let open = super::endpoint("/v2/models/m/infer", RouteProtocol::OpenInferenceV2);
    let head = [("content-type", "application/vnd.sagemaker-triton.binary+json;json-header-size=2")];
    let call = read_with(&open, "/v2/models/m/infer", &head, "{}");
    assert_eq!(call.unbatched_reason(), Some(UnmergeableReason::Encoding));
}
