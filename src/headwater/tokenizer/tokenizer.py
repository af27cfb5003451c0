"""Text to token ids and back, exactly.

tokenizer = Tokenizer.load("workspace/tokenizer/0123456789abcdef")
tokenizer.decode(tokenizer.encode("你好,  world\\n")) == "你好,  world\\n"
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from headwater.core.errors import InputError
from headwater.core.files import atomic_write
from headwater.tokenizer.backends import Backend, HuggingFaceBackend, SentencePieceBackend
from headwater.tokenizer.hf_export import CONFIG_JSON, FILES, TOKENIZER_JSON, write_hf

MODEL = "tokenizer.model"


class Tokenizer:
    """A loaded tokenizer. Immutable; safe to use from several threads.

    With a model trained by Headwater `decode(encode(text)) == text` for every text that is valid Unicode. Encoding
    never gives reserved ids: "<s>" in a text is three characters. `bos_id`, `pad_id`, `unk_id` and `mask_id` are
    None where a foreign tokenizer has none.
    """

    def __init__(self, backend: Backend, path: Path) -> None:
        self._backend = backend
        self.path = path
        self.vocab_size = backend.vocab_size
        """Number of ids; the rows of an embedding may be padded beyond it."""
        self.sha256 = backend.sha256
        """Hash of the model: of `tokenizer.model`, also when loaded from an unchanged export of it; else of
        tokenizer.json."""
        self.special_ids = frozenset(backend.specials.values()) | frozenset(backend.roles.values())
        """Ids that stand for no text."""
        self.bos_id = backend.roles.get("bos")
        self.pad_id = backend.roles.get("pad")
        self.unk_id = backend.roles.get("unk")
        self.mask_id = backend.roles.get("mask")
        self.document_prefix: tuple[int, ...] = (backend.roles["bos"],) if backend.begins_with_bos else ()
        """What stands before a document's text, in training and in prompts: bos with Headwater's tokenizers and with
        foreign ones whose post-processor adds it (Llama), nothing with others (Qwen)."""

    @classmethod
    def load(cls, path: Path | str) -> Tokenizer:
        """From a tokenizer artifact, a run or export folder, or any Hugging Face folder with a tokenizer.json.

        A folder may hold the tokenizer itself or have it in `tokenizer/`; a path to tokenizer.model or tokenizer.json
        works too. With both files in a folder tokenizer.json is used, as Hugging Face libraries do. Raises InputError
        if there is none, CorruptArtifactError if it cannot be read.
        """
        path = Path(path)
        if path.is_file() and path.name.endswith(".json"):
            path = path.parent
        if path.is_file():
            return cls(SentencePieceBackend(path.read_bytes(), path), path.parent)
        for folder in (path, path / "tokenizer"):
            if (folder / TOKENIZER_JSON).is_file():
                return cls(HuggingFaceBackend(folder), folder)
            if (folder / MODEL).is_file():
                return cls(SentencePieceBackend((folder / MODEL).read_bytes(), folder / MODEL), folder)
        raise InputError(
            f"no tokenizer here: there is neither {MODEL} nor {TOKENIZER_JSON}",
            where=str(path),
            mend="give a tokenizer artifact, a run or export folder, or a Hugging Face model folder",
        )

    @property
    def eos_id(self) -> int:
        """The token that ends a document. InputError if a foreign tokenizer names none."""
        if "eos" not in self._backend.roles:
            raise InputError(
                "the tokenizer names no end-of-document token",
                where=str(self.path),
                mend=f'add "eos_token" to its {CONFIG_JSON}',
            )
        return self._backend.roles["eos"]

    @property
    def special_names(self) -> tuple[str, ...]:
        """Names of the reserved tokens, by id."""
        return tuple(self._backend.specials)

    def id_of(self, name: str) -> int:
        """The id of a reserved token by its name, for example "<mask>" or "<|user|>". InputError if there is none."""
        try:
            return self._backend.specials[name]
        except KeyError:
            raise InputError(
                f"the tokenizer has no reserved token {name!r}",
                where=str(self.path),
                mend="it has " + ", ".join(self.special_names[:16]),
            ) from None

    def encode(self, text: str, bos: bool = False, eos: bool = False) -> list[int]:
        """Token ids of a text; with `bos` or `eos` these tokens around it. Raises as `encode_batch`."""
        ids = self.encode_batch([text])[0]
        if bos:
            if self.bos_id is None:
                raise InputError("the tokenizer has no begin-of-text token", where=str(self.path))
            ids = [self.bos_id, *ids]
        return [*ids, self.eos_id] if eos else ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text, on one thread.

        InputError for a text with a lone surrogate (U+D800 to U+DFFF): it is no Unicode text and has no UTF-8 form.
        """
        for text in texts:
            if not text.isascii():
                _refuse_surrogates(text)
        return self._backend.encode_batch(texts)

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """The text of some ids. Reserved tokens are left out, or with `skip_special=False` written by name. Bytes that
        are no UTF-8, which a model may generate, become U+FFFD. InputError for an id outside the vocabulary."""
        self._check(ids)
        return self._backend.decode(ids, skip_special)

    def token_bytes(self, token: int) -> bytes:
        """The UTF-8 bytes one id stands for, possibly part of a character; of a reserved token, those of its name.

        The bytes of `encode(text)` joined are the text's. InputError for an id outside the vocabulary.
        """
        self._check((token,))
        return self._backend.token_bytes(token)

    def is_byte(self, token: int) -> bool:
        """Whether an id is one of the byte tokens that spell characters without a piece."""
        self._check((token,))
        return self._backend.is_byte(token)

    def export_hf(self, folder: Path | str) -> None:
        """Write tokenizer.json, tokenizer_config.json and special_tokens_map.json for Hugging Face libraries; a foreign
        tokenizer's own files are copied."""
        folder = Path(folder)
        if isinstance(self._backend, SentencePieceBackend):
            write_hf(self._backend.model, folder)
            return
        folder.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            if (self.path / name).is_file():
                shutil.copyfile(self.path / name, folder / name)

    def save(self, folder: Path | str) -> None:
        """Write a copy that `load` reads back as the same tokenizer: the model, or the Hugging Face files."""
        folder = Path(folder)
        if isinstance(self._backend, SentencePieceBackend):
            folder.mkdir(parents=True, exist_ok=True)
            atomic_write(folder / MODEL, self._backend.model)
        else:
            self.export_hf(folder)

    def _check(self, ids: Sequence[int]) -> None:
        if len(ids) and (min(ids) < 0 or max(ids) >= self.vocab_size):
            bad = next(token for token in ids if not 0 <= token < self.vocab_size)
            raise InputError(
                f"token {bad} is outside the vocabulary of {self.vocab_size:,}",
                where=str(self.path),
                mend="an id from the padding of an embedding is never to be sampled: mask the logits above the "
                "vocabulary",
            )


def _refuse_surrogates(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"the text has a lone surrogate U+{ord(text[error.start]):04X} at character {error.start}",
            mend="it is half of a UTF-16 pair, often from broken JSON: read the source again, or replace it by U+FFFD",
        ) from None
