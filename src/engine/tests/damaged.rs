//! Directories that are damaged, incomplete or hostile end with an error that names the place, and
//! never with a panic.

use super::*;
use crate::{ExecuteError, LoadError};

/// Opens a model and packs its weights.
fn load(folder: &Path) -> Result<CpuExecutor, LoadError> {
    let model = Model::open(folder)?;
    CpuExecutor::new(&model, CpuOptions { threads: Some(1), tokens_max: 64 })
}

/// Returns a copy of a model with a change in a text file.
fn edited_copy(name: &str, file: &str, from: &str, to: &str) -> TempDir {
    let copy = copy_of(name);
    let path = copy.path().join(file);
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains(from), "{text}");
    std::fs::write(path, text.replace(from, to)).unwrap();
    copy
}

/// Changes a text file of a copy of a model and returns the error.
fn changed(name: &str, file: &str, from: &str, to: &str) -> String {
    load(edited_copy(name, file, from, to).path()).unwrap_err().to_string()
}

#[test]
fn a_missing_file_is_named() {
    for (file, part) in [
        ("config.json", "config.json: the file: found no such file"),
        ("tokenizer.json", "tokenizer.json: the file: found no such file"),
        ("model.safetensors", "model.safetensors: the file: found no such file"),
        ("1_Pooling/config.json", "1_Pooling/config.json: the file: found no such file"),
    ] {
        let copy = copy_of("roberta");
        std::fs::remove_file(copy.path().join(file)).unwrap();
        let error = load(copy.path()).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    let copy = copy_of("bert");
    std::fs::remove_file(copy.path().join("model-00002-of-00002.safetensors")).unwrap();
    let error = load(copy.path()).unwrap_err().to_string();
    assert!(error.contains("model-00002-of-00002.safetensors"), "{error}");
}

#[test]
fn a_pointer_of_git_lfs_is_recognised() {
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 90868376\n";
    for file in ["config.json", "tokenizer.json", "model.safetensors"] {
        let copy = copy_of("roberta");
        std::fs::write(copy.path().join(file), pointer).unwrap();
        let error = load(copy.path()).unwrap_err().to_string();
        let part = format!("{file}: the file: found a pointer of Git LFS");
        assert!(error.contains(&part) && error.contains("`git lfs pull`"), "{error}");
    }
}

#[test]
fn a_tokenizer_that_adds_no_special_tokens_is_refused() {
    let bytes =
        serde_json::json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true});
    for (name, post) in [("bert", serde_json::Value::Null), ("modernbert", serde_json::Value::Null), ("roberta", bytes)]
    {
        let copy = copy_of(name);
        let path = copy.path().join("tokenizer.json");
        let mut file = read_json(&path);
        file["post_processor"] = post;
        std::fs::write(&path, file.to_string()).unwrap();
        let error = Model::open(copy.path()).unwrap_err().to_string();
        assert!(error.contains("tokenizer.json: field `post_processor`: found nothing"), "{name}: {error}");
    }
}

