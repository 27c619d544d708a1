"""Writes the token ids of the tests of settings: tokenizer_goldens.py

`goldens/tokenizers.json` has tokens of models of `goldens.py` whose `tokenizer_config.json` and
`tokenizer.json` are changed, by `AutoTokenizer` of the `transformers` library
(5.23.0; PyTorch is not needed).
The conversion to lowercase is that of `sentence_transformers/base/modules/transformer.py` (6.2.0).
"""

import json
import pathlib
import shutil
import tempfile

from tokenizers import normalizers
from transformers import AutoTokenizer

HERE = pathlib.Path(__file__).parent / "goldens"
LENGTH = 32
TEXTS = ["The Quick brown FOX", "café naïve", "日本 fox", "[CLS] A [SEP] fox", "ΟΔΟΣ İs", "queries, documents and calls are ranked " * 4]
PAIRS = [("who eats food?", "a man is eating food"), ("the fox " * 8, "the lazy dog " * 12)]
# As older files have it, before `prepend_scheme`.
METASPACE = {"type": "Metaspace", "replacement": "▁", "str_rep": "▁", "add_prefix_space": True}
# Model, fields of tokenizer_config.json, fields of tokenizer.json, and whether sentence-transformers lowercases.
CASES = [
    ("bert", None, {}, False),
    ("bert", {"do_lower_case": False}, {}, False),
    ("bert", {"do_lower_case": False}, {}, True),
    ("bert", {}, {"normalizer": None}, False),
    ("bert", {"strip_accents": False}, {}, False),
    ("bert", {"tokenize_chinese_chars": False, "tokenizer_class": "BertTokenizerFast"}, {}, False),
    ("bert", {"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": False}, {}, False),
    ("bert", {"tokenizer_class": "PreTrainedTokenizerFast"}, {"normalizer": None}, True),
    ("bert", {"tokenizer_class": "DistilBertTokenizer"}, {}, False),
    ("bert", {"model_input_names": ["input_ids", "attention_mask"]}, {}, False),
    ("bert", {}, {"truncation": {"direction": "Left", "max_length": 8, "strategy": "LongestFirst", "stride": 0}}, False),
    ("bert", {"truncation_side": "right"},
     {"truncation": {"direction": "Left", "max_length": 8, "strategy": "LongestFirst", "stride": 0}}, False),
    ("roberta", None, {}, False),
    ("roberta", {"add_prefix_space": True}, {}, False),
    ("roberta", {"tokenizer_class": "PreTrainedTokenizerFast"}, {}, False),
    ("modernbert", {"tokenizer_class": "BertTokenizer", "do_lower_case": False}, {}, False),
    ("xlm-roberta", {"tokenizer_class": "XLMRobertaTokenizerFast"}, {}, True),
    ("xlm-roberta", {"tokenizer_class": "XLMRobertaTokenizer"},
     {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, METASPACE]}, "decoder": METASPACE}, False),
    ("xlm-roberta-rerank", {"tokenizer_class": "PreTrainedTokenizerFast"}, {"pre_tokenizer": METASPACE, "decoder": METASPACE}, False),
]


def lowercase(tokenizer):
    old = tokenizer.normalizer
    parts = list(old) if isinstance(old, normalizers.Sequence) else [old] if old is not None else []
    if not any(isinstance(part, normalizers.Lowercase) for part in parts):
        tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *parts])


def encode(tokenizer, text, pair):
    found = tokenizer(text, pair, truncation=True, max_length=LENGTH)
    ids = found["input_ids"]
    return {"text": text, "pair": pair, "ids": ids, "type_ids": found.get("token_type_ids", [0] * len(ids))}


def run(model, config, file, lowercases):
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for name in ("config.json", "tokenizer.json"):
            shutil.copy(HERE / model / name, folder)
        if config is not None:
            (folder / "tokenizer_config.json").write_text(json.dumps(config))
        path = folder / "tokenizer.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | file))
        tokenizer = AutoTokenizer.from_pretrained(folder)
        if lowercases:
            lowercase(tokenizer.backend_tokenizer)
        results = [encode(tokenizer, text, None) for text in TEXTS] + [encode(tokenizer, *pair) for pair in PAIRS]
    return {"model": model, "config": config, "file": file, "lowercases": lowercases, "results": results}


rows = [json.dumps(run(*case)) for case in CASES]
(HERE / "tokenizers.json").write_text("[\n" + ",\n".join(rows) + "\n]\n")
