"""Tests; `builders` makes records."""
