"""Small tokenizers made on the spot, and where the genuine Qwen3 one is, for tests without downloads."""

import io
import os
from pathlib import Path

import pytest
import sentencepiece
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

TEXT = """The quick brown fox isn't lazy; it jumps over 13 dogs, and they'll bark 4567 times. "No!" she said.
def add(a, b):
    return a + b  # 3.14159

Το γρήγορο καφέ. Быстрая лиса. 狐狸跳过了懒狗。素早い茶色の狐。 Zażółć gęślą jaźń, naïve café.
Tabs\tand   spaces, 1,000,000 and 12/31/1999. Привет, мир! 你好，世界！ 😀😀 👩‍👩‍👧 ½ ² ٣
We've seen that we're right, I'm sure; he'd say you'd don't DON'T. The other the then there these 2,000 things.
"""

TEXTS = [
    "",
    " ",
    "Hello, world!",
    "  leading and trailing  ",
    "a\nb\r\nc\n\n\n d\t\te \n",
    "It's we're they'LL I'M don't 'tis 's",
    "1 12 123 1234 12345 3.14 1,000 ½ ² ٣٤ 第1章",
    "naïve café Ångström Zażółć über ﬁne",
    "狐狸跳过了懒狗。素早い茶色の狐 안녕하세요",
    "😀 👩‍👩‍👧‍👦 🇫🇷 👍🏽",
    "def f(x):\n    return x ** 2  # π\n\n\nprint(f(3))",
    "<think>\nhm\n</think>\n\n<|im_start|>user\nHi<|im_end|>",
    "x" * 300,
    "a\u00a0b\u200bc\u3000d\ufeff e\u0301 \u0000 \x7f",
    "!?…—“”‘’ #@$%^&*()[]{}<>~`|\\/",
]


def train_byte_level(pre_tokenizer, size: int = 600, ignore_merges: bool = False) -> Tokenizer:
    """Byte-level BPE over TEXT, with one control token at each end of the ids and one added token that is text."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=alphabet, special_tokens=["<|endoftext|>"], show_progress=False
    )
    tokenizer.train_from_iterator(TEXT.split("\n") * 2, trainer)
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens([AddedToken("<think>", normalized=False), AddedToken("</think>", normalized=False)])
    return tokenizer


def gpt2_pre_tokenizer():
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def train_sentencepiece() -> bytes:
    """A SentencePiece BPE model with byte fallback and Llama 2's settings, serialised."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT.split("\n") * 4),
        model_writer=model,
        model_type="bpe",
        vocab_size=420,
        byte_fallback=True,
        character_coverage=0.98,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        split_digits=True,
        user_defined_symbols=["[INST]"],
        minloglevel=2,
    )
    return model.getvalue()


def qwen3_folder() -> Path:
    """The genuine Qwen3 tokenizer: TINYMLX_QWEN3_TOKENIZER, or ../shared/data/qwen3_tokenizer by this repository."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data" / "qwen3_tokenizer"
    folder = Path(os.environ.get("TINYMLX_QWEN3_TOKENIZER", beside))
    if not (folder / "tokenizer.json").exists():
        pytest.skip("the Qwen3 tokenizer is not there; set TINYMLX_QWEN3_TOKENIZER to a folder with its tokenizer.json")
    return folder
