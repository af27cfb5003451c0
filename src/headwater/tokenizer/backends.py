"""The two engines behind `Tokenizer`: a SentencePiece model, or a Hugging Face tokenizer.json.

Both turn text into ids without ever parsing reserved tokens in it, and give the bytes of each id.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

from headwater.core.errors import CorruptArtifactError, InputError
from headwater.core.files import sha256_bytes
from headwater.tokenizer.hf_export import CONFIG_JSON, JSON_KEY, MODEL_KEY, SPECIALS_JSON, TOKENIZER_JSON
from headwater.tokenizer.model_file import parse, piece_types
from headwater.tokenizer.specials import FIRST_BYTE_ID, ROLES, SPACE, SPECIALS

CHUNK_CHARACTERS = 4096
"""Longer texts are encoded in parts, cut where no piece could reach across, so that unigram scores add up exactly (see
`model_file`) whatever the text's length. Encoding takes as long as without."""

_BYTE_TOKEN = re.compile("<0x[0-9A-F]{2}>")
_SPACE_BYTES = [FIRST_BYTE_ID + value for value in SPACE.encode()]


class Backend(Protocol):
    """What `Tokenizer` needs."""

    vocab_size: int
    sha256: str
    specials: dict[str, int]
    """Names of the reserved tokens and their ids."""
    roles: dict[str, int]
    """unk, bos, eos, pad, mask, cls, sep -> id, those that exist."""
    begins_with_bos: bool
    """Whether texts are given to its model with bos before them."""

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]: ...

    def token_bytes(self, token: int) -> bytes:
        """Bytes of one id's text; of a reserved token its name's."""
        ...

    def is_byte(self, token: int) -> bool: ...

    def decode(self, ids: Sequence[int], skip_special: bool) -> str: ...


class SentencePieceBackend:
    """Headwater's own models."""

    begins_with_bos = True

    def __init__(self, model: bytes, where: Path) -> None:
        import sentencepiece

        try:
            proto = parse(model)
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        except (ValueError, RuntimeError) as error:
            raise CorruptArtifactError(
                f"not a SentencePiece model: {error}", where=str(where), mend="restore the file, or train it again"
            ) from None
        names = [piece.piece for piece in proto.pieces]
        if tuple(names[: len(SPECIALS)]) != SPECIALS:
            raise InputError(
                "this SentencePiece model was not made by Headwater: its reserved tokens are others",
                where=str(where),
                mend="give its Hugging Face folder with tokenizer.json instead",
            )
        self.model = model
        self.sha256 = sha256_bytes(model)
        self.vocab_size = len(names)
        self.specials = {name: number for number, name in enumerate(SPECIALS)}
        self.roles = {role: self.specials[name] for role, name in ROLES.items()}
        byte = piece_types().Value("BYTE")
        self._bytes = [
            bytes([int(piece.piece[3:5], 16)]) if piece.type == byte else piece.piece.replace(SPACE, " ").encode()
            for piece in proto.pieces
        ]
        # Every two characters that are neighbours in some piece; between any other two a text can be cut.
        texts = (name.replace(SPACE, " ") for name in names[FIRST_BYTE_ID + 256 :])
        self._neighbours = {pair for text in texts for pair in pairwise(text)}

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        if all(len(text) <= CHUNK_CHARACTERS and SPACE not in text for text in texts):
            return self._processor.encode(list(texts), num_threads=1)
        parts: list[str] = []
        plans: list[list[int]] = []  # for each text: how many parts, and -1 for each U+2581 in it
        for text in texts:
            plan = []
            for number, piece in enumerate(text.split(SPACE)):
                chunks = self._cut(piece)
                parts += chunks
                plan += [-1, len(chunks)] if number else [len(chunks)]
            plans.append(plan)
        encoded = iter(self._processor.encode(parts, num_threads=1))
        results = []
        for plan in plans:
            ids: list[int] = []
            for count in plan:
                if count < 0:
                    ids += _SPACE_BYTES  # inside the model U+2581 is a space, so the character itself goes as bytes
                for _ in range(count):
                    ids += next(encoded)
            results.append(ids)
        return results

    def _cut(self, text: str) -> list[str]:
        parts, start = [], 0
        while len(text) - start > CHUNK_CHARACTERS:
            end = start + CHUNK_CHARACTERS
            while end < len(text) and (text[end - 1], text[end]) in self._neighbours:
                end += 1
            parts.append(text[start:end])
            start = end
        parts.append(text[start:])
        return parts

    def token_bytes(self, token: int) -> bytes:
        return self._bytes[token]

    def is_byte(self, token: int) -> bool:
        return FIRST_BYTE_ID <= token < FIRST_BYTE_ID + 256

    def decode(self, ids: Sequence[int], skip_special: bool) -> str:
        count = len(SPECIALS) if skip_special else 0
        return b"".join([self._bytes[token] for token in ids if token >= count]).decode("utf-8", "replace")


