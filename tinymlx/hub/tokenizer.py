"""Text to tokens and back, and conversations to prompts, from a model folder or a GGUF file.

tokenizer = load_tokenizer(source)
prompt = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], enable_thinking=False)
tokens = tokenizer.encode(prompt)
tokenizer.decode(tokens) == prompt
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from tinymlx.errors import UserError
from tinymlx.hub.chat_template import ChatTemplate
from tinymlx.hub.checkpoint import check_inside, present, read_json
from tinymlx.hub.detokenizer import StreamingDetokenizer, decode
from tinymlx.hub.source import ModelSource
from tinymlx.hub.vocabulary import SentencePieceVocabulary, TokenizersVocabulary, Vocabulary

SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class Tokenizer:
    """A vocabulary with what a model says about it: which tokens begin and end, and how a conversation is written."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        origin: str,
        special_tokens: Mapping[str, str] | None = None,
        eos_token_ids: Iterable[int] = (),
        chat_templates: Mapping[str, str] | None = None,
        config: Mapping[str, Any] | None = None,
    ):
        """origin: folder or file, for messages. special_tokens: "eos_token" -> its text, and so on. eos_token_ids: more
        ends than that. chat_templates: by name; "default", and "tool_use" where tools have one of their own. config:
        what `save` starts from.
        """
        self._vocabulary = vocabulary
        self._origin = origin
        self._special_tokens = dict(special_tokens or {})
        self._templates = {
            name: ChatTemplate(text, f"{origin}: chat template") for name, text in (chat_templates or {}).items()
        }
        self._config = dict(config or {})
        self.bos_token_id = self._id_of("bos_token")
        eos = self._id_of("eos_token")
        self.eos_token_ids = frozenset(eos_token_ids) | (frozenset() if eos is None else {eos})
        """The tokenizer's own; config.json and generation_config.json may name more."""
        self.vocab_size = vocabulary.size
        """Highest token id + 1. A model's padded rows lie behind it and must never be sampled."""

    @property
    def chat_template(self) -> str | None:
        """The default template's source."""
        return self._templates["default"].source if "default" in self._templates else None

    @property
    def special_token_ids(self) -> frozenset[int]:
        """Control tokens, which `skip_special_tokens` hides. <think> and other added text is not among them."""
        return self._vocabulary.special

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """The tokens of `text`: "Hi<|im_end|>" -> [13048, 151645] (Qwen3).

        Special tokens written out in the text become those tokens, also within what a user wrote. add_special_tokens:
        add what the tokenizer puts around a text (bos for Llama, nothing for Qwen); a rendered template has its own.
        """
        return self._vocabulary.encode(_well_formed(text), add_special_tokens=add_special_tokens)

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = False) -> str:
        """The text of `ids`; bytes that are no UTF-8 become U+FFFD, ids without a token nothing."""
        skip = self._vocabulary.special if skip_special_tokens else ()
        strip = self._vocabulary.strips_leading_space
        return decode(ids, self._vocabulary.token_bytes, skip=skip, strip_leading_space=strip)

    def detokenizer(self, *, skip_special_tokens: bool = True) -> StreamingDetokenizer:
        """For one stream of tokens: its pieces join to `decode` of them all."""
        skip = self._vocabulary.special if skip_special_tokens else ()
        strip = self._vocabulary.strips_leading_space
        return StreamingDetokenizer(self._vocabulary.token_bytes, skip=skip, strip_leading_space=strip)

    def token_bytes(self, token: int) -> bytes:
        """The bytes of a token, maybe part of a character; a special token's name; b"" for an id without a token."""
        return self._vocabulary.token_bytes(token)

    def token_id(self, text: str) -> int | None:
        """The id of the one token written `text`, like "<think>"; None where there is none."""
        return self._vocabulary.token_id(text)

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **options: Any,
    ) -> str:
        """The prompt of a conversation, to be encoded without `add_special_tokens`.

        options go to the template: `enable_thinking=False` (Qwen3), `documents=[...]`. Raises UserError where there is
        no template, or it cannot render these messages (see `ChatTemplate.render`).
        """
        name = "tool_use" if tools and "tool_use" in self._templates else "default"
        if name not in self._templates:
            raise UserError(f"{self._origin} has no chat template; use --raw to send the prompt as it is")
        variables = {**self._special_tokens, **options}
        return self._templates[name].render(
            messages, tools=tools, add_generation_prompt=add_generation_prompt, **variables
        )

    def save(self, folder: Path) -> None:
        """Write tokenizer.json (or .model) and tokenizer_config.json, as transformers and mlx-lm read them."""
        config = self._vocabulary.save(folder) | self._config
        config |= {"clean_up_tokenization_spaces": False} | self._special_tokens
        texts = {name: template.source for name, template in self._templates.items()}
        if texts:
            named = [{"name": name, "template": text} for name, text in texts.items()]
            config["chat_template"] = texts["default"] if texts.keys() == {"default"} else named
        (folder / "tokenizer_config.json").write_text(
            json.dumps(config, ensure_ascii=False, indent=2) + "\n", encoding="utf-8"
        )

    def _id_of(self, name: str) -> int | None:
        text = self._special_tokens.get(name)
        if text is None:
            return None
        token = self._vocabulary.token_id(text)
        if token is None:
            raise UserError(
                f"{self._origin}: {name} is {text!r}, which is no token of this tokenizer; download it again"
            )
        return token


