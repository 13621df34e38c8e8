"""The mixture itself, feature maps and transforms of features."""
