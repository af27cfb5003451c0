"""Puts a trained SentencePiece model into Headwater's form: fixed ids, scores that add up exactly.

In: the trainer's model and the line symbols. Out: a model with the reserved tokens first, then the 256 bytes, the line
symbols and the learned pieces, and nothing in it that depends on the machine.

Unigram scores become multiples of 1/128. SentencePiece adds them in 32-bit floats and Hugging Face in 64-bit ones; sums
of such multiples are exact in both up to 131,072, so both find the same best segmentation, with equal ties broken by
the same rule. 1/128 nat is far below what the estimate of a score is worth.
"""

from __future__ import annotations

from typing import Any

from headwater.core.errors import HeadwaterError
from headwater.tokenizer.specials import BYTE_TOKENS, LINE_SYMBOLS, SPECIALS, UNK

SCORE_STEP = 1 / 128
LINE_SYMBOL_SCORE = -1.0
"""Of line symbols in a unigram model, where they are ordinary pieces: SentencePiece's own score for user-defined
symbols falls with their bytes, so that it would prefer a line break and separate spaces."""

_VOLATILE = ("input", "model_prefix", "num_threads", "input_sentence_size", "train_extremely_large_corpus")


def parse(model: bytes) -> Any:
    """The model as a protocol buffer. ValueError if it is none."""
    from google.protobuf.message import DecodeError
    from sentencepiece import sentencepiece_model_pb2 as pb2

    proto: Any = pb2.ModelProto()  # type: ignore[attr-defined]
    try:
        proto.ParseFromString(model)
    except DecodeError as error:
        raise ValueError(f"not a SentencePiece model: {error}") from None
    return proto


def piece_types() -> Any:
    """The enum of piece types: NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE."""
    from sentencepiece import sentencepiece_model_pb2 as pb2

    return pb2.ModelProto.SentencePiece.Type  # type: ignore[attr-defined]


def normalise(model: bytes) -> bytes:
    """Reorder pieces, round unigram scores and clear what does not matter. Equal pieces give equal bytes.

    HeadwaterError if the trainer left out a reserved token, a byte or a symbol, or a piece has a character that is no
    piece itself (then the Hugging Face export could not be equal).
    """
    proto = parse(model)
    kinds = piece_types()
    unigram = proto.trainer_spec.model_type == proto.trainer_spec.UNIGRAM
    by_name = {piece.piece: piece for piece in proto.pieces}
    head = [*SPECIALS, *BYTE_TOKENS, *LINE_SYMBOLS]
    if missing := [name for name in head if name not in by_name]:
        raise HeadwaterError(f"the trained model lacks the tokens {missing[:5]}")
    known = set(head)
    learned = [piece for piece in proto.pieces if piece.piece not in known]
    letters = {piece.piece for piece in learned} | known
    if lost := {char for piece in learned for char in piece.piece} - letters:
        raise HeadwaterError(f"the characters {sorted(lost)[:5]} are in pieces but no pieces themselves")
    pieces = [by_name[name] for name in head] + learned
    rows = []
    for piece in pieces:
        kind, score = piece.type, piece.score
        if piece.piece in SPECIALS:
            kind = kinds.Value("UNKNOWN") if piece.piece == UNK else kinds.Value("CONTROL")
        elif unigram and piece.piece in LINE_SYMBOLS:
            kind, score = kinds.Value("NORMAL"), LINE_SYMBOL_SCORE
        elif unigram and kind == kinds.Value("NORMAL"):
            score = round(score / SCORE_STEP) * SCORE_STEP
        rows.append((piece.piece, score, kind))
    del proto.pieces[:]
    for name, score, kind in rows:
        proto.pieces.add(piece=name, score=score, type=kind)
    for field in _VOLATILE:
        proto.trainer_spec.ClearField(field)
    proto.trainer_spec.vocab_size = len(rows)
    return proto.SerializeToString(deterministic=True)
