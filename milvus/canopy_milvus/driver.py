"""The Milvus driver, imported so that it neither trips over our environment nor prints.

It reads ``MILVUS_URI`` when it is imported and fails unless that is a network address, while here the variable may
name a folder. It also writes every failed call with its arguments to standard error; those failures reach the caller
as exceptions of ours, and the arguments are a user's documents.
"""

from __future__ import annotations

import logging
import os

_uri = os.environ.get("MILVUS_URI")
# Empty and not absent: the driver also loads a ".env" file, which fills in only what is absent.
os.environ["MILVUS_URI"] = ""
try:
    from pymilvus import DataType, Function, FunctionType, MilvusClient
    from pymilvus.exceptions import MilvusException
finally:
    if _uri is None:
        del os.environ["MILVUS_URI"]
    else:
        os.environ["MILVUS_URI"] = _uri

for _name in ("pymilvus.decorators", "pymilvus.client.connection_manager", "milvus_lite"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)

__all__ = ["DataType", "Function", "FunctionType", "MilvusClient", "MilvusException"]
