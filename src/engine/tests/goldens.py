"""Writes the golden values of the tests: goldens.py MODEL_DIRECTORY [NAME...]

MODEL_DIRECTORY is all-MiniLM-L6-v2, which setup.sh downloads; setup.sh --goldens installs the packages.
With names, only these are written.

- `goldens/minilm.json` has normalised embeddings of texts by MiniLM.
- `goldens/NAME` is a model with small random weights for each architecture and head, with
  `expected.json`: ids, hidden states, pooled vectors and logits.

All values are computed by the `transformers` library with PyTorch in 64-bit floating point, from the
weights as the files have them. Equal seeds write equal files, except for the vocabularies of WordPiece.
Ids of the Unigram tokenizer (`unigram.py`) are those of `AutoTokenizer` of `transformers`.
"""

import json
import pathlib
import shutil
import sys

import tokenizers
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import models, normalizers, pre_tokenizers, processors, trainers

# The folder of the sources stays free of generated files.
sys.dont_write_bytecode = True

import unigram

HERE = pathlib.Path(__file__).parent / "goldens"
VOCABULARY = 160
CORPUS = [
    "the quick brown fox jumps over the lazy dog", "a man is eating food", "batches of calls are merged and split",
    "queries and documents are ranked by their scores", "numbers such as 1 2 3 4 5 6 7 8 9 0 and signs , . ! ?",
]
TEXTS = ["The quick brown fox.", "", "a man eats", "queries, documents and calls are ranked " * 4]
PAIRS = [("who eats food?", "a man is eating food"), ("fox", "the lazy dog " * 12)]
MINILM_TEXTS = [
    "The quick brown fox jumps over the lazy dog.", "A man is eating food.", "", "a", "  spaces   around  ",
    "Ünïcödé: naïve café, Straße, Ελληνικά, русский", "日本語のテキストと中文文本", "emoji 🦊🚀 and a \u0000 control\u200b character",
    "[CLS] special [SEP] tokens [MASK]", "supercalifragilisticexpialidocious" * 5, "one two three four five " * 120,
]
SPECIAL = {"bert": ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], "roberta": ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]}
MODULES = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")]


def small(**more):
    return dict(vocab_size=VOCABULARY, hidden_size=48, num_hidden_layers=2, num_attention_heads=3,
                intermediate_size=72, max_position_embeddings=40, **more)


def roberta(**more):
    return small(pad_token_id=1, bos_token_id=0, eos_token_id=2, type_vocab_size=1, layer_norm_eps=1e-5, **more)


def xlm(**more):
    # With many texts and larger weights, errors of 32-bit floating point come close to the bound of the tests.
    return dict(roberta(**more), vocab_size=unigram.VOCABULARY, initializer_range=0.2)


def distil(**more):
    return dict(vocab_size=VOCABULARY, dim=48, n_layers=2, n_heads=3, hidden_dim=72, max_position_embeddings=40, **more)


def modern(**more):
    return dict(small(**more), num_hidden_layers=3, max_position_embeddings=96, local_attention=12, pad_token_id=0,
                bos_token_id=2, eos_token_id=3, cls_token_id=2, sep_token_id=3)


# Name, class without its suffix, suffix, configuration, kind of tokenizer, type of the file, pooling.
GOLDENS = [
    ("bert", "Bert", "Model", small(), "bert", torch.float32, "mean"),
    ("bert-rerank", "Bert", "ForSequenceClassification", small(num_labels=1, hidden_act="gelu_new"), "bert", torch.bfloat16, "cls"),
    ("roberta", "Roberta", "Model", roberta(), "roberta", torch.float16, "cls"),
    ("roberta-classify", "Roberta", "ForSequenceClassification", roberta(num_labels=3, hidden_act="relu"), "roberta", torch.float16, "mean"),
    ("xlm-roberta", "XLMRoberta", "Model", xlm(), "words", torch.float16, "mean"),
    ("xlm-roberta-rerank", "XLMRoberta", "ForSequenceClassification", xlm(num_labels=1), "spaces", torch.bfloat16, "lasttoken"),
    ("distilbert-classify", "DistilBert", "ForSequenceClassification", distil(num_labels=2), "bert", torch.float16, "max"),
    ("modernbert", "ModernBert", "Model", modern(), "bert", torch.bfloat16, "mean"),
    ("modernbert-classify", "ModernBert", "ForSequenceClassification", modern(num_labels=4, classifier_pooling="mean"), "bert", torch.float16, "cls"),
]


def make_tokenizer(kind):
    """Trains a tokenizer and sets the truncation and padding that files often have by mistake."""
    special = SPECIAL["bert" if kind == "bert" else "roberta"]
    if kind == "bert":
        tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer()
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(vocab_size=VOCABULARY, special_tokens=special, show_progress=False)
        tokenizer.train_from_iterator(CORPUS, trainer)
        ids = [(token, special.index(token)) for token in ("[CLS]", "[SEP]")]
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ids)
    elif kind in unigram.FORMS:
        tokenizer = unigram.make(kind)
    else:
        tokenizer = tokenizers.Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        # A small alphabet in place of all 256 bytes, of which the vocabulary has no room.
        trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=special, show_progress=False)
        tokenizer.train_from_iterator(CORPUS, trainer)
        tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=8, pad_id=0, pad_token=special[0])
    return tokenizer


