"""One file per published table; each writes results/*.json and *.md from the numbers of its own run."""