class HuggingFaceBackend:
    """Any folder with a tokenizer.json; reserved ids come from the configuration files beside it."""

    def __init__(self, folder: Path) -> None:
        import tokenizers

        path = folder / TOKENIZER_JSON
        try:
            data = path.read_bytes()
            self._tokenizer = tokenizers.Tokenizer.from_str(data.decode())
            layout = json.loads(data)
        except FileNotFoundError:
            raise InputError(f"there is no {TOKENIZER_JSON}", where=str(folder)) from None
        except Exception as error:  # the library raises plain Exception
            raise CorruptArtifactError(f"cannot read it: {error}", where=str(path), mend="restore the file") from None
        self._tokenizer.encode_special_tokens = True  # "<s>" in a text is text
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        config = _read_json(folder / CONFIG_JSON)
        file_hash = sha256_bytes(data)
        # An untouched export of ours is the same tokenizer as its model; anything else is known by its own bytes.
        self._own = config.get(JSON_KEY) == file_hash
        self.sha256 = config[MODEL_KEY] if self._own else file_hash
        self.vocab_size = max(self._tokenizer.get_vocab(with_added_tokens=True).values()) + 1
        added = self._tokenizer.get_added_tokens_decoder()
        self.specials = {token.content: number for number, token in sorted(added.items()) if token.special}
        self.roles = self._find_roles(config, folder)
        opening = self._tokenizer.encode("a").ids  # with what its post-processor adds
        self.begins_with_bos = "bos" in self.roles and opening[:1] == [self.roles["bos"]]
        self._special_ids = frozenset(self.specials.values()) | frozenset(self.roles.values())
        self._added = {number: token.content.encode() for number, token in added.items()}
        self._byte_level = "ByteLevel" in json.dumps(layout.get("decoder"))
        self._byte_fallback = "ByteFallback" in json.dumps(layout.get("decoder"))
        self._spaces = SPACE in json.dumps(layout.get("decoder"), ensure_ascii=False)

    def _find_roles(self, config: dict[str, Any], folder: Path) -> dict[str, int]:
        specials, model = _read_json(folder / SPECIALS_JSON), _read_json(folder / "config.json")
        roles: dict[str, int] = {}
        for role in ROLES:
            name = config.get(f"{role}_token") or specials.get(f"{role}_token")
            name = name.get("content") if isinstance(name, dict) else name
            number: Any = self._tokenizer.token_to_id(name) if isinstance(name, str) else None
            if number is None:
                given = model.get(f"{role}_token_id")
                number = given[0] if isinstance(given, list) and given else given
            if isinstance(number, int) and 0 <= number < self.vocab_size:
                roles[role] = number
        return roles

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]

    def is_byte(self, token: int) -> bool:
        piece = self._tokenizer.id_to_token(token)
        return self._byte_fallback and piece is not None and _BYTE_TOKEN.fullmatch(piece) is not None

    def token_bytes(self, token: int) -> bytes:
        if token in self._added:
            return self._added[token]
        piece = self._tokenizer.id_to_token(token)
        if piece is None:
            return b""  # an id between the vocabulary and the added tokens that nothing uses
        if self._byte_level:
            return (
                bytes(_BYTE_LEVEL[char] for char in piece) if all(c in _BYTE_LEVEL for c in piece) else piece.encode()
            )
        if self.is_byte(token):
            return bytes([int(piece[3:5], 16)])
        return (piece.replace(SPACE, " ") if self._spaces else piece).encode()

    def decode(self, ids: Sequence[int], skip_special: bool) -> str:
        kept = [token for token in ids if not skip_special or token not in self._special_ids]
        if self._own:  # the library writes one U+FFFD for each byte of a broken character, our models one in all
            return b"".join(map(self.token_bytes, kept)).decode("utf-8", "replace")
        return self._tokenizer.decode(kept, skip_special_tokens=False)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise CorruptArtifactError(f"cannot read it: {error}", where=str(path), mend="restore the file") from None
    return value if isinstance(value, dict) else {}


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's printable character for each byte (bytes_to_unicode in openai/gpt-2 encoder.py), inverted."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(value): value for value in printable}
    others = [value for value in range(256) if value not in set(printable)]
    return table | {chr(256 + number): value for number, value in enumerate(others)}


_BYTE_LEVEL = _byte_level_alphabet()