def write_model(name, prefix, suffix, options, kind, dtype, pooling):
    """Writes the files of a model and returns the model with the weights of the file."""
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    torch.manual_seed(sum(map(ord, name)))
    config = getattr(transformers, prefix + "Config")(**{"initializer_range": 0.3, **options})
    model = getattr(transformers, prefix + suffix)(config).eval()
    for parameter in model.parameters():
        # Biases and scales are constants otherwise, and a mistake in one would not show.
        if parameter.dim() == 1:
            parameter.data += 0.2 * torch.randn_like(parameter)
    tensors = {key: value.to(dtype).contiguous() for key, value in model.state_dict().items() if value.is_floating_point()}
    if name == "bert":
        tensors["embeddings.position_ids"] = torch.arange(40).unsqueeze(0)
        parts = [{k: v for k, v in tensors.items() if (".1." in k) == second} for second in (False, True)]
        names = [f"model-0000{at}-of-00002.safetensors" for at in (1, 2)]
        for part, file in zip(parts, names):
            save_file(part, folder / file)
        index = {"metadata": {}, "weight_map": {key: file for part, file in zip(parts, names) for key in sorted(part)}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")
    else:
        save_file(tensors, folder / "model.safetensors")
    model.load_state_dict({key: value.float() for key, value in tensors.items() if value.is_floating_point()}, strict=False)
    written = json.loads(config.to_json_string())
    written["architectures"] = [prefix + suffix]
    (folder / "config.json").write_text(json.dumps(written, indent=1, sort_keys=True) + "\n")
    modules = [{"idx": at, "name": str(at), "path": path, "type": "sentence_transformers.models." + module}
               for at, (module, path) in enumerate(MODULES)]
    (folder / "modules.json").write_text(json.dumps(modules, indent=1) + "\n")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": pooling}) + "\n")
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 32}) + "\n")
    make_tokenizer(kind).save(str(folder / "tokenizer.json"), pretty=kind not in unigram.FORMS)
    if kind in unigram.FORMS:
        (folder / "tokenizer_config.json").write_text(json.dumps(unigram.CONFIG, indent=1, sort_keys=True) + "\n")
    return model.double()


def pool(states, pooling):
    return {"mean": states.mean(0), "cls": states[0], "lasttoken": states[-1], "max": states.max(0).values}[pooling]


@torch.no_grad()
def run(model, ids, type_ids, pooling):
    inputs = {"input_ids": torch.tensor([ids])}
    if type_ids is not None:
        inputs["token_type_ids"] = torch.tensor([type_ids])
    output = model(**inputs, output_hidden_states=True)
    logits = getattr(output, "logits", None)
    if logits is None:
        states = output.last_hidden_state[0]
    else:
        # The layers of ModernBERT end before its last normalisation, which belongs to the encoder.
        encoder = getattr(model, model.base_model_prefix)
        states = encoder(**inputs).last_hidden_state[0]
    rounded = lambda tensor: [round(value, 8) for value in tensor.flatten().tolist()]
    return {
        "ids": ids, "pooled": rounded(pool(states, pooling)), "last_state": rounded(states[-1]),
        "logits": None if logits is None else rounded(logits[0]),
    }


def open_tokenizer(folder, kind, prefix):
    """Returns a function that encodes a text or a pair to ids, and to segment types if the model has any."""
    if kind in unigram.FORMS:
        auto = transformers.AutoTokenizer.from_pretrained(folder)
        return lambda *texts: (auto(*texts, truncation=True, max_length=32)["input_ids"], None)
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(32, strategy="longest_first")

    def encode(*texts):
        encoding = tokenizer.encode(*texts)
        return encoding.ids, encoding.type_ids if prefix == "Bert" else None
    return encode


def write_golden(name, prefix, suffix, options, kind, dtype, pooling):
    model = write_model(name, prefix, suffix, options, kind, dtype, pooling)
    encode = open_tokenizer(HERE / name, kind, prefix)
    texts, pairs = TEXTS, PAIRS
    if kind in unigram.FORMS:
        texts, pairs = TEXTS + unigram.TEXTS + unigram.OTHER_TEXTS, PAIRS + unigram.PAIRS
    cases = [{"text": text, **run(model, *encode(text), pooling)} for text in texts]
    cases += [{"text": first, "pair": second, **run(model, *encode(first, second), pooling)} for first, second in pairs]
    (HERE / name / "expected.json").write_text(json.dumps(cases) + "\n")


@torch.no_grad()
def write_minilm(directory):
    model = transformers.BertModel(transformers.BertConfig.from_pretrained(directory), add_pooling_layer=False).eval()
    model.load_state_dict(load_file(directory + "/model.safetensors"), strict=False)
    model = model.double()
    tokenizer = tokenizers.Tokenizer.from_file(directory + "/tokenizer.json")
    tokenizer.no_padding()
    tokenizer.enable_truncation(256)
    cases = []
    for text in MINILM_TEXTS:
        encoding = tokenizer.encode(text)
        states = model(torch.tensor([encoding.ids]), token_type_ids=torch.tensor([encoding.type_ids])).last_hidden_state[0]
        embedding = torch.nn.functional.normalize(states.mean(0), dim=0)
        cases.append({"text": text, "tokens": len(encoding.ids), "embedding": [round(value, 8) for value in embedding.tolist()]})
    (HERE / "minilm.json").write_text(json.dumps(cases) + "\n")


def main():
    torch.set_num_threads(1)
    directory, *names = sys.argv[1:]
    if not names:
        write_minilm(directory)
    for golden in GOLDENS:
        if not names or golden[0] in names:
            write_golden(*golden)


main()
