"""Responses that are made while they are sent: event streams and long JSON."""
