"""Model files and checkpoints, which hold numbers and text, never code. Parts register themselves."""
