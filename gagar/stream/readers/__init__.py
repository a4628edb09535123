"""Readers of topics beside the lanes: tables, scans, references."""
