"""The mixture, its temperature, and transforms of features."""
