"""Rivals that no package here has, written for the tables alone."""
