"""Keras lives here."""