def _well_formed(text: str) -> str:
    # Half of a UTF-16 pair can come out of JSON ("\ud83d") and has no UTF-8: join the pairs, replace what is left
    # alone.
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def load_tokenizer(source: ModelSource, *, readable: bool = False) -> Tokenizer:
    """The tokenizer of a model folder or GGUF file. Raises UserError naming the file and what is wrong with it.

    readable: encode by the functions of `tinymlx.hub.bpe` instead of the `tokenizers` library: the same ids, more slowly. UserError, too,
    for what is not byte-level BPE then.
    """
    if source.format == "gguf":
        from tinymlx.hub.gguf_tokenizer import tokenizer_of_gguf

        tokenizer = tokenizer_of_gguf(source.path)
    else:
        tokenizer = _tokenizer_of_folder(source.path)
    if readable:
        tokenizer._vocabulary = _readable(tokenizer._vocabulary, tokenizer._origin)
    return tokenizer


def _readable(vocabulary: Vocabulary, origin: str) -> Vocabulary:
    from tinymlx.hub.bpe import BytePairVocabulary

    if not isinstance(vocabulary, TokenizersVocabulary):
        raise UserError(f"{origin}: only byte-level BPE can be encoded step by step, and this is SentencePiece")
    return BytePairVocabulary(vocabulary.backend, origin)


def _tokenizer_of_folder(folder: Path) -> Tokenizer:
    config = _optional_json(folder, "tokenizer_config.json")
    special_tokens = _special_tokens(_optional_json(folder, "special_tokens_map.json") | config)
    if (folder / "tokenizer.json").exists():
        vocabulary: Vocabulary = _read_tokenizer_json(folder / "tokenizer.json", config)
    elif (folder / "tokenizer.model").exists():
        vocabulary = _read_sentencepiece(folder, config, special_tokens)
    else:
        raise UserError(f"{folder} holds neither tokenizer.json nor tokenizer.model; download the model again")
    return Tokenizer(
        vocabulary,
        origin=str(folder),
        special_tokens=special_tokens,
        chat_templates=_chat_templates(folder, config),
        config=config,
    )


def _optional_json(folder: Path, name: str) -> dict[str, Any]:
    file = folder / name
    if not present(file):
        return {}
    check_inside(folder, file)
    return read_json(file)


