"""Evaluation of the whole loop: retrieval over the pooled items of data files, compression, critic, reader."""