#[test]
fn a_tensor_that_does_not_fit_is_named_with_both_shapes() {
    let wide = changed("roberta", "config.json", "\"intermediate_size\": 72", "\"intermediate_size\": 73");
    let part =
        "tensor `encoder.layer.0.intermediate.dense.weight`: found shape [72, 48] of F16, expected shape [73, 48]";
    assert!(wide.contains(part) && wide.contains("model.safetensors"), "{wide}");
    let deep = changed("roberta", "config.json", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3");
    assert!(deep.contains("tensor `encoder.layer.2.attention.self.query.weight`: found no such tensor"), "{deep}");
    let huge = changed("roberta", "config.json", "\"vocab_size\": 160", "\"vocab_size\": 1000000");
    assert!(huge.contains("expected shape [1000000, 48]"), "{huge}");
    let labels = changed("roberta-classify", "config.json", "\"2\": \"LABEL_2\"", "\"2\": \"LABEL_2\", \"3\": \"X\"");
    assert!(labels.contains("tensor `classifier.out_proj.weight`: found shape [3, 48]"), "{labels}");
    let outside = changed("bert", "model.safetensors.index.json", "model-00001-of-00002", "../model-00001-of-00002");
    assert!(outside.contains("`weight_map`"), "{outside}");
}

#[test]
fn a_tensor_of_another_type_is_named() {
    let copy = copy_of("roberta");
    let path = copy.path().join("model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    let at = bytes.windows(3).position(|part| part == b"F16").unwrap();
    let mut changed = bytes;
    changed[at..at + 3].copy_from_slice(b"I16");
    std::fs::write(&path, changed).unwrap();
    let error = load(copy.path()).unwrap_err().to_string();
    assert!(error.contains("of I16, expected shape") && error.contains("of F32, F16 or BF16"), "{error}");
}

/// Cuts the weights at many lengths and inverts bytes of the header. Numbers of the weights
/// themselves may have any value.
#[test]
fn damaged_weights_never_panic() {
    let copy = copy_of("roberta");
    let path = copy.path().join("model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    let header = 8 + usize::try_from(u64::from_le_bytes(*bytes.first_chunk().unwrap())).unwrap();
    for length in (0..bytes.len()).step_by(bytes.len() / 40) {
        std::fs::write(&path, &bytes[..length]).unwrap();
        load(copy.path()).unwrap_err();
    }
    for at in (0..header).step_by(header / 150) {
        let mut changed = bytes.clone();
        changed[at] ^= 0x55;
        std::fs::write(&path, changed).unwrap();
        // Spaces of the header may change without harm.
        drop(load(copy.path()));
    }
    for header in [0, 1, u64::MAX, u64::MAX - 7, 1 << 40, 99_999_999] {
        let mut changed = bytes.clone();
        changed[..8].copy_from_slice(&u64::to_le_bytes(header));
        std::fs::write(&path, changed).unwrap();
        load(copy.path()).unwrap_err();
    }
}

#[test]
fn damaged_text_files_never_panic() {
    for file in ["config.json", "tokenizer.json", "modules.json", "1_Pooling/config.json", "sentence_bert_config.json"]
    {
        let copy = copy_of("modernbert-classify");
        let path = copy.path().join(file);
        let bytes = std::fs::read(&path).unwrap();
        // A file without its last bracket; some end with a line feed after it.
        for length in (0..bytes.len() - 2).step_by(bytes.len().div_ceil(20)) {
            std::fs::write(&path, &bytes[..length]).unwrap();
            let error = load(copy.path()).unwrap_err().to_string();
            assert!(error.contains(file), "{error}");
        }
        for at in (0..bytes.len()).step_by(bytes.len().div_ceil(60)) {
            let mut changed = bytes.clone();
            changed[at] = b'9';
            std::fs::write(&path, changed).unwrap();
            drop(load(copy.path()));
            encode_samples(copy.path());
        }
    }
}

/// Encodes texts, a pair and ids if the model can be opened. The results are of no interest.
fn encode_samples(folder: &Path) {
    let Ok(model) = Model::open(folder) else { return };
    let tokenizer = model.tokenizer();
    for text in ["", "a man eats", "日本 é \u{0301}", &"x".repeat(3000)] {
        drop(tokenizer.encode_text(text, true));
        drop(tokenizer.encode_pair(text, "fox", true));
        drop(tokenizer.list_tokens(text, true));
    }
    drop(tokenizer.decode(&[0, 5, u32::MAX], true));
}

/// Another process may write to the files of a model that is in use.
#[test]
fn truncated_weights_are_errors() {
    for name in ["bert", "roberta", "modernbert"] {
        let copy = copy_of(name);
        let model = Model::open(copy.path()).unwrap();
        let mut executor = executor(&model, 2);
        for entry in std::fs::read_dir(copy.path()).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "safetensors") {
                std::fs::File::options().write(true).open(path).unwrap().set_len(100).unwrap();
            }
        }
        let mut batch = PackedBatch::new(TOKENS_MAX);
        batch.push(&model.tokenizer().encode_ids(&[5, 6], false).unwrap(), OutputKind::Embedding).unwrap();
        assert!(executor.execute(&batch).unwrap()[0].is_err(), "{name}");
        let options = CpuOptions { threads: Some(1), tokens_max: 64 };
        let error = CpuExecutor::new(&model, options).unwrap_err().to_string();
        assert!(error.contains(".safetensors: the file: found failed to fill whole buffer"), "{error}");
    }
}

/// Renames the tensors of a copy of a model whose names begin with a text.
fn rename_tensors(folder: &Path, name: &str) {
    let path = folder.join("model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    // Another name of the same length.
    while let Some(at) = bytes.windows(name.len() + 1).position(|part| part == format!("\"{name}").as_bytes()) {
        bytes[at + 1] = b'x';
    }
    std::fs::write(&path, bytes).unwrap();
}

/// An encoder for embeddings may have the name of a classifier.
#[test]
fn an_encoder_with_a_pooling_and_without_the_weights_of_its_head_embeds() {
    for (name, tensor) in [("roberta-classify", "classifier.out_proj."), ("distilbert-classify", "classifier.")] {
        let copy = copy_of(name);
        rename_tensors(copy.path(), tensor);
        let model = Model::open(copy.path()).unwrap();
        assert!(model.head().is_none() && model.lacks_head(), "{name}");
        let sequence = model.tokenizer().encode_ids(&[5, 6], false).unwrap();
        let mut executor = executor(&model, 1);
        assert_eq!(execute(&mut executor, std::slice::from_ref(&sequence), OutputKind::Embedding)[0].len(), 48);
        let mut batch = PackedBatch::new(TOKENS_MAX);
        batch.push(&sequence, OutputKind::Logits).unwrap();
        assert!(matches!(executor.execute(&batch), Err(ExecuteError::NoHead { .. })), "{name}");
    }
}

#[test]
fn a_classifier_without_a_pooling_and_the_weights_of_its_head_is_an_error() {
    for (name, tensor) in [("roberta-classify", "classifier.out_proj."), ("distilbert-classify", "classifier.")] {
        let copy = copy_of(name);
        std::fs::remove_file(copy.path().join("modules.json")).unwrap();
        let whole = Model::open(copy.path()).unwrap();
        assert!(whole.head().is_some() && !whole.lacks_head(), "{name}");
        rename_tensors(copy.path(), tensor);
        assert!(Model::open(copy.path()).unwrap().lacks_head(), "the pooling of {name} is configured");
        std::fs::remove_file(copy.path().join("1_Pooling/config.json")).unwrap();
        let error = Model::open(copy.path()).unwrap_err().to_string();
        let part = format!("model.safetensors: tensor `{tensor}weight`: found no such tensor");
        assert!(error.contains(&part), "{error}");
    }
}

/// The check needs no executor, so that a start fails before it opens a port.
#[test]
fn a_tensor_that_does_not_fit_is_found_before_the_weights_are_packed() {
    for name in MODELS {
        Model::open(&goldens().join(name)).unwrap().check_tensors().unwrap();
    }
    for (name, file, from, to, part) in [
        ("roberta", "config.json", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3", "found no such tensor"),
        ("roberta", "config.json", "\"vocab_size\": 160", "\"vocab_size\": 1000", "expected shape [1000, 48]"),
        ("roberta-classify", "config.json", "\"2\": \"LABEL_2\"", "\"2\": \"a\", \"3\": \"b\"", "shape [3, 48]"),
    ] {
        let copy = edited_copy(name, file, from, to);
        let error = Model::open(copy.path()).unwrap().check_tensors().unwrap_err().to_string();
        assert!(error.contains("model.safetensors: tensor `") && error.contains(part), "{error}");
    }
    let copy = copy_of("roberta");
    rename_tensors(copy.path(), "encoder.layer.1.output.LayerNorm.bias");
    let error = Model::open(copy.path()).unwrap().check_tensors().unwrap_err().to_string();
    assert!(error.contains("tensor `encoder.layer.1.output.LayerNorm.bias`: found no such tensor"), "{error}");
}

#[test]
fn a_tensor_in_two_files_is_an_error() {
    let copy = copy_of("bert");
    let index = copy.path().join("model.safetensors.index.json");
    std::fs::copy(copy.path().join("model-00001-of-00002.safetensors"), copy.path().join("again.safetensors")).unwrap();
    let text = std::fs::read_to_string(&index).unwrap();
    let text = text.replace("\"weight_map\": {", "\"weight_map\": {\"other\": \"again.safetensors\", ");
    std::fs::write(index, text).unwrap();
    let error = load(copy.path()).unwrap_err().to_string();
    assert!(error.contains("tensor `") && error.contains("found another one in"), "{error}");
}

/// Sets the first elements of a row of a tensor to numbers that are none, in whichever file has it.
/// The bits of all ones are such a number in F32, F16 and BF16.
fn poison(folder: &Path, names: &[&str], row: usize) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "safetensors") {
            continue;
        }
        let mut bytes = std::fs::read(&path).unwrap();
        let header = 8 + usize::try_from(u64::from_le_bytes(*bytes.first_chunk().unwrap())).unwrap();
        let text: serde_json::Value = serde_json::from_slice(&bytes[8..header]).unwrap();
        let ends = |name: &str| names.iter().any(|end| name.ends_with(end));
        let Some((_, info)) = text.as_object().unwrap().iter().find(|(name, _)| ends(name)) else { continue };
        let number = |value: &serde_json::Value| usize::try_from(value.as_u64().unwrap()).unwrap();
        let (start, end) = (number(&info["data_offsets"][0]), number(&info["data_offsets"][1]));
        let at = header + start + row * (end - start) / number(&info["shape"][0]);
        bytes[at..at + 4].fill(0xff);
        std::fs::write(path, bytes).unwrap();
        return;
    }
    panic!("no tensor {names:?}");
}

