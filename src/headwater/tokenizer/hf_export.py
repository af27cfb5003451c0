"""Writes a Hugging Face fast tokenizer with the ids of a SentencePiece model.

In: a model in Headwater's form (`model_file.normalise`). Out: `tokenizer.json`, `tokenizer_config.json` and
`special_tokens_map.json`, read by the `tokenizers` library and by transformers 4.45 and newer, 5 included.

What makes the ids equal where the usual conversion differs:

- pieces are written with real spaces, so no normaliser turns the character U+2581 of a text into a space;
- bpe: every pair of tokens whose join is a token may merge, ranked by the join's score, and line symbols are added
  tokens found before anything else, as SentencePiece does with user-defined symbols;
- unigram: the `tokenizers` library would also find byte and reserved tokens in plain text ("<0x0A>"), so they get a
  score that any spelling beats; scores add up exactly (see `model_file`).

`encode("<s>")` of a transformers tokenizer parses reserved tokens in text, which chat templates need; pass
`split_special_tokens=True` for text that is not trusted. Headwater's own `Tokenizer` never parses them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headwater.core.errors import HeadwaterError
from headwater.core.files import atomic_write, sha256_bytes
from headwater.core.jsonl import pretty_json
from headwater.tokenizer.model_file import parse, piece_types
from headwater.tokenizer.specials import BYTE_TOKENS, LINE_SYMBOLS, ROLES, SPACE, SPECIALS

TOKENIZER_JSON = "tokenizer.json"
CONFIG_JSON = "tokenizer_config.json"
SPECIALS_JSON = "special_tokens_map.json"
FILES = (TOKENIZER_JSON, CONFIG_JSON, SPECIALS_JSON)

MODEL_KEY = "headwater_model_sha256"
JSON_KEY = "headwater_tokenizer_json_sha256"
"""In tokenizer_config.json: hashes of the SentencePiece model and of the tokenizer.json made from it."""

NEVER = -1000.0
"""Unigram score of byte and reserved tokens: below what spelling out the longest of them costs (checked)."""


def hf_files(model: bytes) -> dict[str, bytes]:
    """The three files by name."""
    proto = parse(model)
    tokenizer_json = _compact(_tokenizer(proto))
    specials = {f"{role}_token": token for role, token in ROLES.items()}
    others = [token for token in SPECIALS if token not in ROLES.values()]
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **specials,
        "additional_special_tokens": others,
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
        MODEL_KEY: sha256_bytes(model),
        JSON_KEY: sha256_bytes(tokenizer_json),
    }
    return {
        TOKENIZER_JSON: tokenizer_json,
        CONFIG_JSON: pretty_json(config),
        SPECIALS_JSON: pretty_json({**specials, "additional_special_tokens": others}),
    }


def write_hf(model: bytes, folder: Path) -> None:
    """Write the three files into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in hf_files(model).items():
        atomic_write(folder / name, data)


def _compact(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _tokenizer(proto: Any) -> dict[str, Any]:
    unigram = proto.trainer_spec.model_type == proto.trainer_spec.UNIGRAM
    added = [_added(number, token, special=True) for number, token in enumerate(SPECIALS)]
    if not unigram:
        first = len(SPECIALS) + len(BYTE_TOKENS)
        symbols = [symbol.replace(SPACE, " ") for symbol in LINE_SYMBOLS]
        added += [_added(first + number, symbol, special=False) for number, symbol in enumerate(symbols)]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        # Words with the spaces before them: no learned piece crosses such a border, and short words can be cached.
        "pre_tokenizer": None
        if unigram
        else {"type": "Split", "pattern": {"Regex": " *[^ ]+| +"}, "behavior": "Isolated", "invert": False},
        # Headwater's documents begin with bos, so prompts do too; `add_special_tokens=False` leaves it out.
        "post_processor": _begin_with(SPECIALS.index(ROLES["bos"]), ROLES["bos"]),
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": _unigram(proto) if unigram else _bpe(proto),
    }


def _begin_with(number: int, token: str) -> dict[str, Any]:
    special = {"SpecialToken": {"id": token, "type_id": 0}}
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    return {
        "type": "TemplateProcessing",
        "single": [special, first],
        "pair": [special, first, special, second],
        "special_tokens": {token: {"id": token, "ids": [number], "tokens": [token]}},
    }


def _added(number: int, content: str, *, special: bool) -> dict[str, Any]:
    return {
        "id": number,
        "content": content,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": special,
    }


def _bpe(proto: Any) -> dict[str, Any]:
    vocab = {piece.piece.replace(SPACE, " "): number for number, piece in enumerate(proto.pieces)}
    normal = piece_types().Value("NORMAL")
    learned = [(piece.score, piece.piece.replace(SPACE, " ")) for piece in proto.pieces if piece.type == normal]
    usable = {name for _, name in learned}
    merges = []
    for _, name in sorted((item for item in learned if len(item[1]) > 1), key=lambda item: -item[0]):
        splits = [(name[:cut], name[cut:]) for cut in range(len(name) - 1, 0, -1)]  # longest left part first
        merges += [[left, right] for left, right in splits if left in usable and right in usable]
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": SPECIALS[0],
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": True,
        "ignore_merges": False,
        "vocab": vocab,
        "merges": merges,
    }


def _unigram(proto: Any) -> dict[str, Any]:
    normal = piece_types().Value("NORMAL")
    worst = min(piece.score for piece in proto.pieces if piece.type == normal)
    if worst * max(map(len, SPECIALS)) <= NEVER:
        raise HeadwaterError(f"a piece has the score {worst}: reserved tokens in a text could not be told from names")
    vocab = [
        [piece.piece.replace(SPACE, " "), piece.score if piece.type == normal else NEVER] for piece in proto.pieces
    ]
    return {"type": "Unigram", "unk_id": 0, "vocab": vocab, "byte_fallback": True}
