"""How tensors lie in a checkpoint: torch's distributed checkpoint (DCP), with JSON in place of its pickles.

DCP writes its index as a pickle, which can run code when it is read. Here the index is `tensors.json`, state that is
not a tensor goes to `state.json`, and DCP is given tensors only; each tensor's bytes are read with torch's
`weights_only` loader. So a checkpoint from a stranger cannot run anything.

    write_tensors({"model.norm.weight": tensor}, folder); read_tensors(folder, {"model.norm.weight": target})
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.storage import WriteResult

from headwater.core.errors import CorruptArtifactError
from headwater.core.files import atomic_write
from headwater.core.jsonl import canonical_json, json_fault, parse_json
from headwater.parallel.agreement import Ranks
from headwater.train.checkpoint_pieces import Piece, PiecePlanner, pieces_of
from headwater.train.run_folder import MEND_CHECKPOINT

INDEX = "tensors.json"
INDEX_FORMAT = 1

DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name)
    for name in (
        "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2",
        "int64", "int32", "int16", "int8", "uint8", "bool",
    )
}  # fmt: skip
_DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class JsonIndexWriter(dcp.FileSystemWriter):
    """DCP's file writer with the index as JSON, written by rank 0. Files are synced by DCP before `finish`."""

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        places = {result.index: result.storage_data for ranks in results for result in ranks}
        atomic_write(Path(self.path) / INDEX, canonical_json(_index_to_json(metadata, places)))


class JsonIndexReader(dcp.FileSystemReader):
    """DCP's file reader for `JsonIndexWriter`'s folders."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return read_index(Path(self.path))


def write_tensors(tensors: Mapping[str, Tensor | Piece], folder: Path, ranks: Ranks | None = None) -> None:
    """Write tensors (on any device, sharded or not) into `folder`, each rank its own pieces in files of its own.

    Collective over `ranks`; without them this process writes alone. Raises WriteFailed, on every rank, if it fails on
    any: an OSError that says which rank could not write what.
    """
    pieces = {name: item for name, item in tensors.items() if isinstance(item, Piece)}
    if not pieces:
        pieces = pieces_of({name: item for name, item in tensors.items() if isinstance(item, Tensor)})
    group = ranks.group if ranks is not None else None
    try:
        with _one_process():
            writer = JsonIndexWriter(folder, thread_count=1)
            dcp.save(
                cast("dict[str, Any]", pieces),
                storage_writer=writer,
                planner=PiecePlanner(),
                process_group=group,
                no_dist=group is None,
            )
    except CheckpointException as error:  # a BaseException: it would pass by every handler for Exception
        rank, (cause, _) = min(error.failures.items())
        where = "" if group is None else f" by rank {rank}"
        raise WriteFailed(f"tensors could not be written to {folder}{where}: {cause}") from cause


def read_tensors(folder: Path, targets: dict[str, Tensor]) -> None:
    """Fill the given tensors in place: plain ones, or DTensors of any layout, of which this rank reads only its part.

    Not collective: each rank reads for itself, in whatever layout the checkpoint was written.

    KeyError for a name that the folder does not hold; CorruptArtifactError if the data cannot be read.
    """
    missing = sorted(set(targets) - set(tensor_names(folder)))
    if missing:
        raise KeyError(f"not in the checkpoint: {', '.join(missing[:5])}{' ...' if len(missing) > 5 else ''}")
    try:
        with _one_process():
            dcp.load(cast("dict[str, Any]", targets), storage_reader=JsonIndexReader(folder), no_dist=True)
    except CheckpointException as error:
        cause = next(iter(error.failures.values()))[0]
        raise CorruptArtifactError(
            f"the checkpoint's tensors cannot be read: {str(cause).splitlines()[0]}",
            where=str(folder),
            mend=MEND_CHECKPOINT,
        ) from cause


class WriteFailed(OSError):
    """DCP could not write; every rank gets it at the same moment."""


@contextmanager
def _one_process() -> Iterator[None]:
    """No process group is what is meant here, so DCP's warning about it says nothing."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
        yield


def empty_tensors(folder: Path, prefix: str = "") -> dict[str, Tensor]:
    """Uninitialised CPU tensors of the stored shapes for all names that start with `prefix`, to be filled."""
    shapes = {k: v for k, v in read_index(folder).state_dict_metadata.items() if k.startswith(prefix)}
    return {
        name: torch.empty(meta.size, dtype=meta.properties.dtype)
        for name, meta in shapes.items()
        if isinstance(meta, TensorStorageMetadata)
    }


def tensor_names(folder: Path) -> list[str]:
    return list(read_index(folder).state_dict_metadata)


def _index_to_json(metadata: Metadata, places: dict[MetadataIndex, _StorageInfo]) -> dict[str, Any]:
    tensors: dict[str, Any] = {}
    for name, entry in metadata.state_dict_metadata.items():
        if not isinstance(entry, TensorStorageMetadata):
            raise TypeError(f"{name} is not a tensor; such state belongs into state.json")
        chunks = []
        for chunk in entry.chunks:
            place = places[MetadataIndex(name, chunk.offsets)]
            chunks.append([list(chunk.offsets), list(chunk.sizes), place.relative_path, place.offset, place.length])
        tensors[name] = {
            "dtype": _DTYPE_NAMES[entry.properties.dtype],
            "size": list(entry.size),
            "chunks": chunks,
        }
    return {"format": INDEX_FORMAT, "tensors": tensors}


def read_index(folder: Path) -> Metadata:
    """The index of a folder; CorruptArtifactError if it cannot be read or points outside the folder."""
    path = folder / INDEX
    try:
        index = parse_json(path.read_bytes())
        if index["format"] != INDEX_FORMAT:
            raise ValueError(f"format {index['format']}, this version reads {INDEX_FORMAT}")
        metadata = Metadata(state_dict_metadata={}, storage_data={}, storage_meta=StorageMeta())
        for name, entry in index["tensors"].items():
            chunks = []
            for offsets, sizes, file, offset, length in entry["chunks"]:
                if Path(file).name != file:
                    raise ValueError(f"{file} is not a plain file name")
                chunks.append(ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)))
                metadata.storage_data[MetadataIndex(name, offsets)] = _StorageInfo(file, offset, length)
            properties = TensorProperties(dtype=DTYPES[entry["dtype"]])
            metadata.state_dict_metadata[name] = TensorStorageMetadata(properties, torch.Size(entry["size"]), chunks)
        return metadata
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CorruptArtifactError(
            f"the index of the checkpoint's tensors cannot be read: {json_fault(error)}",
            where=str(path),
            mend=MEND_CHECKPOINT,
        ) from error
