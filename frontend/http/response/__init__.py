"""Responses that are produced while they are sent: event streams and long JSON."""
