"""The tokenizer of XLM-RoBERTa with a small vocabulary, for goldens.py.

SentencePiece trains the Unigram model. `tokenizer.json` has its pieces at the ids of fairseq, as the
`transformers` library converts them, in one of two forms:

- `words`: of `XLMRobertaTokenizer`. The text is split at white space.
- `spaces`: of `XLMRobertaConverter`. The normalizer removes repeated spaces, and the text is not split.

The normalizer has the rules of `nmt_nfkc` for the characters below: all rules have 240 kB.
"""

import io
import random
import tempfile

import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

FORMS = ["words", "spaces"]
VOCABULARY = 340
# First and last characters: Latin letters with accents, spaces and invisible characters, numbers in circles, ▁, kana, ㎏,
# ligatures, selectors of variants, full-width and half-width forms, the replacement character.
RANGES = [(0, 0xff), (0x300, 0x304), (0x308, 0x308), (0x2000, 0x206f), (0x2460, 0x2473), (0x2581, 0x2581), (0x3000, 0x30ff),
          (0x338f, 0x338f), (0xfb00, 0xfb06), (0xfe00, 0xfe0f), (0xfeff, 0xfeff), (0xff01, 0xff9f), (0xfffd, 0xfffd)]
# Related words, whose common parts are pieces.
WORDS = [
    "the quick brown fox jumps over the lazy dog", "foxes dogs jump jumping jumped laziness quickly The", "a man is eating food, women eat foods and eaten",
    "batches of calls are merged and split: batch, batched, batching, call, calling, merge, splitting", "What are queries and documents? query, document",
    "ranks, ranked by their scores: rank, ranking, score, scored", "numbers such as 1 2 3 4 5 6 7 8 9 0 and signs , . ! ? - ( )",
    "café cafés crème crèmes brûlée brûlées mañana mañanas über überall Straße Straßen", "быстрая лиса ест пищу, быстро, лисы, пища, едят",
    "El niño come una manzana en la mañana.", "Über die Straße läuft ein Fuchs.", "Быстрая лиса прыгает через собаку.",
    "빠른 여우가 음식을 먹는다 여우는 음식은 갈색 여우가 개를 뛰어넘는다.", "الثعلب السريع الكلب السريعة الثعالب البني يقفز فوق الكسول",
    "素早い茶色の狐が怠け者の犬を飛び越える。", "日本語には空白がありません。", "順位を計算する。", "敏捷的棕色狐狸跳过了懒狗。", "查询和文档按分数排序。",
]
# Parts of sentences without spaces, which are put together at random, so that parts are pieces in the middle of a sentence too.
PARTS = [
    ["男の人が", "女の人が", "素早い狐が", "食べ物を", "日本語の", "文章を", "検索する", "食べている", "買っている", "、", "。"],
    ["一个男人", "敏捷的", "棕色的", "狐狸", "正在吃", "没有", "东西", "中文", "文本", "空格", "，", "。"],
    ["カタカナの", "テキスト", "バッチ", "処理と", "文書の", "。"],
]
TEXTS = [
    "日本語の文章と中文文本没有空格。", "Ｔｈｅ　ｑｕｉｃｋ　ｆｏｘ１２３！", " a leading space", "ｶﾀｶﾅの文書",
    "  several   spaces \u3000 and\ttabs\r\n\r\nand lines  ", "   ", "emoji 🦊🚀 in 👩\u200d👩\u200d👧 a row ❤\ufe0f", "日本🦊語 龘 中文",
    "cafe\u0301 cre\u0300me bru\u0302le\u0301e, man\u0303ana, u\u0308ber, x\u0301", "café crème brûlée, mañana, über",
    "①㎏ of ﬁsh… ½", "the\u200bfox, soft\u00adly, no\u00a0break", "\ufeffmark, a\u2581man \u2581 and \ufffd", "The\u0001 fox\u007f",
    "Быстрая лиса, 빠른 여우가, الثعلب السريع", "食べている" * 20,
]
# The `tokenizers` crate normalises clusters of six bytes or more by character, so that a sound mark stays alone; SentencePiece
# does not. It also has no special tokens in texts.
OTHER_TEXTS = ["ﾊﾞｯﾁ", "カタカナのハ\u3099ッチ", "<s> special </s><pad> tokens <unk>", "A man is  <mask> food.", "日本<mask>語"]
PAIRS = [("男は何を食べていますか？", "男の人が食べ物を食べている。"), ("  What　ｅａｔｓ  food? ", "一个男人正在吃东西。" * 6), ("敏捷的棕色狐狸" * 8, "fox 🦊")]