/// Executes three sequences and returns which have results.
fn finite_results(folder: &Path) -> Vec<bool> {
    let model = Model::open(folder).unwrap();
    let kind = if model.head().is_some() { OutputKind::Logits } else { OutputKind::Embedding };
    let mut batch = PackedBatch::new(TOKENS_MAX);
    for ids in [[5, 6], [7, 8], [9, 10]] {
        batch.push(&model.tokenizer().encode_ids(&ids, false).unwrap(), kind).unwrap();
    }
    executor(&model, 2).execute(&batch).unwrap().iter().map(Result::is_ok).collect()
}

#[test]
fn a_token_with_weights_that_are_not_finite_fails_its_sequence_only() {
    for name in MODELS {
        let copy = copy_of(name);
        assert_eq!(finite_results(copy.path()), [true; 3], "{name}");
        poison(copy.path(), &["word_embeddings.weight", "tok_embeddings.weight"], 7);
        assert_eq!(finite_results(copy.path()), [true, false, true], "{name}");
    }
}

#[test]
fn layers_with_weights_that_are_not_finite_fail_every_sequence() {
    let queries =
        ["layer.0.attention.self.query.weight", "layer.0.attention.q_lin.weight", "layers.0.attn.Wqkv.weight"];
    let inner = ["layer.1.intermediate.dense.weight", "layer.1.ffn.lin1.weight", "layers.1.mlp.Wi.weight"];
    for name in MODELS {
        for names in [queries, inner] {
            let copy = copy_of(name);
            poison(copy.path(), &names, 3);
            assert_eq!(finite_results(copy.path()), [false; 3], "{name}: {names:?}");
        }
    }
}

