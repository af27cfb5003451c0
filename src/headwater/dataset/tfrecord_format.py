"""TFRecord: a file of records, each with its length and two masked CRC32C checksums; one document a record.

    uint64 length | uint32 masked CRC of it | data | uint32 masked CRC of data          all little-endian

A record is a `tf.train.Example` with the features `bytes` and `units` (integers), `id`, `lang`, `source`, `dtype`
("uint16" or "uint32") and `tokens` (the tokens as little-endian integers in one bytes value), encoded by hand so that
equal documents give equal bytes and the tokens are the record's last bytes. Beside `NAME.tfrecord` lie
`NAME.tfrecord.index`, a line "offset length" a record as the package `tfrecord` reads it, and
`NAME.tfrecord.documents`, the header and columns that a token shard has in itself.

Source: TensorFlow's `record_writer.cc` and `example.proto`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from headwater.dataset.shard_format import COLUMNS

SUFFIX, INDEX_SUFFIX, DOCUMENTS_SUFFIX = ".tfrecord", ".index", ".documents"
HEAD_BYTES, TAIL_BYTES = 12, 4
RECORD_COLUMNS: tuple[tuple[str, str], ...] = (("offsets", "<u8"), *COLUMNS[1:])
"""Columns of `.documents`, each with an entry a document: where its record begins, and those of `shard_format`."""

_MASK = 0xA282EAD8


def masked_crc(data: bytes) -> int:
    """CRC32C, rotated right by 15 and moved by a constant, as TFRecord keeps it."""
    import google_crc32c

    crc: int = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + _MASK) & 0xFFFFFFFF


def frame(data: bytes) -> bytes:
    """A record."""
    head = struct.pack("<Q", len(data))
    return head + struct.pack("<I", masked_crc(head)) + data + struct.pack("<I", masked_crc(data))


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
    return _field(1, features)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _feature(name: str, value: bytes) -> bytes:
    return _field(1, _field(1, name.encode()) + _field(2, value))


def _bytes(value: bytes) -> bytes:
    return _field(1, _field(1, value))


def _integers(values: Sequence[int]) -> bytes:
    return _field(3, _field(1, b"".join(map(_varint, values))))
