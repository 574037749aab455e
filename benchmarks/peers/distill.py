"""``python -m benchmarks.peers.distill``: model2vec's static model of the encoder, made once, without a network."""

from __future__ import annotations

import argparse
from typing import Final

#: Dimensions, as model2vec comes.
_DIMENSIONS: Final = 256


def main() -> None:
    """Distil ``--model`` into ``--out``."""
    from model2vec.distill import distill

    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.distill", description=__doc__)
    parser.add_argument("--model", required=True, help="sentence-transformers folder")
    parser.add_argument("--out", required=True, help="folder for the static model")
    options = parser.parse_args()
    distill(model_name=options.model, pca_dims=_DIMENSIONS).save_pretrained(options.out)


if __name__ == "__main__":
    main()
