"""Responses that are kept for later requests, in SQLite, PostgreSQL or Redis."""