def _flag(config: Mapping[str, Any], key: str, folder: Path) -> bool | None:
    value = config.get(key)
    if value is not None and not isinstance(value, bool):
        raise UserError(f"{folder / 'tokenizer_config.json'}: {key} is {value!r}, not true or false")
    return value


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Name -> text; a token is written as text or as {"content": text, ...}."""
    found = {}
    for name in SPECIAL_NAMES:
        value = config.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            found[name] = _well_formed(text)
    return found


def _added_tokens(config: Mapping[str, Any], file: Path) -> list[tuple[int, tokenizers.AddedToken]]:
    """`added_tokens_decoder` of tokenizer_config.json, in the order of ids."""
    entries = config.get("added_tokens_decoder") or {}
    try:
        flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
        tokens = [
            (
                int(token),
                tokenizers.AddedToken(entry["content"], **{flag: entry[flag] for flag in flags if flag in entry}),
            )
            for token, entry in entries.items()
        ]
    except (AttributeError, KeyError, TypeError, ValueError):
        raise UserError(f"{file}: added_tokens_decoder is not a table of ids and tokens; download it again") from None
    return sorted(tokens, key=lambda pair: pair[0])


def _read_tokenizer_json(file: Path, config: Mapping[str, Any]) -> TokenizersVocabulary:
    check_inside(file.parent, file)
    try:
        backend = tokenizers.Tokenizer.from_buffer(file.read_bytes())
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror or error}") from None
    except Exception as error:  # the library raises plain Exception
        raise UserError(f"{file} is not a usable tokenizer ({_first_line(error)}); download it again") from None
    present = backend.get_added_tokens_decoder()
    config_file = file.parent / "tokenizer_config.json"
    for token, added in _added_tokens(config, config_file):
        if token in present and repr(present[token]) == repr(added):
            continue
        backend.add_tokens([added])  # keeps the id of a token that exists, and takes its new flags
        if backend.token_to_id(added.content) != token:
            raise UserError(f"{config_file}: token {added.content!r} is to be {token}, but tokenizer.json has it as "
                            f"{backend.token_to_id(added.content)}; download both again")  # fmt: skip
    named = [text for text in _special_tokens(config).values() if backend.token_to_id(text) is not None]
    backend.add_special_tokens([text for text in named if text not in {t.content for t in present.values()}])
    return TokenizersVocabulary(backend, str(file))


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def _read_sentencepiece(
    folder: Path, config: Mapping[str, Any], special_tokens: Mapping[str, str]
) -> SentencePieceVocabulary:
    file = folder / "tokenizer.model"
    check_inside(folder, file)
    try:
        model = file.read_bytes()
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror or error}") from None
    entries = {
        added.content: (token, added.special)
        for token, added in _added_tokens(config, folder / "tokenizer_config.json")
    }
    for text, token in _optional_json(folder, "added_tokens.json").items():
        if not isinstance(token, int):
            raise UserError(f"{folder / 'added_tokens.json'}: the id of {text!r} is {token!r}, not a number")
        entries.setdefault(text, (token, False))
    # Only here: a tokenizer.json says itself what it adds, and transformers does not ask these flags then.
    add_bos, add_eos = _flag(config, "add_bos_token", folder), _flag(config, "add_eos_token", folder)
    return SentencePieceVocabulary(
        model,
        str(file),
        added=entries,
        bos=special_tokens.get("bos_token") if add_bos is not False else None,  # LlamaTokenizer's default
        eos=special_tokens.get("eos_token") if add_eos else None,
        space_after_special=config.get("legacy") is True,
    )


def _chat_templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """By name, from chat_template.jinja, else chat_template.json, else tokenizer_config.json."""
    file = folder / "chat_template.jinja"
    if present(file):
        check_inside(folder, file)
        try:
            return {"default": file.read_text(encoding="utf-8")}
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{file} cannot be read ({_first_line(error)}); download it again") from None
    template = _optional_json(folder, "chat_template.json").get("chat_template", config.get("chat_template"))
    if template is None:
        return {}
    entries = template if isinstance(template, list) else [{"name": "default", "template": template}]
    try:
        named = {entry["name"]: entry["template"] for entry in entries}
    except (KeyError, TypeError):
        named = {None: None}
    if not all(isinstance(text, str) for pair in named.items() for text in pair):
        raise UserError(f"{folder}: chat_template is neither text nor a list of named texts; download it again")
    return named
