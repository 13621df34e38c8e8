"""Baselines for the tables that no installed package has."""