# As published models have it.
CONFIG = {
    "bos_token": "<s>", "cls_token": "<s>", "eos_token": "</s>", "mask_token": {
        "__type": "AddedToken", "content": "<mask>", "lstrip": True, "normalized": True, "rstrip": False, "single_word": False},
    "model_max_length": 512, "pad_token": "<pad>", "sep_token": "</s>", "tokenizer_class": "XLMRobertaTokenizer", "unk_token": "<unk>",
}


def corpus():
    numbers = random.Random(1)
    return WORDS + ["".join(numbers.choices(parts, k=5)) for parts in PARTS for _ in range(25)]


def train():
    """Trains a model and returns its file."""
    every = sentencepiece.SentencePieceNormalizer(rule_name="nmt_nfkc").decompile()
    kept = {chr(code) for first, last in RANGES for code in range(first, last + 1)}
    hexadecimal = lambda text: " ".join(f"{ord(letter):X}" for letter in text)
    rules = [f"{hexadecimal(source)}\t{hexadecimal(target)}\n" for source, target in sorted(every) if set(source) <= kept]
    written = io.BytesIO()
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as file:
        file.writelines(rules)
        file.flush()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(corpus()), model_writer=written, model_type="unigram", vocab_size=VOCABULARY - 2,
            normalization_rule_tsv=file.name, character_coverage=0.995, num_threads=1, minloglevel=2)
    return written.getvalue()


def convert(file, form):
    """Converts a model to a tokenizer of a form."""
    proto = sentencepiece_model_pb2.ModelProto.FromString(file)
    pieces = [(token, 0.0) for token in ("<s>", "<pad>", "</s>", "<unk>")]
    pieces += [(piece.piece, piece.score) for piece in proto.pieces[3:]] + [("<mask>", 0.0)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=3, byte_fallback=False))
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in ("<s>", "<pad>", "</s>", "<unk>")])
    tokenizer.add_special_tokens([AddedToken("<mask>", normalized=False, lstrip=True)])
    charsmap = normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap)
    metaspace = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    if form == "words":
        tokenizer.normalizer = charsmap
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), metaspace])
    else:
        spaces = normalizers.Replace(Regex(" {2,}"), "▁")
        tokenizer.normalizer = normalizers.Sequence([charsmap, normalizers.Strip(left=False, right=True), spaces])
        tokenizer.pre_tokenizer = metaspace
    tokenizer.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    return tokenizer


def check(file, tokenizer):
    """Checks that the texts have the ids of SentencePiece, and are normalised as by all rules of `nmt_nfkc`."""
    model = sentencepiece.SentencePieceProcessor(model_proto=file)
    every = sentencepiece.SentencePieceNormalizer(rule_name="nmt_nfkc")
    for text in TEXTS + [text for pair in PAIRS for text in pair]:
        assert model.normalize(text) == every.normalize(text), text
        expected = [3 if piece == model.unk_id() else piece + 1 for piece in model.encode(text)]
        found = tokenizer.encode(text, add_special_tokens=False).ids
        assert found == expected, (text, found, expected)


def make(form):
    """Makes a tokenizer of a form."""
    file = train()
    tokenizer = convert(file, form)
    check(file, tokenizer)
    return tokenizer
