"""How well a tokenizer compresses, by domain and language, on text it was not trained on.

report = compression(tokenizer, documents)
report["all"]["bytes_per_token"], report["web/zh"]["characters_per_token"]
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headwater.core.documents import Document
from headwater.core.errors import HeadwaterError
from headwater.core.units import count_units
from headwater.tokenizer.tokenizer import Tokenizer


def compression(tokenizer: Tokenizer, documents: Iterable[Document]) -> dict[str, dict[str, Any]]:
    """By "DOMAIN/LANG", and "all" over everything: documents, bytes, characters, units, tokens and their ratios.

    `byte_tokens` counts tokens that are single bytes of characters without a piece. HeadwaterError if a document does
    not come back exactly.
    """
    sums: dict[str, dict[str, int]] = {}
    for document in documents:
        ids = tokenizer.encode(document.text)
        if tokenizer.decode(ids) != document.text:
            raise HeadwaterError(f"the tokenizer does not give back document {document.id}", where=document.source)
        counts = {
            "documents": 1,
            "bytes": len(document.text.encode()),
            "characters": len(document.text),
            "units": count_units(document.text),
            "tokens": len(ids),
            "byte_tokens": sum(1 for token in ids if tokenizer.is_byte(token)),
        }
        for name in ("all", f"{document.domain}/{document.lang or 'unknown'}"):
            total = sums.setdefault(name, dict.fromkeys(counts, 0))
            for key, value in counts.items():
                total[key] += value
    return {name: {**total, **_ratios(total)} for name, total in sorted(sums.items())}


def _ratios(total: dict[str, int]) -> dict[str, float]:
    tokens = max(1, total["tokens"])
    return {
        "bytes_per_token": round(total["bytes"] / tokens, 4),
        "characters_per_token": round(total["characters"] / tokens, 4),
        "units_per_token": round(total["units"] / tokens, 4),
    }
