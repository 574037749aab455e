"""Writes Triton's protocol as a descriptor set, for clients without its .proto files: ``python protoset.py OUT``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from tritonclient.grpc import service_pb2


def collect(file: Any, found: dict[str, bytes]) -> None:
    """A file's descriptor after those that it builds on."""
    for dependency in file.dependencies:
        collect(dependency, found)
    found.setdefault(file.name, file.serialized_pb)


def main() -> None:
    found: dict[str, bytes] = {}
    collect(service_pb2.DESCRIPTOR, found)
    files = FileDescriptorSet()
    for descriptor in found.values():
        files.file.add().ParseFromString(descriptor)
    Path(sys.argv[1]).write_bytes(files.SerializeToString())


if __name__ == "__main__":
    main()
