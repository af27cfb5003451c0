"""Which records of a stream one worker reads, where several workers read the same file.

Where a record of a compressed file begins is known only by decompressing all that comes before it, which is a small
part of the work: JSON, web pages and wikitext cost several times as much. So each worker takes the whole stream apart
into records, and looks into those that are its own: the ones that begin in every `of`-th block of the stream. What the
workers give, put together by block, is what one worker gives.

    share = Share(0, 2, 4 << 20)
    for offset, data in records: if share.takes(offset): yield item(data)     # the item is of `share.block`
"""

from __future__ import annotations


class Share:
    """Blocks `number`, `number + of`, `number + 2 of` ... of `block_bytes` bytes; by default all there is.

    A reader asks `takes` for each record, in the order of the stream, and yields only what it may. Then `block` is the
    block of what was yielded last; `asked` counts the records and `last` is where the last one begins, which must be
    the same for all who share a file.
    """

    def __init__(self, number: int = 0, of: int = 1, block_bytes: int = 1 << 20) -> None:
        self.number, self.of, self.block_bytes = number, of, block_bytes
        self.block = self.asked = self.last = 0

    def takes(self, offset: int) -> bool:
        """Whether the record that begins at `offset` is to be read here."""
        self.asked += 1
        self.last = offset
        self.block = offset // self.block_bytes
        return self.block % self.of == self.number

    def takes_the_rest(self) -> bool:
        """Whether what comes after the last record, wherever that is, is to be told here."""
        return self.block % self.of == self.number
