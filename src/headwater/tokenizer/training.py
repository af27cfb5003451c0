"""Trains a SentencePiece model: lossless, with Headwater's reserved tokens, the same on every machine.

In: texts. Out: the bytes of a `tokenizer.model`. Memory: about 16 times the size of the texts (measured: 0.6 GB for
30 MB with bpe, 0.25 GB for 10 MB with unigram).

    model = train_model(texts, TokenizerConfig(vocab_size=4096))
"""

from __future__ import annotations

import io
import re
import string
from collections.abc import Iterable

from headwater.core.errors import RecipeError
from headwater.tokenizer.config import TokenizerConfig
from headwater.tokenizer.lines import MAX_LINE_CHARACTERS, training_lines
from headwater.tokenizer.model_file import normalise
from headwater.tokenizer.specials import BOS, EOS, FIRST_BYTE_ID, LINE_SYMBOLS, PAD, SPECIALS, UNK

THREADS = 4
"""Not the machine's cores: unigram's expected counts are sums of floats, one part a thread, so the number of parts must
be the same everywhere. With it fixed, two runs agree bit for bit on one core or on two (measured)."""

REQUIRED = "".join(sorted(set(string.printable) - set(string.whitespace)))
"""Printable ASCII always has pieces, so that no text of it is spelled in bytes, and names of tokens can be spelled."""

_TOO_LARGE = re.compile(r"set it to a value <= (\d+)")


def train_model(texts: Iterable[str], config: TokenizerConfig) -> bytes:
    """Learn a vocabulary. Deterministic for the texts in their order.

    RecipeError when the texts are too few for the vocabulary, or the vocabulary too small for their characters.
    """
    import sentencepiece

    sink = io.BytesIO()
    lines = training_lines(texts, config.max_line_repeats)
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_nonempty(lines),
            model_writer=sink,
            model_type=config.model_type,
            vocab_size=config.vocab_size,
            character_coverage=config.character_coverage,
            split_digits=config.split_digits,
            max_sentencepiece_length=config.max_piece_characters,
            max_sentence_length=8 * MAX_LINE_CHARACTERS,
            num_threads=THREADS,
            # Lossless: no normalisation, spaces kept as they are, unknown characters in bytes.
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            add_dummy_prefix=False,
            allow_whitespace_only_pieces=True,
            byte_fallback=True,
            required_chars=REQUIRED,
            unk_id=0,
            bos_id=1,
            eos_id=2,
            pad_id=3,
            unk_piece=UNK,
            bos_piece=BOS,
            eos_piece=EOS,
            pad_piece=PAD,
            control_symbols=list(SPECIALS[4:]),
            user_defined_symbols=list(LINE_SYMBOLS),
            shuffle_input_sentence=False,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise _explain(str(error), config) from None
    return normalise(sink.getvalue())


def _nonempty(lines: Iterable[str]) -> Iterable[str]:
    empty = True
    for line in lines:
        empty = False
        yield line
    if empty:
        raise RecipeError(
            "there is no text to learn a vocabulary from", where="tokenizer", mend="check that the corpus has documents"
        )


def _explain(message: str, config: TokenizerConfig) -> RecipeError:
    where = "tokenizer.vocab_size"
    if match := _TOO_LARGE.search(message):
        return RecipeError(
            f"the sample has too little text for {config.vocab_size:,} tokens; it gives at most {match[1]}",
            where=where,
            mend=f"set vocab_size to {int(match[1]) // 128 * 128} or less, or give more text",
        )
    if "required_chars" in message or "smaller than" in message:
        return RecipeError(
            f"{config.vocab_size:,} tokens are too few: {FIRST_BYTE_ID + 256 + len(LINE_SYMBOLS)} are fixed and the "
            f"rest must hold every frequent character ({message.splitlines()[0][:200]})",
            where=where,
            mend="raise vocab_size, or lower character_coverage so that rare characters are spelled in bytes",
        )
    return RecipeError(f"SentencePiece could not train: {message[:500]}", where="tokenizer")
