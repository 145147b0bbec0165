"""Anthropic's Messages API: its requests become those of a chat, whose answers become its messages."""
