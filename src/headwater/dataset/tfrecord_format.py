"""TFRecord: a file of records (`headwater.core.tfrecord`), one document a record.

A record is a `tf.train.Example` with the features `bytes` and `units` (integers), `id`, `lang`, `source`, `dtype`
("uint16" or "uint32") and `tokens` (the tokens as little-endian integers in one bytes value), encoded by hand so that
equal documents give equal bytes and the tokens are the record's last bytes. Beside `NAME.tfrecord` lie
`NAME.tfrecord.index`, a line "offset length" a record as the package `tfrecord` reads it, and
`NAME.tfrecord.documents`, the header and columns that a token shard has in itself.

Source: TensorFlow's `example.proto`.
"""

from __future__ import annotations

from collections.abc import Sequence

from headwater.core.tfrecord import message_field, varint
from headwater.dataset.shard_format import COLUMNS

SUFFIX, INDEX_SUFFIX, DOCUMENTS_SUFFIX = ".tfrecord", ".index", ".documents"
RECORD_COLUMNS: tuple[tuple[str, str], ...] = (("offsets", "<u8"), *COLUMNS[1:])
"""Columns of `.documents`, each with an entry a document: where its record begins, and those of `shard_format`."""


def example(*, id: str, lang: str, source: str, bytes_: int, units: int, dtype: str, tokens: bytes) -> bytes:
    """The `tf.train.Example` of a document."""
    features = b"".join(
        [
            _feature("bytes", _integers([bytes_])),
            _feature("units", _integers([units])),
            _feature("id", _bytes(id.encode())),
            _feature("lang", _bytes(lang.encode())),
            _feature("source", _bytes(source.encode())),
            _feature("dtype", _bytes(dtype.encode())),
            _feature("tokens", _bytes(tokens)),  # last, so that its value ends the record
        ]
    )
    return message_field(1, features)


def _feature(name: str, value: bytes) -> bytes:
    return message_field(1, message_field(1, name.encode()) + message_field(2, value))


def _bytes(value: bytes) -> bytes:
    return message_field(1, message_field(1, value))


def _integers(values: Sequence[int]) -> bytes:
    return message_field(3, message_field(1, b"".join(map(varint, values))))