/// The activation functions of heads (hyperbolic tangent, rectifier and GELU) have finite results for
/// numbers that are none, unless they are written for them.
#[test]
fn heads_with_weights_that_are_not_finite_fail_every_sequence() {
    let dense = ["pooler.dense.weight", "classifier.dense.weight", "pre_classifier.weight", "head.dense.weight"];
    for name in ["bert-rerank", "roberta-classify", "xlm-roberta-rerank", "distilbert-classify", "modernbert-classify"]
    {
        let copy = copy_of(name);
        poison(copy.path(), &dense, 3);
        assert_eq!(finite_results(copy.path()), [false; 3], "{name}");
    }
}

#[test]
fn a_batch_of_another_model_is_refused() {
    let (bert, modern) =
        (Model::open(&goldens().join("bert")).unwrap(), Model::open(&goldens().join("modernbert")).unwrap());
    let sequence = bert.tokenizer().encode_pair("a man", "eats", true).unwrap();
    assert!(sequence.type_ids().contains(&1));
    let mut batch = PackedBatch::new(64);
    batch.push(&sequence, OutputKind::Embedding).unwrap();
    let refused = executor(&modern, 1).execute(&batch).unwrap_err();
    assert!(matches!(refused, ExecuteError::UnknownToken { .. }), "{refused}");
    batch.clear();
    batch.push(&sequence, OutputKind::Logits).unwrap();
    let no_head = executor(&bert, 1).execute(&batch).unwrap_err();
    assert_eq!(no_head, ExecuteError::NoHead { sequence: 0, kind: OutputKind::Logits });
    let mut small = CpuExecutor::new(&bert, CpuOptions { threads: Some(1), tokens_max: 2 }).unwrap();
    let too_many = small.execute(&batch).unwrap_err();
    assert!(matches!(too_many, ExecuteError::TooManyTokens { tokens_max: 2, .. }), "{too_many}");
    assert!(CpuExecutor::new(&bert, CpuOptions { threads: None, tokens_max: 0 }).is_err());
}
