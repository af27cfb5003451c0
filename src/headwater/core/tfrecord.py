"""The record format of TensorFlow, and the bytes of protocol buffers that records hold.

    uint64 length | uint32 masked CRC of it | data | uint32 masked CRC of data          all little-endian

Encoded by hand, so that equal values give equal bytes. Sources: TensorFlow's `record_writer.cc`; protobuf.dev.

    file.write(frame(message_field(1, b"...")))
"""

from __future__ import annotations

import struct

HEAD_BYTES, TAIL_BYTES = 12, 4
_MASK = 0xA282EAD8


def masked_crc(data: bytes) -> int:
    """CRC32C, rotated right by 15 and moved by a constant."""
    import google_crc32c

    crc: int = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + _MASK) & 0xFFFFFFFF


def frame(data: bytes) -> bytes:
    """A record."""
    head = struct.pack("<Q", len(data))
    return head + struct.pack("<I", masked_crc(head)) + data + struct.pack("<I", masked_crc(data))


def varint(value: int) -> bytes:
    """A number from 0 up, seven bits a byte."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def message_field(number: int, data: bytes) -> bytes:
    """Field `number` of a message: a string, bytes, or a message in it."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def integer_field(number: int, value: int) -> bytes:
    """Field `number` of a message: an integer or enum from 0 up."""
    return varint(number << 3) + varint(value)
