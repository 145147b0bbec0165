"""Flags: declared as tables, parsed as people type them, passed on to other processes."""
