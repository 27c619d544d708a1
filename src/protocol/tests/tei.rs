//! The own routes of TEI.

use super::*;

#[test]
fn a_text_or_pair_is_classified_as_one_item_and_answered_without_a_list() {
    let endpoint = endpoint("/predict", RouteProtocol::Tei);
    let (sent, replies) = exchange(
        &endpoint,
        "/predict",
        &[r#"{"inputs":"a"}"#, r#"{"inputs":["b"]}"#, r#"{"inputs":["c","d"]}"#, r#"{"inputs":[["e"], ["f","g"]]}"#],
        "[[1], [2], [3], [4], [5]]",
    );
    assert_eq!(sent, r#"{"inputs":[["a"],["b"],["c","d"],["e"],["f","g"]]}"#);
    assert_eq!(bodies(&replies.unwrap()), ["[1]", "[2]", "[3]", "[[4], [5]]"]);
    for body in [
        r#"{"inputs":["a","b","c"]}"#,
        r#"{"inputs":["a",["b"]]}"#,
        r#"{"inputs":[["a"],"b"]}"#,
        r#"{"inputs":[[]]}"#,
        r#"{"inputs":[]}"#,
        r#"{"inputs":""}"#,
        r#"{"inputs":[[["a"]]]}"#,
        r#"{"inputs":[1]}"#,
    ] {
        let reason = read(&endpoint, "/predict", body).unbatched_reason();
        assert_eq!(reason, Some(UnmergeableReason::ItemForm), "{body}");
    }
}

#[test]
fn a_ranking_is_divided_in_the_order_of_the_server() {
    let calls = [r#"{"query":"q","texts":["a","b"]}"#, r#"{"query":"q","texts":["c"]}"#];
    let ranked = r#"[{"index":2,"score":9},{"index":1,"score":5},{"index":0,"score":5}]"#;
    let endpoint = endpoint("/rerank", RouteProtocol::Tei);
    let (sent, replies) = exchange(&endpoint, "/rerank", &calls, ranked);
    assert_eq!(sent, r#"{"query":"q","texts":["a","b","c"]}"#);
    let own = [r#"[{"index":1,"score":5},{"index":0,"score":5}]"#, r#"[{"index":0,"score":9}]"#];
    assert_eq!(bodies(&replies.unwrap()), own);

    let one = read(&endpoint, "/rerank", calls[0]);
    assert!(!may_share_batch(&one, &read(&endpoint, "/rerank", r#"{"query":"r","texts":["c"]}"#)));
    assert!(!may_share_batch(&one, &read(&endpoint, "/rerank", r#"{"query":"q","texts":["c"],"return_text":true}"#)));
    let reason = read(&endpoint, "/rerank", r#"{"texts":["c"]}"#).unbatched_reason();
    assert_eq!(reason, Some(UnmergeableReason::ItemForm));
}

#[test]
fn a_similarity_belongs_to_one_source_sentence() {
    let endpoint = endpoint("/similarity", RouteProtocol::Tei);
    let call = |source: &str| {
        read(&endpoint, "/similarity", &format!(r#"{{"inputs":{{"source_sentence":"{source}","sentences":["a"]}}}}"#))
    };
    assert!(may_share_batch(&call("s"), &call("s")));
    assert!(!may_share_batch(&call("s"), &call("t")));
    let two = [r#"{"inputs":{"source_sentence":"s","sentences":["a"]}}"#; 2];
    assert_eq!(answers(&endpoint, "/similarity", &two, "[0.5,[1]]"), Err(MismatchKind::Shape));
}

#[test]
fn characters_are_counted_as_the_server_reads_them() {
    for (path, call, own) in [
        ("/predict", r#"{"inputs":["ab","c"]}"#, "3"),
        ("/predict", r#"{"inputs":[["ab"],["c","d"]]}"#, "4"),
        ("/rerank", r#"{"query":"qq","texts":["a","bc"]}"#, "7"),
        ("/similarity", r#"{"inputs":{"source_sentence":"ss","sentences":["a","bc"]}}"#, "5"),
    ] {
        let endpoint = endpoint(path, RouteProtocol::Tei);
        let call = read(&endpoint, path, call);
        let sent = endpoint.write_batch(&[&call, &call], None);
        let one = match path {
            "/predict" => "[1]",
            "/rerank" => r#"{"index":@}"#,
            _ => "1",
        };
        let results: Vec<String> = (0..2 * call.items).map(|index| one.replace('@', &index.to_string())).collect();
        let body = Bytes::from(format!("[{}]", results.join(",")));
        let headers = headers_of(&[("x-compute-characters", "99"), ("x-compute-tokens", "20")]);
        let replies = split_sent(&endpoint, &[&call, &call], &sent, StatusCode::OK, &headers, &body).unwrap();
        for reply in replies {
            assert_eq!(reply.headers["x-compute-characters"], own, "{path}");
            assert_eq!(reply.headers["x-compute-tokens"], "10", "{path}");
        }
    }
}

#[test]
fn calls_with_documents_have_a_form_of_their_own_at_the_paths_of_a_reranker() {
    let routes = routes_of(&[("/*", RouteProtocol::Tei)]);
    let recognise = |path: &str| routes.recognise(&Method::POST, path).unwrap();
    let body = r#"{"query":"q","documents":["a",{"text":"b"}],"top_n":1}"#;
    for path in ["/rerank", "/v1/rerank", "/v2/rerank"] {
        let texts = recognise(path);
        assert_eq!(read(&texts, path, body).unbatched_reason(), Some(UnmergeableReason::ItemForm), "{path}");
        let documents = routes.documents_form(&texts).unwrap();
        let call = read(&documents, path, body);
        assert_eq!((call.unbatched_reason(), call.items), (None, 2), "{path}");
        assert!(!documents.is_divisible(&call), "its results are sorted, and cut to `top_n`");
        let other = read(&documents, path, r#"{"query":"q","documents":["a"],"top_n":2}"#);
        assert_ne!(call.merge, other.merge, "calls of other options share no batch");
    }
    let root = routes.model_form(&recognise("/"), ModelKind::Reranker).unwrap();
    assert!(routes.documents_form(&root).is_some());
    for path in ["/embed", "/", "/v1/embeddings"] {
        assert!(routes.documents_form(&recognise(path)).is_none(), "{path}");
    }
}

#[test]
fn the_format_at_the_path_of_sagemaker_is_that_of_the_model() {
    let routes = routes_of(&[("/*", RouteProtocol::Tei)]);
    let recognise = |path: &str| routes.recognise(&Method::POST, path).unwrap();
    for path in ["/", "/invocations"] {
        let unknown = recognise(path);
        assert!(routes.depends_on_model(&unknown), "{path}");
        for body in [r#"{"inputs":["a"]}"#, r#"{"inputs":"a"}"#, r#"{"query":"q","texts":["a"]}"#, "{}"] {
            let reason = read(&unknown, path, body).unbatched_reason();
            assert_eq!(reason, Some(UnmergeableReason::ItemForm), "{path} {body}");
        }
        for (kind, other, body) in [
            (ModelKind::Embedding, "/embed", r#"{"inputs":["a","b"]}"#),
            (ModelKind::Classifier, "/predict", r#"{"inputs":["a","b"]}"#),
            (ModelKind::Reranker, "/rerank", r#"{"query":"q","texts":["a","b"]}"#),
        ] {
            let own = routes.model_form(&unknown, kind).unwrap();
            assert!(Arc::ptr_eq(&own, &recognise(other)), "{path} {other}");
            let call = read(&own, path, body);
            assert_eq!(call.unbatched_reason(), None, "{path} {other}");
            assert_eq!(own.write_batch(&[&call, &call], None).target, path);
        }
    }
    let embed = recognise("/embed");
    assert!(!routes.depends_on_model(&embed) && routes.model_form(&embed, ModelKind::Reranker).is_none());
    let toolkit = routes_of(&[("/invocations", RouteProtocol::SageMaker)]);
    let toolkit_call = toolkit.recognise(&Method::POST, "/invocations").unwrap();
    assert!(!toolkit.depends_on_model(&toolkit_call));
}
