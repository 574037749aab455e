"""The local stack: Triton, the critic and Milvus on one CPU machine, from pip packages."""
