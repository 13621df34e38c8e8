"""python -m studies render: write what compares all tables, docs/reproductions.md and figures in README and docs."""

from __future__ import annotations

import argparse

from studies import documents, overview

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m studies", description=__doc__)
    parser.add_argument("what", choices=("render",))
    parser.parse_args()
    overview.write()
    documents.write()
